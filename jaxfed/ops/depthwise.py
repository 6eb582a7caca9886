"""Convolution of each channel on its own, as a sum of shifted images."""

from collections.abc import Sequence

import jax.numpy as jnp

from jaxfed.ops.fourier import Pads
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
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    last = [x.shape[1 + i] - w.shape[i] + 1 for i in range(2)]
    terms = [
        x[:, i : i + last[0] : strides[0], j : j + last[1] : strides[1]] * w[i, j, 0]
        for i in range(w.shape[0])
        for j in range(w.shape[1])
    ]
    return sum(terms[1:], terms[0])
