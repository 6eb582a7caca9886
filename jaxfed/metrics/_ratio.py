"""Division with a defined result for a denominator of 0."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array


def ratio(numerator: ArrayLike, denominator: Array, otherwise: ArrayLike) -> Array:
    """Divides where the denominator is positive, without a NaN in the gradient elsewhere."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), otherwise)
