"""Max-pooling with an explicit backward pass."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxfed.types import Array


def max_pool(x: Array, size: int = 2) -> Array:
    """Computes the maxima [B, H // size, W // size, channels] of disjoint windows.

    As in PyTorch, it drops rows and columns that fill no window, and of equal maxima the first in
    row-major order receives the whole gradient. XLA's gradient (select-and-scatter) does the same,
    but is several times slower on the CPU.
    """
    if x.ndim != 4 or size < 1 or min(x.shape[1:3]) < size:
        raise ValueError(
            f'x of shape {x.shape} must be [B, H, W, channels] with H and W at least size={size}.'
        )
    shape = x.shape

    def forward(x: Array) -> tuple[Array, Array]:
        height, width = (side // size * size for side in shape[1:3])
        return first_maximum(
            [x[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]
        )

    @jax.custom_vjp
    def pool(x: Array) -> Array:
        return forward(x)[0]

    def backward(position: Array, g: Array) -> tuple[Array]:
        batch, height, width, channels = g.shape
        index = jnp.arange(size * size, dtype=jnp.uint8).reshape(1, 1, size, 1, size, 1)
        is_maximum = position[:, :, None, :, None, :] == index
        dx = jnp.where(is_maximum, g[:, :, None, :, None, :], 0)
        dx = dx.reshape(batch, height * size, width * size, channels)
        dropped = [(0, full - side) for full, side in zip(shape, dx.shape, strict=True)]
        return (jnp.pad(dx, dropped),)

    pool.defvjp(forward, backward)
    return pool(x)


def first_maximum(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Computes the elementwise maximum and the uint8 index of the first array with this value."""
    maximum, position = arrays[0], jnp.zeros(arrays[0].shape, jnp.uint8)
    for index, array in enumerate(arrays[1:], start=1):
        position = jnp.where(array > maximum, jnp.uint8(index), position)
        maximum = jnp.maximum(array, maximum)
    return maximum, position
