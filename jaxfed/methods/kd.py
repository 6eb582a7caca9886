"""KD: distillation from the global model; FedAvg+KD, and FedGKD with one teacher."""

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def kd(*, beta: float = 1.0, tau: float = 1.0) -> Method:
    """Distillation from the global model over all classes.

    CE + beta tau^2 KL(softmax(zg / tau) || softmax(z / tau))

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Hinton et al., Distilling the Knowledge in a Neural Network, 2015.
      Yao et al., Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
      Non-IID Data, 2021, with one teacher.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)

    def penalty(view: LocalView) -> Array:
        return beta * view.mean(
            losses.kl_distillation(view.outputs.logits, view.teacher.logits, temperature=tau)
        )

    return Method(penalty=penalty)
