"""Max-pooling whose backward pass is written down."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxfed.types import Array


def max_pool(x: Array, size: int = 2) -> Array:
    """Takes the maximum of every size x size window, the windows side by side.

    Rows and columns that fill no window are dropped, as in PyTorch. Of equal maxima the first in
    row-major order takes the whole gradient, as in PyTorch; XLA's own gradient
    (select-and-scatter) does the same but is several times slower on the CPU.

    Args:
      x: [B, H, W, channels].
      size: side of a window.

    Returns:
      [B, H // size, W // size, channels].

    Raises:
      ValueError: `x` is not four-dimensional or smaller than a window.
    """
    if x.ndim != 4 or size < 1 or min(x.shape[1:3]) < size:
        raise ValueError(
            f'x of shape {x.shape} must be [B, H, W, channels] with H and W at least size={size}.'
        )
    return _max_pool(size, x.shape, x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _max_pool(size: int, shape: tuple[int, ...], x: Array) -> Array:
    return _forward(size, shape, x)[0]


def _forward(size: int, shape: tuple[int, ...], x: Array) -> tuple[Array, Array]:
    """The maxima, and which element of its window each one is."""
    height, width = (side // size * size for side in shape[1:3])
    windows = [x[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]
    maximum, position = windows[0], jnp.zeros(windows[0].shape, jnp.uint8)
    for index, window in enumerate(windows[1:], start=1):
        position = jnp.where(window > maximum, jnp.uint8(index), position)
        maximum = jnp.maximum(window, maximum)
    return maximum, position


def _backward(size: int, shape: tuple[int, ...], position: Array, g: Array) -> tuple[Array]:
    batch, height, width, channels = g.shape
    index = jnp.arange(size * size, dtype=jnp.uint8).reshape(1, 1, size, 1, size, 1)
    taken = position[:, :, None, :, None, :] == index
    dx = jnp.where(taken, g[:, :, None, :, None, :], 0)
    dx = dx.reshape(batch, height * size, width * size, channels)
    dropped = [(0, full - side) for full, side in zip(shape, dx.shape, strict=True)]
    return (jnp.pad(dx, dropped),)


_max_pool.defvjp(_forward, _backward)
