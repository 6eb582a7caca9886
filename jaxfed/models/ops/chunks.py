"""Sum over a few examples at a time on the CPU, so that intermediate values stay in the cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.internal.backend import on_cpu
from jaxfed.types import Array

# Pixels in a chunk. Fewer make matrix products short, more exceed the cache.
PIXELS = 1024


def sum_over_chunks(function: Callable[..., Array], *arrays: Array, pixels: int) -> Array:
    """Computes function(*arrays), a sum over examples [B, ...] with this number of pixels."""
    size = -(-PIXELS // max(pixels, 1))
    chunks, rest = divmod(arrays[0].shape[0], size)
    if chunks < 2 or not on_cpu():
        return function(*arrays)

    result = jax.eval_shape(function, *(array[:size] for array in arrays))
    exact = jnp.promote_types(result.dtype, jnp.float32)  # sums of bfloat16 lose small terms

    def add(i: Array, total: Array) -> Array:
        chunk = (lax.dynamic_slice_in_dim(array, i * size, size) for array in arrays)
        return total + function(*chunk).astype(exact)

    if rest:
        first = function(*(array[-rest:] for array in arrays)).astype(exact)
    else:
        first = jnp.zeros(result.shape, exact)
    return lax.fori_loop(0, chunks, add, first).astype(result.dtype)
