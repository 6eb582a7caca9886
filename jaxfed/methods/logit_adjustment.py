"""Logit adjustment, with tau = 1 the balanced softmax."""

import jax.numpy as jnp

from jaxfed.methods._calibrated import calibrated
from jaxfed.methods._check import check
from jaxfed.methods.method import Method


def logit_adjustment(*, tau: float = 1.0) -> Method:
    """Adjustment of the logits by the client's shares of the classes, in training only.

    CE of z_c + tau log(n_c / n), over the classes that the client has

    Args:
      tau: weight of the adjustment, >= 0; 1 is the balanced softmax.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021, eq. 10. Ren et al., Balanced
      Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020.
    """
    check(tau >= 0, 'tau', tau, 'at least 0')
    # The number of examples shifts all logits alike.
    return calibrated(lambda counts: -tau * jnp.log(counts))
