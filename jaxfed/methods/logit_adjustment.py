"""Logit adjustment, with tau = 1 the balanced softmax."""

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array, ClientInfo


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

    def prepare(info: ClientInfo) -> Array:
        counts = info.label_counts.astype(jnp.float32)
        share = jnp.maximum(counts, 1) / jnp.maximum(jnp.sum(counts), 1)
        return jnp.where(counts > 0, -tau * jnp.log(share), jnp.inf)

    def supervised(view: LocalView) -> Array:
        return losses.calibrated_cross_entropy(view.outputs.logits, view.batch.y, view.static)

    return Method(prepare=prepare, supervised=supervised)
