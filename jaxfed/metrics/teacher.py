"""Agreement of a local model with its teacher, the global model from which it started."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed import losses
from jaxfed.metrics.alignment import alignment, class_preference
from jaxfed.types import Array, Outputs


class Teacher(NamedTuple):
    """Results of a global model on m test examples."""

    logits: Array  # [m, C]
    preference: Array  # [F] int32, of the neurons before the last layer


class Agreement(NamedTuple):
    """Comparison of a local model with its teacher."""

    kl: Array  # [], as `teacher_kl`
    alignment: Array  # [], of the layer before the last


def teacher_kl(teacher_logits: ArrayLike, logits: ArrayLike) -> Array:
    """Mean divergence of a student's predictions from its teacher's.

    mean_x KL(softmax(zg(x)) || softmax(z(x)))

    Args:
      teacher_logits: zg [m, C].
      logits: z [m, C].

    Returns:
      [], in nats.
    """
    return jnp.mean(losses.kl_distillation(logits, teacher_logits, temperature=1.0))


def as_teacher(outputs: Outputs, y: Array) -> Teacher:
    """Computes the results of a teacher that `agreement` compares with a student.

    Args:
      outputs: of the global model on the test examples.
      y: [m] int32 labels.

    Returns:
      The teacher.
    """
    classes = outputs.logits.shape[-1]
    return Teacher(outputs.logits, class_preference(outputs.features, y, classes))


def agreement(teacher: Teacher, outputs: Outputs, y: Array) -> Agreement:
    """Compares a local model with its teacher.

    Args:
      teacher: from `as_teacher`.
      outputs: of the local model on the same examples.
      y: [m] int32 labels.

    Returns:
      The agreement.
    """
    student = as_teacher(outputs, y)
    return Agreement(
        kl=teacher_kl(teacher.logits, student.logits),
        alignment=alignment(teacher.preference, student.preference),
    )
