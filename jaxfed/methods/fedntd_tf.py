"""FedNTD-Tf: FedNTD with a uniform distribution instead of a teacher."""

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def fedntd_tf(*, beta: float = 1.0, tau: float = 1.0) -> Method:
    """Teacher-free not-true distillation.

    CE + beta tau^2 KL(u || p~), u uniform over the C - 1 classes other than the true one

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, table 2.
      After Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 3.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)

    def penalty(view: LocalView) -> Array:
        logits = view.outputs.logits
        uniform = jnp.zeros_like(logits)  # equal logits
        distillation = losses.not_true_distillation(logits, uniform, view.batch.y, temperature=tau)
        return beta * view.mean(distillation)

    return Method(penalty=penalty)
