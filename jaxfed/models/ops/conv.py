"""Two-dimensional convolution that stays fast when its kernels are mapped over.

`jax.vmap` over kernels makes a grouped convolution, whose gradients are very slow, and on the CPU
a convolution inside a loop leaves the fast path unless its dimension numbers are NHWC, HWIO, NHWC,
which those of the automatic weight gradient are not. Here the convolution and its input gradient
are convolutions in that one layout, the weight gradient is a sum of matrix products, and a
batching rule says what mapping over each of their operands means.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.models.ops.chunks import sum_over_chunks
from jaxfed.models.ops.depthwise import depthwise_conv
from jaxfed.models.ops.fourier import Pads, fourier_conv
from jaxfed.models.ops.lowering import check, lowering
from jaxfed.types import Array

LAYOUT = ('NHWC', 'HWIO', 'NHWC')

Bilinear = Callable[[Array, Array], Array]


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    use: str | None = None,
) -> Array:
    """Convolves as `jax.lax.conv_general_dilated`, fast also where the kernels are mapped over.

    The fast paths cover two-dimensional convolutions in the layout NHWC, HWIO, NHWC with any
    stride and padding, of all channels together or of each on its own. Dilation, other groups,
    layouts and numbers of dimensions, `preferred_element_type` and `out_sharding` go to
    `jax.lax.conv_general_dilated`. They have reverse-mode derivatives of every order; 'unrolled'
    has no forward mode.

    Args:
      lhs: inputs, [B, H, W, in] on the fast path.
      rhs: kernel, [height, width, in, out] on the fast path.
      window_strides: step of the window along H and W.
      padding: 'SAME', 'VALID' or the zeros (low, high) along H and W.
      lhs_dilation: as in `jax.lax.conv_general_dilated`.
      rhs_dilation: as in `jax.lax.conv_general_dilated`.
      dimension_numbers: as in `jax.lax.conv_general_dilated`.
      feature_group_count: as in `jax.lax.conv_general_dilated`.
      batch_group_count: as in `jax.lax.conv_general_dilated`.
      precision: as in `jax.lax.conv_general_dilated`.
      preferred_element_type: as in `jax.lax.conv_general_dilated`.
      out_sharding: as in `jax.lax.conv_general_dilated`.
      use: one of `ops.lowering.LOWERINGS`, instead of what `lowering` chooses.

    Returns:
      [B, H', W', out] on the fast path.

    Raises:
      ValueError: unknown `use`.
    """
    strides = tuple(window_strides)
    use = way(
        lhs,
        rhs,
        strides,
        padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        use=use,
    )
    if use == 'grouped':
        return lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
        )
    image, kernel = lhs.shape[1:3], rhs.shape[:2]
    pads = explicit_padding(image, kernel, strides, padding)
    if use == 'depthwise':
        return depthwise_conv(lhs, rhs, strides, pads)
    if use == 'patches':
        return _patches(lhs, rhs, strides, pads, precision)
    if use == 'fourier':
        sides = (image[i] + sum(pads[i]) - kernel[i] + 1 for i in range(2))
        rows, columns = (tuple(range(0, n, strides[i])) for i, n in enumerate(sides))
        return fourier_conv(lhs, rhs, pads, rows, columns).transpose(2, 1, 0, 3)
    geometry = _Geometry(
        input=image, kernel=kernel, strides=strides, padding=pads, precision=precision
    )
    return _pieces(geometry)[0](lhs, rhs)


def way(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    use: str | None = None,
) -> str:
    """Says how `conv_general_dilated` computes a convolution.

    Args:
      lhs: as there, like all others.
      rhs: see there.
      window_strides: see there.
      padding: see there.
      lhs_dilation: see there.
      rhs_dilation: see there.
      dimension_numbers: see there.
      feature_group_count: see there.
      batch_group_count: see there.
      precision: see there.
      preferred_element_type: see there.
      out_sharding: see there.
      use: see there.

    Returns:
      One of `ops.lowering.LOWERINGS`, 'grouped' for `jax.lax.conv_general_dilated`, or 'depthwise'.

    Raises:
      ValueError: unknown `use`.
    """
    del padding, precision
    check(use)
    depthwise = feature_group_count == lhs.shape[-1] == rhs.shape[-1] > 1
    fast = (
        use != 'grouped'
        and lhs.ndim == rhs.ndim == 4
        and _all_ones(lhs_dilation)
        and _all_ones(rhs_dilation)
        and batch_group_count == 1
        and (feature_group_count == 1 or depthwise)
        and lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        == lax.conv_dimension_numbers(lhs.shape, rhs.shape, LAYOUT)
        and lhs.shape[3] == rhs.shape[2] * feature_group_count
        and preferred_element_type is None
        and out_sharding is None
    )
    if not fast:
        return 'grouped'
    use = use or lowering(lhs.shape[1:3], rhs.shape, tuple(window_strides))
    return 'depthwise' if depthwise and use != 'grouped' else use


def explicit_padding(
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
) -> Pads:
    """Says 'SAME' and 'VALID' in numbers.

    Args:
      image: height and width.
      kernel: height and width.
      strides: step along height and width.
      padding: 'SAME', 'VALID' or numbers, which stay as they are.

    Returns:
      The zeros (low, high) along height and width.
    """
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(image, kernel, strides, padding)
    (top, bottom), (left, right) = padding
    return (int(top), int(bottom)), (int(left), int(right))


def _patches(x: Array, w: Array, strides: tuple[int, ...], pads: Pads, precision: Any) -> Array:
    """One matrix product with all that each place of the result sees."""
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    kernel = w.shape[:2]
    last = [x.shape[1 + i] - kernel[i] + 1 for i in range(2)]
    seen = [
        x[:, i : i + last[0] : strides[0], j : j + last[1] : strides[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return jnp.matmul(jnp.concatenate(seen, axis=3), w.reshape(-1, w.shape[3]), precision=precision)


def _all_ones(dilation: Sequence[int] | None) -> bool:
    return dilation is None or all(step == 1 for step in dilation)


class _Geometry(NamedTuple):
    """All that is static about a convolution."""

    input: tuple[int, ...]  # height, width
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pads
    precision: Any


@cache
def _pieces(geometry: _Geometry) -> tuple[Bilinear, Bilinear, Bilinear]:
    """Makes a convolution y = conv(x, w) and its gradients dx(g, w) and dw(x, g).

    Each is linear in both operands and the gradients of each are the other two.
    """
    sides = range(2)
    inputs, kernel, strides, padding, precision = geometry
    outputs = [
        (inputs[i] + sum(padding[i]) - kernel[i]) // strides[i] + 1 if inputs[i] else 0
        for i in sides
    ]
    spread = [(outputs[i] - 1) * strides[i] + 1 for i in sides]  # of g, dilated by the strides
    low = [padding[i][0] for i in sides]
    dx_padding = [(kernel[i] - 1 - low[i], inputs[i] + low[i] - spread[i]) for i in sides]

    def convolve(x: Array, w: Array, steps: tuple[int, ...], pads: Any, spread: Any) -> Array:
        if w.shape[:2] == (1, 1):  # a matrix product, which leaves what pads and spreads zero
            edges = ((0, 0, 0), *((*pads[i], spread[i] - 1) for i in sides), (0, 0, 0))
            if steps == (1, 1):
                y = jnp.matmul(x, w[0, 0], precision=precision)
                return lax.pad(y, jnp.zeros((), y.dtype), edges)
            x = lax.pad(x, jnp.zeros((), x.dtype), edges)
            return jnp.matmul(x[:, :: steps[0], :: steps[1]], w[0, 0], precision=precision)
        if x.shape[3] < 4:  # three input channels take two to four times as long as four
            extra = 4 - x.shape[3]
            x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, extra)))
            w = jnp.pad(w, ((0, 0), (0, 0), (0, extra), (0, 0)))
        if any(w.shape[i] > x.shape[1 + i] for i in sides) and spread == (1, 1):
            # The compiler swaps a small image and its kernel, which leaves the fast path, unless
            # the padding is done before and out of its sight.
            x = lax.optimization_barrier(jnp.pad(x, ((0, 0), *pads, (0, 0))))
            pads = ((0, 0), (0, 0))
        return lax.conv_general_dilated(
            x,
            w,
            steps,
            pads,
            lhs_dilation=spread,
            dimension_numbers=LAYOUT,
            precision=precision,
        )

    # The batching rules know which axis of each operand and of the result merely repeats.
    @partial(_batched, folds=((0, 0), (3, 3)))
    def conv_piece(x: Array, w: Array) -> Array:
        return convolve(x, w, strides, padding, (1, 1))

    @partial(_batched, folds=((0, 0), (2, 3)))
    def dx_piece(g: Array, w: Array) -> Array:
        w = w[::-1, ::-1].swapaxes(2, 3)
        return convolve(g, w, (1, 1), dx_padding, strides)

    @partial(_batched, folds=((3, 2), (3, 3)))
    def dw_piece(x: Array, g: Array) -> Array:
        # All images' shifted copies would be far larger than the cache.
        return sum_over_chunks(dw_of_chunk, x, g, places=outputs[0] * outputs[1])

    def dw_of_chunk(x: Array, g: Array) -> Array:
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*p, 0) for p in padding), (0, 0, 0)))
        channels, out = x.shape[3], g.shape[3]
        rows, columns = ((outputs[i] - 1) * strides[i] + 1 for i in sides)
        shifted = [x[:, :, j : j + columns : strides[1]] for j in range(kernel[1])]
        wide = jnp.concatenate(shifted, axis=3)  # a row of places side by side

        tall = outputs[0] >= 8 and kernel[0] > 1 and strides[0] == 1
        if tall and out <= channels * kernel[1]:
            # All places in one product: x shifted by columns with g shifted by rows. The narrower
            # of the two is copied for every row of the kernel.
            edge = kernel[0] - 1
            g = jnp.pad(g, ((0, 0), (edge, edge), (0, 0), (0, 0)))
            down = [g[:, edge - i : edge - i + x.shape[1]] for i in range(kernel[0])]
            left, right = wide.reshape(-1, wide.shape[3]), jnp.concatenate(down, axis=3)
            dw = jnp.matmul(left.T, right.reshape(-1, kernel[0] * out), precision=precision)
            return dw.reshape(kernel[1], channels, kernel[0], out).transpose(2, 0, 1, 3)

        def product(i: int) -> Array:
            seen = wide[:, i : i + rows : strides[0]].reshape(-1, wide.shape[3])
            return jnp.matmul(seen.T, g.reshape(-1, out), precision=precision)

        # A product for each row of the kernel: the pixels its places saw with the gradient there.
        dw = jnp.stack([product(i) for i in range(kernel[0])])
        return dw.reshape(*kernel, channels, out)

    # Each forward pass goes through the function itself, for derivatives of higher order.
    conv, dx, dw = (jax.custom_vjp(piece) for piece in (conv_piece, dx_piece, dw_piece))
    conv.defvjp(_keep(conv), lambda xw, g: (dx(g, xw[1]), dw(xw[0], g)))
    dx.defvjp(_keep(dx), lambda gw, x: (conv(x, gw[1]), dw(x, gw[0])))
    dw.defvjp(_keep(dw), lambda xg, w: (dx(xg[1], w), conv(xg[0], w)))
    return conv, dx, dw


def _keep(function: Bilinear) -> Callable[[Array, Array], tuple[Array, tuple[Array, Array]]]:
    """Makes the forward pass of a vjp that keeps both operands."""
    return lambda a, b: (function(a, b), (a, b))


def _batched(function: Bilinear, *, folds: tuple[tuple[int, int], tuple[int, int]]) -> Bilinear:
    """Gives a bilinear function its batching rule.

    Args:
      function: two arrays -> array.
      folds: for each operand, its axis and the result's that grow together; an operand mapped
        over alone is folded into them, which leaves one large convolution.

    Returns:
      The function with the rule; where both operands are mapped over, it is unrolled.
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
