"""FedLSD: self-distillation from the global model with one constant weight."""

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def fedlsd(*, alpha: float = 0.3, tau: float = 2.0) -> Method:
    """Self-distillation with one weight for all classes.

    (1 - alpha) CE + alpha L_d, L_d = -sum_c pg_c log p_c, both softmaxes at temperature tau

    Args:
      alpha: weight of the distillation, in [0, 1]; its flag is --fedlsd.alpha.
      tau: temperature, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning, 2022,
      eq. 2 and 4.
    """
    check((alpha >= 0) & (alpha <= 1), 'alpha', alpha, 'in 0..1')
    check_temperature(tau)

    def supervised(view: LocalView) -> Array:
        logits = view.outputs.logits
        distillation = losses.soft_cross_entropy(logits, view.teacher.logits, temperature=tau)
        return (1 - alpha) * losses.cross_entropy(logits, view.batch.y) + alpha * distillation

    return Method(supervised=supervised)
