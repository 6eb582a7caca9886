"""FedDecorr: the correlations of the features over a batch."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._softmax import as_float
from jaxfed.types import Array

_SMALLEST = 1e-8  # added to variances, as in the code of FedDecorr


def decorrelation(features: ArrayLike, *, where: ArrayLike | None = None) -> Array:
    """Mean square of the correlations of two different features.

    1 / (F (F - 1)) sum_{i != j} K_ij^2, K the correlation matrix of f over the examples

    Args:
      features: f [B, F].
      where: [B], False for examples that do not count; None for all.

    Returns:
      []; 0 for a single example.

    Raises:
      ValueError: if the features are no matrix or `where` is not [B].

    Reference:
      Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
      Federated Learning, ICLR 2023, section 5.
    """
    shape = jnp.shape(features)
    if len(shape) != 2:
        raise ValueError(f'features has shape {shape}; it must be [B, F].')
    if where is not None and jnp.shape(where) != shape[:1]:
        raise ValueError(
            f'where has shape {jnp.shape(where)}; it must be {shape[:1]} for features of shape '
            f'{shape}.'
        )
    x = as_float(features)
    counts = jnp.ones(shape[:1], bool) if where is None else jnp.asarray(where, bool)
    x = jnp.where(counts[:, None], x, 0.0)
    number = jnp.sum(counts)
    centred = jnp.where(counts[:, None], x - jnp.sum(x, axis=0) / jnp.maximum(number, 1), 0.0)
    variance = jnp.sum(centred**2, axis=0) / jnp.maximum(number - 1, 1)
    scaled = centred / jnp.sqrt(variance + _SMALLEST)
    correlation = scaled.T @ scaled / jnp.maximum(number - 1, 1)
    # Not read from the matrix: the gradient of that is a scatter, a quarter of the bytes of a
    # step that was compiled for a TPU.
    diagonal = jnp.sum(scaled**2, axis=0) / jnp.maximum(number - 1, 1)
    off_diagonal = jnp.sum(correlation**2) - jnp.sum(diagonal**2)
    return off_diagonal / max(shape[1] * (shape[1] - 1), 1)
