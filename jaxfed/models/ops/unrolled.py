"""The lowering 'unrolled': one convolution for each kernel, with explicit gradients.

`jax.vmap` over kernels makes a grouped convolution, whose gradients are very slow. On the CPU a
convolution inside a loop is fast only in the layout NHWC, HWIO, NHWC, which the automatic weight
gradient does not have. In this module the convolution and its input gradient are convolutions in
that layout, the weight gradient is a sum of matrix products, and a batching rule defines `jax.vmap`
over each operand.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.models.ops.chunks import sum_over_chunks
from jaxfed.models.ops.lowering import LAYOUT, Pads
from jaxfed.types import Array

Bilinear = Callable[[Array, Array], Array]


class _Geometry(NamedTuple):
    """The static part of a convolution; pairs are along height and width."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: Pads
    precision: Any

    @property
    def outputs(self) -> list[int]:
        """Height and width of the result."""
        image, kernel, strides, pads, _ = self
        return [
            (image[i] + sum(pads[i]) - kernel[i]) // strides[i] + 1 if image[i] else 0
            for i in range(2)
        ]

    @property
    def spread(self) -> list[int]:
        """Height and width of a gradient of the result that is dilated by the strides."""
        return [(self.outputs[i] - 1) * self.strides[i] + 1 for i in range(2)]


def unrolled_conv(
    x: Array, w: Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> Array:
    """Convolves x [B, H, W, in] with w [height, width, in, out]."""
    if precision is None:  # the gradients are traced after a context of the default has ended
        config: Any = jax.config
        precision = config.jax_default_matmul_precision
    return _differentiable(_Geometry(x.shape[1:3], w.shape[:2], strides, pads, precision))(x, w)


@cache
def _differentiable(geometry: _Geometry) -> Bilinear:
    """Makes a convolution y = conv(x, w) from itself and its gradients dx(g, w) and dw(x, g).

    Each is linear in both operands, and the gradients of each are the other two.
    """
    image, kernel, strides, pads, precision = geometry
    low, spread = [pads[i][0] for i in range(2)], geometry.spread
    dx_pads = [(kernel[i] - 1 - low[i], image[i] + low[i] - spread[i]) for i in range(2)]

    # `folds` are the axes of each operand and of the result that grow together.
    @partial(_batched, folds=((0, 0), (3, 3)))
    def forward(x: Array, w: Array) -> Array:
        return _convolve(x, w, strides, pads, (1, 1), precision)

    @partial(_batched, folds=((0, 0), (2, 3)))
    def input_gradient(g: Array, w: Array) -> Array:
        w = w[::-1, ::-1].swapaxes(2, 3)
        return _convolve(g, w, (1, 1), dx_pads, strides, precision)

    @partial(_batched, folds=((3, 2), (3, 3)))
    def weight_gradient(x: Array, g: Array) -> Array:
        # The shifted copies of all images would be far larger than the cache.
        pixels = geometry.outputs[0] * geometry.outputs[1]
        return sum_over_chunks(partial(_weight_gradient, geometry), x, g, pixels=pixels)

    # Each forward pass calls the function itself, for derivatives of higher order.
    conv, dx, dw = map(jax.custom_vjp, (forward, input_gradient, weight_gradient))
    conv.defvjp(lambda x, w: (conv(x, w), (x, w)), lambda xw, g: (dx(g, xw[1]), dw(xw[0], g)))
    dx.defvjp(lambda g, w: (dx(g, w), (g, w)), lambda gw, x: (conv(x, gw[1]), dw(x, gw[0])))
    dw.defvjp(lambda x, g: (dw(x, g), (x, g)), lambda xg, w: (dx(xg[1], w), conv(xg[0], w)))
    return conv


def _convolve(
    x: Array,
    w: Array,
    strides: tuple[int, ...],
    pads: Sequence[tuple[int, int]],
    dilation: tuple[int, ...],
    precision: Any,
) -> Array:
    """Convolves x, dilated and padded, with w in the fast layout."""
    return lax.conv_general_dilated(
        x, w, strides, pads, lhs_dilation=dilation, dimension_numbers=LAYOUT, precision=precision
    )


def _weight_gradient(geometry: _Geometry, x: Array, g: Array) -> Array:
    """Computes the gradient [height, width, in, out] of the kernel by matrix products."""
    _, kernel, strides, pads, precision = geometry
    outputs, (rows, columns) = geometry.outputs, geometry.spread
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)))
    channels, out = x.shape[3], g.shape[3]
    shifted = [x[:, :, j : j + columns : strides[1]] for j in range(kernel[1])]
    wide = jnp.concatenate(shifted, axis=3)  # the receptive fields' rows

    tall = outputs[0] >= 8 and kernel[0] > 1 and strides[0] == 1
    if tall and out <= channels * kernel[1]:
        # All pixels in one product: x shifted by columns with g shifted by rows. g, the narrower
        # of the two, has a copy for every row of the kernel.
        edge = kernel[0] - 1
        g = jnp.pad(g, ((0, 0), (edge, edge), (0, 0), (0, 0)))
        down = [g[:, edge - i : edge - i + x.shape[1]] for i in range(kernel[0])]
        left, right = wide.reshape(-1, wide.shape[3]), jnp.concatenate(down, axis=3)
        dw = jnp.matmul(left.T, right.reshape(-1, kernel[0] * out), precision=precision)
        return dw.reshape(kernel[1], channels, kernel[0], out).transpose(2, 0, 1, 3)

    def product(i: int) -> Array:
        fields = wide[:, i : i + rows : strides[0]].reshape(-1, wide.shape[3])
        return jnp.matmul(fields.T, g.reshape(-1, out), precision=precision)

    # One product for each row of the kernel: the pixels under it with the gradient of each pixel.
    dw = jnp.stack([product(i) for i in range(kernel[0])])
    return dw.reshape(*kernel, channels, out)


def _batched(function: Bilinear, *, folds: tuple[tuple[int, int], tuple[int, int]]) -> Bilinear:
    """Adds a batching rule to a bilinear function.

    `folds` holds, for each operand, its axis and the axis of the result that grow together. If
    `jax.vmap` maps over one operand, the rule folds the mapped axis into them, for one large
    convolution. If it maps over both, the rule unrolls the function.
    """
    batched = jax.custom_batching.custom_vmap(function)

    @batched.def_vmap
    def rule(size: int, mapped: list[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if all(mapped):
            return jnp.stack([batched(a[i], b[i]) for i in range(size)]), True
        axis, out_axis = folds[0] if mapped[0] else folds[1]
        operands = (_fold(a, axis), b) if mapped[0] else (a, _fold(b, axis))
        return _unfold(batched(*operands), out_axis, size), True

    return batched


def _fold(x: Array, axis: int) -> Array:
    """Merges the leading axis into `axis` of the rest."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _unfold(x: Array, axis: int, size: int) -> Array:
    """Undoes `_fold`."""
    x = x.reshape(*x.shape[:axis], size, -1, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)
