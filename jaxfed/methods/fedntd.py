"""FedNTD: distillation over the classes other than the true one."""

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def fedntd(*, beta: float = 1.0, tau: float = 1.0) -> Method:
    """Not-true distillation from the global model.

    CE + beta tau^2 KL(pg~ || p~), both softmaxes taken after removing the true class

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 3.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)

    def penalty(view: LocalView) -> Array:
        distillation = losses.not_true_distillation(
            view.outputs.logits, view.teacher.logits, view.batch.y, temperature=tau
        )
        return beta * view.mean(distillation)

    return Method(penalty=penalty)
