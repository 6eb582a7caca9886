"""MSE: logit matching with a constant weight, the ablation of FedSSD's table III."""

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def mse(*, alpha: float = 0.1) -> Method:
    """Squared distance to the global model's logits, with a constant weight.

    CE + alpha sum_c (zg_c - z_c)^2

    The sum over the classes is not divided by their number, as in FedSSD's norm.

    Args:
      alpha: weight of the distance, >= 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID
      Data, IEEE Transactions on Big Data 2022, table III.
    """
    check(alpha >= 0, 'alpha', alpha, 'at least 0')

    def penalty(view: LocalView) -> Array:
        logits = view.outputs.logits
        ones = jnp.ones_like(logits)
        distance = losses.masked_mse_distillation(logits, view.teacher.logits, ones)
        return alpha * view.mean(distance)

    return Method(penalty=penalty)
