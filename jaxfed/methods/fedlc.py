"""FedLC: logits with a margin that falls with a client's number of examples of the class."""

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array, ClientInfo


def fedlc(*, tau: float = 1.0) -> Method:
    """Logits calibration, in training only.

    CE of z_c - tau n_c^(-1/4), over the classes that the client has

    The paper's sum leaves out the true class, so that the loss has no lower bound. It is included
    here, as in the code of FedDecorr and of FL-bench.

    Args:
      tau: weight of the margins, >= 0; 1 in FL-bench, 0.1 in the code of FedDecorr.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML
      2022.
    """
    check(tau >= 0, 'tau', tau, 'at least 0')

    def prepare(info: ClientInfo) -> Array:
        counts = info.label_counts.astype(jnp.float32)
        return jnp.where(counts > 0, tau * jnp.maximum(counts, 1) ** -0.25, jnp.inf)

    def supervised(view: LocalView) -> Array:
        return losses.calibrated_cross_entropy(view.outputs.logits, view.batch.y, view.static)

    return Method(prepare=prepare, supervised=supervised)
