"""FedLMD-Tf: FedLMD with a uniform distribution instead of a teacher."""

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def fedlmd_tf(*, beta: float = 1.0, tau: float = 1.0) -> Method:
    """Teacher-free label-masking distillation.

    CE + beta tau^2 KL(mu || p'), mu uniform over the classes that are neither majority classes of
    the client nor y, p' over all classes but y; majority: n_c > n / C

    mu sums to 1. Eq. 8 gives each of the m minority classes 1 / m, also y, for which eq. 4 has no
    term. This only multiplies the gradients of examples of these classes by 1 - 1 / m.

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, eq. 7-8.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)

    def penalty(view: LocalView) -> Array:
        distillation = losses.label_masking_teacher_free(
            view.outputs.logits, view.batch.y, view.static, temperature=tau
        )
        return beta * view.mean(distillation)

    return Method(prepare=lambda info: losses.majority_labels(info.label_counts), penalty=penalty)
