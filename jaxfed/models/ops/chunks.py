"""Work on a few examples at a time, so that what it copies stays in the processor's cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.types import Array

# Places of images at a time. Fewer make matrix products short, more leave the cache.
PLACES = 1024


def sum_over_chunks(
    function: Callable[..., Array], *arrays: Array, places: int, platform: str | None = None
) -> Array:
    """Computes a sum over examples, on the CPU a few of them at a time.

    Args:
      function: arrays [n, ...] -> the sum over these n examples.
      *arrays: [B, ...] each.
      places: of an image.
      platform: 'cpu', 'gpu', 'tpu' ...; None for the default backend's.

    Returns:
      function(*arrays).
    """
    batch = arrays[0].shape[0]
    size = -(-PLACES // max(places, 1))
    turns, rest = batch // size, batch % size
    if turns < 2 or (platform or jax.default_backend()) != 'cpu':
        return function(*arrays)

    told = jax.eval_shape(function, *(array[:size] for array in arrays))
    exact = jnp.promote_types(told.dtype, jnp.float32)  # bfloat16 is too coarse to add up in

    def add(turn: Array, total: Array) -> Array:
        own = (lax.dynamic_slice_in_dim(array, turn * size, size) for array in arrays)
        return total + function(*own).astype(exact)

    if rest:
        first = function(*(array[batch - rest :] for array in arrays)).astype(exact)
    else:
        first = jnp.zeros(told.shape, exact)
    return lax.fori_loop(0, turns, add, first).astype(told.dtype)


def map_over_chunks(
    function: Callable[..., Array], *arrays: Array, places: int, platform: str | None = None
) -> Array:
    """Computes something of each example, on the CPU a few of them at a time.

    The result is then in memory before anyone reads it. Otherwise the compiler computes it anew in
    the order in which a matrix product reads it, column by column, which takes ten times as long.

    Args:
      function: the rows [...] of the arrays that belong to an example -> [...].
      *arrays: [B, ...] each.
      places: of an image.
      platform: 'cpu', 'gpu', 'tpu' ...; None for the default backend's.

    Returns:
      [B, ...], jax.vmap(function)(*arrays).
    """
    size = -(-PLACES // max(places, 1))
    if arrays[0].shape[0] < 2 * size or (platform or jax.default_backend()) != 'cpu':
        return jax.vmap(function)(*arrays)
    return lax.map(lambda rows: function(*rows), arrays, batch_size=size)
