"""FedSSD: the credibility of a teacher's logits, by class and by example."""

import sys

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays, check_number
from jaxfed.losses._softmax import as_float, not_true, one_hot
from jaxfed.types import Array


def credibility_matrix(
    logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None
) -> Array:
    """The confusion matrix, each row divided by its class's examples.

    A[j, k] = share of the examples of class j whose largest logit is k

    Args:
      logits: [B, C]; if several logits are the largest, the first one counts.
      labels: y [B], integers in 0..C-1.
      where: bool [B], False for the padding of a short batch; None for no padding.

    Returns:
      A [C, C]; the row of a class without an example is 0.

    Raises:
      ValueError: if shapes do not match or the labels are not integers.

    Reference:
      He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID
      Data, IEEE Transactions on Big Data 2022, eq. 2.
    """
    check_arrays(logits, labels=labels, where=where)
    logits = as_float(logits)
    true = one_hot(labels, logits, where)
    predicted = one_hot(jnp.argmax(logits, axis=-1), logits, None)
    confusion = jnp.einsum('bj,bk->jk', true, predicted, precision='highest')
    return confusion / jnp.maximum(jnp.sum(confusion, axis=-1, keepdims=True), 1.0)


def credibility_weights(
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    credibility: ArrayLike,
    *,
    max_weight: float | Array,
) -> Array:
    """FedSSD's weight of each logit, from the teacher's accuracy on the class and the example.

    M[k] = M_max max(0, M_class[k] M_sample - 0.1),
    M_class[k] = A[k, k] (1 - max_{j != k} A[j, k]), M_sample = 1 - sqrt(1 - pg_y),
    pg = softmax(zg)

    Args:
      teacher_logits: zg [B, C], constant: it gets no gradient.
      labels: y [B], integers in 0..C-1.
      credibility: A [C, C], from `credibility_matrix`, constant too.
      max_weight: M_max, >= 0.

    Returns:
      M [B, C], in 0 .. 0.9 M_max.

    Raises:
      ValueError: if `max_weight` is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID
      Data, IEEE Transactions on Big Data 2022, eq. 4.
    """
    check_arrays(teacher_logits, labels=labels)
    check_number('max_weight', max_weight, 0, sys.float_info.max, 'finite and at least 0')
    logits = jax.lax.stop_gradient(as_float(teacher_logits))
    matrix = jax.lax.stop_gradient(as_float(credibility))
    classes = logits.shape[-1]
    if matrix.shape != (classes, classes):
        raise ValueError(
            f'credibility has shape {matrix.shape}; it must be {(classes, classes)} for '
            f'teacher_logits of shape {logits.shape}.'
        )
    mistaken = jnp.max(jnp.where(jnp.eye(classes, dtype=bool), 0.0, matrix), axis=0)
    class_weight = jnp.diagonal(matrix) * (1 - mistaken)
    # 1 - pg_y as a sum over the other classes: near pg_y = 1 the root would magnify the rounding
    # error of a difference.
    doubt = jnp.sum(jax.nn.softmax(logits), axis=-1, where=not_true(labels, logits))
    sample_weight = 1 - jnp.sqrt(doubt)
    return max_weight * jnp.maximum(0.0, class_weight * sample_weight[..., None] - 0.1)
