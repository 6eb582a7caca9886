"""Two-dimensional convolution that remains fast when `jax.vmap` maps over its kernels."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxfed.models.ops.depthwise import depthwise_conv
from jaxfed.models.ops.fourier import fourier_conv
from jaxfed.models.ops.lowering import LAYOUT, Pads, check_lowering, lowering
from jaxfed.models.ops.unrolled import unrolled_conv
from jaxfed.types import Array

Padding = str | Sequence[tuple[int, int]]  # as for `jax.lax.conv_general_dilated`


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    *,
    precision: Any = None,
    use: str | None = None,
    **options: Any,
) -> Array:
    """Convolves as `jax.lax.conv_general_dilated`; `use` fixes the lowering.

    The fast lowerings cover two-dimensional convolutions in the layout NHWC, HWIO, NHWC with any
    stride and padding, dense or depthwise; `jax.lax.conv_general_dilated` computes all others.
    They have reverse-mode derivatives of every order; 'unrolled' has no forward mode.
    """
    strides = tuple(window_strides)
    use = conv_lowering(lhs, rhs, strides, use=use, **options)
    if use == 'grouped':
        return lax.conv_general_dilated(
            lhs, rhs, window_strides, padding, precision=precision, **options
        )
    image, kernel = lhs.shape[1:3], rhs.shape[:2]
    pads = explicit_padding(image, kernel, strides, padding)
    if use == 'depthwise':
        return depthwise_conv(lhs, rhs, strides, pads)
    if use == 'patches':
        return _patches_conv(lhs, rhs, strides, pads, precision)
    if use == 'fourier':
        sides = (image[i] + sum(pads[i]) - kernel[i] + 1 for i in range(2))
        rows, columns = (tuple(range(0, n, strides[i])) for i, n in enumerate(sides))
        return fourier_conv(lhs, rhs, pads, rows, columns).transpose(2, 1, 0, 3)
    return unrolled_conv(lhs, rhs, strides, pads, precision)


def conv_lowering(
    lhs: Array,
    rhs: Array,
    strides: Sequence[int],
    *,
    use: str | None = None,
    precision: Any = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **other: Any,
) -> str:
    """Returns the lowering of `conv_general_dilated`: one of `LOWERINGS`, or 'depthwise'."""
    del precision
    check_lowering(use)
    depthwise = feature_group_count == lhs.shape[-1] == rhs.shape[-1] > 1
    fast = (
        use != 'grouped'
        and lhs.ndim == rhs.ndim == 4
        and all(step == 1 for step in (*(lhs_dilation or ()), *(rhs_dilation or ())))
        and batch_group_count == 1
        and (feature_group_count == 1 or depthwise)
        and lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        == lax.conv_dimension_numbers(lhs.shape, rhs.shape, LAYOUT)
        and lhs.shape[3] == rhs.shape[2] * feature_group_count
        and all(option is None for option in other.values())
    )
    if not fast:
        return 'grouped'
    use = use or lowering(lhs.shape[1:3], rhs.shape, strides)
    return 'depthwise' if depthwise and use != 'grouped' else use


def explicit_padding(
    image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Padding
) -> Pads:
    """Returns the zeros (low, high) along height and width."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(image, kernel, strides, padding)
    (top, bottom), (left, right) = padding
    return (int(top), int(bottom)), (int(left), int(right))


def _patches_conv(
    x: Array, w: Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> Array:
    """Convolves by one matrix product with the receptive field of each pixel of the result."""
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)))
    kernel = w.shape[:2]
    last = [x.shape[1 + i] - kernel[i] + 1 for i in range(2)]
    fields = [
        x[:, i : i + last[0] : strides[0], j : j + last[1] : strides[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    stacked = jnp.concatenate(fields, axis=3)
    if len(fields) > 1:
        # Otherwise the compiler copies element by element, and again for the gradient.
        stacked = lax.optimization_barrier(stacked)
    # A product of two axes; its gradient would be slow with four.
    *places, length = stacked.shape
    pixels, kernels = stacked.reshape(prod(places), length), w.reshape(length, w.shape[3])
    return jnp.matmul(pixels, kernels, precision=precision).reshape(*places, w.shape[3])
