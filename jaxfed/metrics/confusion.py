"""Predictions: the confusion matrix, and the share of each class."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array


@partial(jax.jit, static_argnums=2)
def confusion_matrix(y: ArrayLike, predicted: ArrayLike, num_classes: int) -> Array:
    """Counts examples by their class and the predicted one.

    Args:
      y: [m] int32, true classes.
      predicted: [m] int32.
      num_classes: C.

    Returns:
      [C, C] int32, rows are true classes, columns predicted ones.
    """
    pairs = jnp.asarray(y) * num_classes + jnp.asarray(predicted)
    counts = jnp.bincount(pairs, length=num_classes**2)
    return counts.reshape(num_classes, num_classes).astype(jnp.int32)


@partial(jax.jit, static_argnums=1)
def prediction_share(predicted: ArrayLike, num_classes: int) -> Array:
    """Share of each class among the predictions.

    Args:
      predicted: [m] int32.
      num_classes: C.

    Returns:
      [C], in 0..1, with sum 1.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, figure 2.
    """
    predicted = jnp.asarray(predicted)
    return jnp.bincount(predicted, length=num_classes) / predicted.shape[0]
