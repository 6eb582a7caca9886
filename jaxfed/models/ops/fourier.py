"""Convolution through the discrete Fourier transform, written as matrix products.

With X, W and Y the transforms of image, kernel and result, a convolution is one small complex
matrix product at each frequency, Y = X W: for 5x5 kernels a ninth of the arithmetic. The
transforms are matrix products too, so the whole convolution has the speed of matrix products, and
`jax.vmap` and `jax.grad` need no special rules.

Rows have the frequencies 2 pi u / N. Columns have 2 pi (v + 1/2) / N, for which a real image has
exactly N / 2 complex numbers, without a special case at either end. Values that wrap around change
sign, but the period N is so large that no value of the result wraps around.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxfed.models.ops.lowering import Pads
from jaxfed.types import Array


class _Transform(NamedTuple):
    """The matrices of a convolution of one geometry; F = V U frequencies, parts real, imaginary."""

    columns: np.ndarray  # [V 2, W], image columns -> frequencies
    rows: np.ndarray  # [2 U, 2 H], complex rows -> frequencies
    kernel_real: np.ndarray  # [F 2, kh kw], from both parts of X to the real part of Y
    kernel_imag: np.ndarray  # [F 2, kh kw], to its imaginary part
    back_rows: np.ndarray  # [2 H', 2 U]
    back_columns: np.ndarray  # [W', V 2]


@cache
def _transform(
    image: tuple[int, int],
    kernel: tuple[int, int],
    padding: Pads,
    rows: tuple[int, ...],
    columns: tuple[int, ...],
) -> _Transform:
    periods = [image[i] + max(padding[i]) for i in range(2)]
    u = 2 * np.pi * np.arange(periods[0]) / periods[0]
    half = -(-periods[1] // 2)
    v = 2 * np.pi * (np.arange(half) + 0.5) / (2 * half)
    taps = [np.arange(kernel[i]) - padding[i][0] for i in range(2)]

    def angles(frequency: np.ndarray, pixel: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        angle = np.outer(frequency, pixel)
        return np.cos(angle), np.sin(angle)

    cos, sin = angles(v, range(image[1]))
    forth_columns = np.stack([cos, -sin], 1).reshape(-1, image[1])
    cos, sin = angles(u, range(image[0]))
    forth_rows = np.block([[cos, sin], [-sin, cos]])

    phase = np.add.outer(np.outer(v, taps[1]), np.outer(u, taps[0]))  # [V, kw, U, kh]
    phase = phase.transpose(0, 2, 3, 1).reshape(half * periods[0], -1)
    cos, sin = np.cos(phase), np.sin(phase)
    kernel_real = np.stack([cos, -sin], 1).reshape(-1, cos.shape[1])
    kernel_imag = np.stack([sin, cos], 1).reshape(-1, cos.shape[1])

    cos, sin = angles(u, rows)
    back_rows = np.block([[cos.T, -sin.T], [sin.T, cos.T]])
    cos, sin = angles(v, columns)
    back_columns = np.stack([cos, -sin], 1).reshape(-1, len(columns)).T / (half * periods[0])
    return _Transform(forth_columns, forth_rows, kernel_real, kernel_imag, back_rows, back_columns)


def fourier_conv(
    x: Array, w: Array, padding: Pads, rows: tuple[int, ...], columns: tuple[int, ...]
) -> Array:
    """Convolves x [B, H, W, in] with w [kh, kw, in, out], stride 1, to [columns, rows, B, out].

    y[o] = sum_j x[o + j - low] w[j], for `rows` and `columns` o in their order
    """
    batch, *image, channels = x.shape
    *kernel, _, out = w.shape
    dtype = jnp.result_type(x, w)
    exact = jnp.promote_types(dtype, jnp.float32)  # bfloat16 is too imprecise for the transforms
    t = _transform(tuple(image), tuple(kernel), padding, rows, columns)
    t = _Transform(*(matrix.astype(exact) for matrix in t))
    x, w = x.astype(exact), w.astype(exact)
    v, u = t.columns.shape[0] // 2, t.rows.shape[0] // 2

    def along_rows(matrix: np.ndarray, z: Array) -> Array:
        """Multiplies every column frequency, [v, 2 n, B c] -> [v, 2 m, B c]."""
        return jnp.matmul(jnp.broadcast_to(matrix, (v, *matrix.shape)), z)

    z = jnp.matmul(t.columns, x.transpose(2, 1, 0, 3).reshape(image[1], -1))
    z = along_rows(t.rows, z.reshape(v, 2 * image[0], -1)).reshape(v, 2, u, batch, channels)
    z = jnp.concatenate([z[:, 0], z[:, 1]], axis=-1).reshape(v * u, batch, 2 * channels)

    def product(matrix: np.ndarray) -> Array:
        """Computes the real or the imaginary part of X W."""
        spread = jnp.matmul(matrix, w.reshape(matrix.shape[1], -1))
        return jnp.matmul(z, spread.reshape(v * u, 2 * channels, out)).reshape(v, u, -1)

    y = jnp.concatenate([product(t.kernel_real), product(t.kernel_imag)], axis=1)
    y = jnp.matmul(t.back_columns, along_rows(t.back_rows, y).reshape(2 * v, -1))
    return y.reshape(len(columns), len(rows), batch, out).astype(dtype)
