"""The softmax over a part of the classes, and the divergence of two of them."""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxfed.types import Array


def as_float(x: ArrayLike) -> Array:
    """Half precisions and integers as float32; float32 and float64 as they are."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def masked_log_softmax(logits: Array, where: Array) -> Array:
    """The log-softmax over the classes in `where`, as if the others did not exist.

    Args:
      logits: [B, C].
      where: bool [B, C], the classes that take part.

    Returns:
      [B, C]; 0 with gradient 0 for classes outside `where`, and so everywhere in a row without any.
    """
    # An empty row is computed with all of its classes and then dropped: finite on the way, so that
    # its gradient is an exact 0 and no search for NaNs stops at it.
    empty = ~jnp.any(where, axis=-1, keepdims=True)
    return jnp.where(where, jax.nn.log_softmax(logits, where=where | empty), 0.0)


def masked_kl(
    logits: ArrayLike,
    teacher_logits: ArrayLike,
    *,
    student_classes: Array,
    teacher_classes: Array,
    temperature: float | Array,
) -> Array:
    """tau^2 KL(pg || p), each softmax over its own classes; the teacher gets no gradient.

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C].
      student_classes: bool [B, C], the classes of p.
      teacher_classes: bool [B, C], the classes of pg, a subset of p's.
      temperature: tau of both.

    Returns:
      [B]; 0 with gradient 0 where the teacher has no class.
    """
    teacher_logits = jax.lax.stop_gradient(as_float(teacher_logits))
    teacher = masked_log_softmax(teacher_logits / temperature, teacher_classes)
    student = masked_log_softmax(as_float(logits) / temperature, student_classes)
    divergence = optax.losses.kl_divergence_with_log_targets(
        student, teacher, where=teacher_classes
    )
    return temperature**2 * divergence
