"""Convolution of each channel on its own, as a sum of shifted images."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxfed.models.ops.chunks import sum_over_chunks
from jaxfed.models.ops.fourier import Pads
from jaxfed.types import Array


def depthwise_conv(x: Array, w: Array, strides: Sequence[int], pads: Pads) -> Array:
    """Convolves every channel with a kernel of its own.

    y[b, i, j, c] = sum_{k, l} x[b, s_1 i + k, s_2 j + l, c] w[k, l, 0, c]

    There is no product of matrices in it, only arithmetic on elements, which XLA fuses, and which
    derivatives and mapping over kernels leave as it is.

    Args:
      x: [B, H, W, channels].
      w: [height, width, 1, channels].
      strides: s_1 and s_2.
      pads: zeros (low, high) along height and width.

    Returns:
      [B, H', W', channels].
    """
    return _depthwise(tuple(strides), pads, x, w)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _depthwise(strides: tuple[int, ...], pads: Pads, x: Array, w: Array) -> Array:
    return _shifted_sum(strides, pads, x, w)


def _shifted_sum(strides: tuple[int, ...], pads: Pads, x: Array, w: Array) -> Array:
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    last = [x.shape[1 + i] - w.shape[i] + 1 for i in range(2)]
    terms = [
        x[:, i : i + last[0] : strides[0], j : j + last[1] : strides[1]] * w[i, j, 0]
        for i in range(w.shape[0])
        for j in range(w.shape[1])
    ]
    return sum(terms[1:], terms[0])


def _forward(
    strides: tuple[int, ...], pads: Pads, x: Array, w: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _depthwise(strides, pads, x, w), (x, w)


def _backward(
    strides: tuple[int, ...], pads: Pads, kept: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    x, w = kept
    convolve = partial(_shifted_sum, strides, pads)
    (dx,) = jax.vjp(lambda x: convolve(x, w), x)[1](g)

    def dw(x: Array, g: Array) -> Array:
        return jax.vjp(lambda w: convolve(x, w), w)[1](g)[0]

    # A product for each element of the kernel, as large as the image: not all images at once.
    return dx, sum_over_chunks(dw, x, g, places=g.shape[1] * g.shape[2])


_depthwise.defvjp(_forward, _backward)
