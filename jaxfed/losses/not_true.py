"""FedNTD: distillation from the classes other than the true one."""

from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays
from jaxfed.losses._softmax import masked_kl, not_true
from jaxfed.types import Array


def not_true_distillation(
    logits: ArrayLike, teacher_logits: ArrayLike, labels: ArrayLike, *, temperature: float | Array
) -> Array:
    """Divergence from the teacher without the true class.

    tau^2 KL(pg~ || p~), both the softmax at tau over the C - 1 classes other than y

    The logit of the true class gets no gradient.

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      labels: y [B], integers in 0..C-1.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2.

    Raises:
      ValueError: if `temperature` is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 3.
    """
    check_arrays(logits, labels=labels)
    classes = not_true(labels, logits)
    return masked_kl(logits, teacher_logits, classes, classes, temperature)
