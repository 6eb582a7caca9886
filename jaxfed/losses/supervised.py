"""Cross-entropy with the labels, plain and smoothed."""

import jax
import optax
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays, check_number
from jaxfed.losses._softmax import as_float
from jaxfed.types import Array


def cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Softmax cross-entropy with integer labels.

    -log p_y, p = softmax(z)

    Args:
      logits: z [B, C].
      labels: y [B], integers in 0..C-1.

    Returns:
      [B], in nats.

    Raises:
      ValueError: if shapes do not match or the labels are not integers.
    """
    return smoothed_cross_entropy(logits, labels, smoothing=0.0)


def smoothed_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, *, smoothing: float | Array
) -> Array:
    """Softmax cross-entropy with smoothed labels.

    -sum_c ((1 - smoothing) 1[c = y] + smoothing / C) log p_c, p = softmax(z)

    Args:
      logits: z [B, C].
      labels: y [B], integers in 0..C-1.
      smoothing: share of the uniform distribution, in 0..1.

    Returns:
      [B], in nats.

    Raises:
      ValueError: if `smoothing` is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016,
      section 7.
    """
    check_arrays(logits, labels=labels)
    check_number('smoothing', smoothing, 0, 1, 'in 0..1')
    logits = as_float(logits)
    targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    # optax's form for integer labels subtracts two numbers as large as the logits, which loses
    # precision, and its gradient is a scatter.
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, smoothing))
