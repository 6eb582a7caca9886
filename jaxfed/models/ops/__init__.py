"""Operations that stay fast when `jax.vmap` maps over the parameters of many clients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxfed.models.ops.conv import conv_general_dilated, conv_lowering
from jaxfed.models.ops.conv_pool import conv_max_pool, pooled_lowering
from jaxfed.models.ops.lowering import LOWERINGS, lowering
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
    'recording_convolution',
]


class Convolution(NamedTuple):
    """The implementation of a network's convolutions."""

    conv_general_dilated: Callable[..., Array]  # as `jax.lax.conv_general_dilated`
    conv_max_pool: Callable[..., Array]  # as `ops.conv_max_pool`


def convolution(use: str | None = None) -> Convolution:
    """Makes convolutions with one of `LOWERINGS`; None selects one for each shape."""
    return Convolution(partial(conv_general_dilated, use=use), partial(conv_max_pool, use=use))


def recording_convolution(use: str | None = None) -> tuple[Convolution, dict[str, str]]:
    """Makes the same convolutions, and a dict 'kernel on image' -> lowering, filled by tracing."""
    plain, lowerings = convolution(use), {}

    def record(x: Array, w: Array, operation: str, selected: str) -> None:
        *kernel, inputs, outputs = w.shape
        shape = f'{"x".join(map(str, kernel))}, {inputs} to {outputs}{operation}'
        lowerings[f'{shape} on {"x".join(map(str, x.shape[1:-1]))}'] = selected

    def conv(x: Array, w: Array, strides: Any, padding: Any, **options: Any) -> Array:
        stride = f', stride {max(strides)}' if max(strides) > 1 else ''
        record(x, w, stride, conv_lowering(x, w, strides, use=use, **options))
        return plain.conv_general_dilated(x, w, strides, padding, **options)

    def pooled(x: Array, w: Array, padding: Any) -> Array:
        record(x, w, ' and 2x2 max-pool', pooled_lowering(x, w, use=use))
        return plain.conv_max_pool(x, w, padding)

    return Convolution(conv, pooled), lowerings
