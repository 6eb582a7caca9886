"""The softmax over a subset of the classes, and the divergence of two of them."""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays, check_temperature
from jaxfed.types import Array


def as_float(x: ArrayLike) -> Array:
    """Converts half precisions and integers to float32; keeps float32 and float64."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def one_hot(labels: ArrayLike, logits: Array, where: ArrayLike | None) -> Array:
    """Returns one-hot labels [B, C] of the logits' type; rows with `where` [B] False are 0."""
    rows = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return rows if where is None else jnp.where(jnp.asarray(where)[..., None], rows, 0.0)


def not_true(labels: ArrayLike, logits: ArrayLike) -> Array:
    """Returns the mask [B, C] of all classes but the true one."""
    return ~jax.nn.one_hot(labels, jnp.shape(logits)[-1], dtype=bool)


def masked_log_softmax(logits: Array, where: Array) -> Array:
    """Returns the log-softmax [B, C] over the classes in `where` [B, C]; 0 elsewhere."""
    # An empty row uses all classes and is then dropped, so its values stay finite, its gradient is
    # exactly 0, and jax_debug_nans reports nothing.
    empty = ~jnp.any(where, axis=-1, keepdims=True)
    return jnp.where(where, jax.nn.log_softmax(logits, where=where | empty), 0.0)


def masked_kl(
    logits: ArrayLike,
    teacher_logits: ArrayLike,
    student_classes: Array,
    teacher_classes: Array,
    temperature: float | Array,
) -> Array:
    """Returns tau^2 KL(pg || p) [B], each softmax over its classes; the teacher gets no gradient.

    The classes of pg [B, C] are a subset of those of p; the loss of a row without classes is 0.
    """
    check_arrays(logits, teacher_logits=teacher_logits)
    check_temperature(temperature)
    teacher_logits = jax.lax.stop_gradient(as_float(teacher_logits))
    teacher = masked_log_softmax(teacher_logits / temperature, teacher_classes)
    student = masked_log_softmax(as_float(logits) / temperature, student_classes)
    divergence = optax.losses.kl_divergence_with_log_targets(
        student, teacher, where=teacher_classes
    )
    return temperature**2 * divergence
