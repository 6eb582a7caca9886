"""Work on a few examples at a time on the CPU, so that intermediate values stay in the cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.types import Array

# Places of images in a chunk. Fewer make matrix products short, more leave the cache.
PLACES = 1024


def sum_over_chunks(
    function: Callable[..., Array], *arrays: Array, places: int, platform: str | None = None
) -> Array:
    """Computes function(*arrays), a sum over examples [B, ...], for images of so many places."""
    batch = arrays[0].shape[0]
    size = -(-PLACES // max(places, 1))
    chunks, rest = batch // size, batch % size
    if chunks < 2 or (platform or jax.default_backend()) != 'cpu':
        return function(*arrays)

    result = jax.eval_shape(function, *(array[:size] for array in arrays))
    exact = jnp.promote_types(result.dtype, jnp.float32)  # sums of bfloat16 lose small terms

    def add(i: Array, total: Array) -> Array:
        chunk = (lax.dynamic_slice_in_dim(array, i * size, size) for array in arrays)
        return total + function(*chunk).astype(exact)

    if rest:
        first = function(*(array[batch - rest :] for array in arrays)).astype(exact)
    else:
        first = jnp.zeros(result.shape, exact)
    return lax.fori_loop(0, chunks, add, first).astype(result.dtype)


def map_over_chunks(
    function: Callable[..., Array], *arrays: Array, places: int, platform: str | None = None
) -> Array:
    """Computes jax.vmap(function)(*arrays) over examples [B, ...].

    The result is in memory before it is read. Otherwise the compiler would recompute it in the
    order in which a matrix product reads it, column by column, which takes ten times as long.
    """
    size = -(-PLACES // max(places, 1))
    if arrays[0].shape[0] < 2 * size or (platform or jax.default_backend()) != 'cpu':
        return jax.vmap(function)(*arrays)
    return lax.map(lambda rows: function(*rows), arrays, batch_size=size)
