"""A convolution and the 2x2 max-pool after it, as one operation.

Only the maxima are needed. So the convolution orders its results such that the four pixels of a
window are four long runs of memory, and nothing restores the usual order.
"""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.models.ops.conv import Padding, conv_general_dilated, explicit_padding
from jaxfed.models.ops.fourier import fourier_conv
from jaxfed.models.ops.lowering import LAYOUT, Pads, check_lowering, lowering
from jaxfed.models.ops.pool import first_maximum, max_pool
from jaxfed.types import Array

# With at most this many channels of the result, products of 2x2 blocks are too narrow.
FEW = 8


def conv_max_pool(x: Array, w: Array, padding: Padding, *, use: str | None = None) -> Array:
    """Convolves x [B, H, W, in] with w [kh, kw, in, out], stride 1, and max-pools 2x2 windows.

    It drops a last row or column that fills no window; of equal maxima the first in row-major
    order receives the whole gradient.
    """
    image, kernel = x.shape[1:3], w.shape
    use = pooled_lowering(x, w, use=use)
    pads = explicit_padding(image, kernel[:2], (1, 1), padding)
    sides = [image[i] + sum(pads[i]) - kernel[i] + 1 for i in range(2)]
    if min(sides) < 2:
        raise ValueError(
            f'x of shape {x.shape} and w of shape {w.shape} give a result of {sides[0]} x '
            f'{sides[1]}, which is smaller than a window of 2 x 2.'
        )
    if use == 'blocks':
        return _blocks(x, w, pads)
    if use == 'fourier':
        return _fourier(x, w, pads)
    return max_pool(conv_general_dilated(x, w, (1, 1), pads, dimension_numbers=LAYOUT, use=use))


def pooled_lowering(x: Array, w: Array, *, use: str | None = None) -> str:
    """Returns the lowering of `conv_max_pool`, one of `LOWERINGS`."""
    check_lowering(use)
    return use or lowering(x.shape[1:3], w.shape, batch=len(x), pooled=True)


def _blocks(x: Array, w: Array, pads: Pads) -> Array:
    """Convolves blocks of 2x2 or 2x4 pixels; the channels of the result are the pixels of a block.

    Few channels become four or eight times as many, which is faster in matrix products. Along an
    axis, b pixels see r blocks, which takes b r / k of the arithmetic.
    """
    batch, *image, channels = x.shape
    *kernel, _, out = w.shape
    windows = [(image[i] + sum(pads[i]) - kernel[i] + 1) // 2 for i in range(2)]
    # Measured for 5x5; blocks of 2x4 double the arithmetic of smaller kernels.
    block = (2, 4 if channels > 1 and out <= FEW and kernel[1] >= 5 else 2)
    results = [-(-2 * windows[i] // block[i]) for i in range(2)]  # blocks of the result
    reach = [-(-(kernel[i] - 1) // block[i]) + 1 for i in range(2)]  # blocks that one sees
    blocks = [results[i] + reach[i] - 1 for i in range(2)]
    # Negative last pads remove rows or columns that the result does not need.
    edges = [(pads[i][0], block[i] * blocks[i] - image[i] - pads[i][0], 0) for i in range(2)]
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *edges, (0, 0, 0)))
    x = x.reshape(batch, blocks[0], block[0], blocks[1], block[1], channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, *blocks, prod(block) * channels)
    if channels < 4:
        # Otherwise a GPU reorders pixels, number by number, again for each block that sees them.
        x = lax.optimization_barrier(x)

    def shift(*low: int) -> Array:
        """Pads the kernel such that it computes the pixel `low` of a block."""
        edges = [(low[i], block[i] * reach[i] - kernel[i] - low[i]) for i in range(2)]
        return jnp.pad(w, (*edges, (0, 0), (0, 0)))

    # By place in the window, then by window.
    columns = [range(column, block[1], 2) for column in range(2)]
    shifted = [shift(row, c) for row in range(2) for place in columns for c in place]
    w = jnp.stack(shifted, axis=3)
    w = w.reshape(reach[0], 2, reach[1], block[1], channels, len(shifted) * out)
    w = w.transpose(0, 2, 1, 3, 4, 5).reshape(*reach, x.shape[3], len(shifted) * out)
    y = conv_general_dilated(x, w, (1, 1), 'VALID', dimension_numbers=LAYOUT, use='patches')
    y = _largest(False, y).reshape(batch, results[0], results[1] * block[1] // 2, out)
    return y[:, :, : windows[1]]


def _fourier(x: Array, w: Array, pads: Pads) -> Array:
    """Convolves by Fourier transform, which can return its results in any order."""
    half = [(x.shape[1 + i] + sum(pads[i]) - w.shape[i] + 1) // 2 for i in range(2)]
    rows, columns = (tuple(p + 2 * q for p in range(2) for q in range(n)) for n in half)
    y = fourier_conv(x, w, pads, rows, columns)
    y = y.reshape(2, half[1], 2, half[0], *y.shape[2:])
    return _largest(True, y).transpose(2, 1, 0, 3)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _largest(leading: bool, y: Array) -> Array:
    """Computes the maximum over the four pixels of a window.

    If `leading`, y [2, W, 2, H, B, out] -> [W, H, B, out]; else y [..., 4 out] -> [..., out].
    """
    return _largest_forward(leading, y)[0]


def _largest_forward(leading: bool, y: Array) -> tuple[Array, Array]:
    if leading:
        return first_maximum([y[column, :, row] for row in range(2) for column in range(2)])
    return first_maximum(jnp.split(y, 4, axis=-1))


def _largest_backward(leading: bool, position: Array, g: Array) -> tuple[Array]:
    # Otherwise a GPU sums g, for the bias, in the kernel that writes these pixels, which is slow.
    g = lax.optimization_barrier(g)
    pixels = [jnp.where(position == index, g, 0) for index in range(4)]
    if not leading:
        return (jnp.concatenate(pixels, axis=-1),)
    by_column = [jnp.stack([pixels[column], pixels[2 + column]], axis=1) for column in range(2)]
    return (jnp.stack(by_column),)


_largest.defvjp(_largest_forward, _largest_backward)
