"""Operations that stay fast when `jax.vmap` maps over the parameters of many clients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxfed.models.ops.conv import conv_general_dilated, conv_lowering
from jaxfed.models.ops.conv_pool import conv_max_pool, pooled_lowering
from jaxfed.models.ops.lowering import LOWERINGS, check_lowering, lowering
from jaxfed.models.ops.pool import max_pool
from jaxfed.types import Array

__all__ = [
    'LOWERINGS',
    'Convolution',
    'conv_general_dilated',
    'conv_max_pool',
    'convolution',
    'lowering',
    'max_pool',
    'observed',
]


class Convolution(NamedTuple):
    """The implementation of a network's convolutions."""

    conv_general_dilated: Callable[..., Array]  # as `jax.lax.conv_general_dilated`
    conv_max_pool: Callable[..., Array]  # as `ops.conv_max_pool`


def convolution(use: str | None = None) -> Convolution:
    """Makes convolutions of one of `LOWERINGS`; None chooses for each shape by `lowering`."""
    check_lowering(use)
    return Convolution(partial(conv_general_dilated, use=use), partial(conv_max_pool, use=use))


def observed(use: str | None = None) -> tuple[Convolution, dict[str, str]]:
    """Makes the same convolutions, and a dict 'kernel on image' -> lowering that tracing fills."""
    plain, lowerings = convolution(use), {}

    def note(x: Array, w: Array, strides: Any, chosen: str, after: str = '') -> None:
        height, width, inputs, outputs = w.shape
        stride = f', stride {max(strides)}' if max(strides) > 1 else ''
        shape = f'{height}x{width}, {inputs} to {outputs}{stride}{after}'
        lowerings[f'{shape} on {x.shape[1]}x{x.shape[2]}'] = chosen

    def conv(
        x: Array, w: Array, strides: Any, padding: Any, *, precision: Any = None, **options: Any
    ) -> Array:
        note(x, w, strides, conv_lowering(x, w, strides, use=use, **options))
        return plain.conv_general_dilated(x, w, strides, padding, precision=precision, **options)

    def pooled(x: Array, w: Array, padding: Any) -> Array:
        note(x, w, (1, 1), pooled_lowering(x, w, use=use), ' and 2x2 max-pool')
        return plain.conv_max_pool(x, w, padding)

    return Convolution(conv, pooled), lowerings
