"""Depthwise convolution, as a sum of shifted images."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxfed.models.ops.chunks import sum_over_chunks
from jaxfed.models.ops.lowering import Pads
from jaxfed.types import Array


def depthwise_conv(x: Array, w: Array, strides: Sequence[int], pads: Pads) -> Array:
    """Convolves each channel of x [B, H, W, channels] with w [height, width, 1, channels].

    y[b, i, j, c] = sum_{k, l} x[b, s_1 i + k, s_2 j + l, c] w[k, l, 0, c], strides s

    This elementwise arithmetic, which XLA fuses, remains elementwise under derivatives and
    `jax.vmap`.
    """
    convolve = partial(_shifted_sum, tuple(strides), pads)

    conv = jax.custom_vjp(convolve)

    def backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        x, w = residuals
        (dx,) = jax.vjp(lambda x: convolve(x, w), x)[1](g)

        def dw(x: Array, g: Array) -> Array:
            return jax.vjp(lambda w: convolve(x, w), w)[1](g)[0]

        # In chunks, because each element of the kernel has a product as large as the images.
        return dx, sum_over_chunks(dw, x, g, pixels=g.shape[1] * g.shape[2])

    conv.defvjp(lambda x, w: (conv(x, w), (x, w)), backward)
    return conv(x, w)


def _shifted_sum(strides: tuple[int, ...], pads: Pads, x: Array, w: Array) -> Array:
    """Sums the shifted images, each times its element of the kernel."""
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    last = [x.shape[1 + i] - w.shape[i] + 1 for i in range(2)]
    terms = [
        x[:, i : i + last[0] : strides[0], j : j + last[1] : strides[1]] * w[i, j, 0]
        for i in range(w.shape[0])
        for j in range(w.shape[1])
    ]
    return sum(terms[1:], terms[0])
