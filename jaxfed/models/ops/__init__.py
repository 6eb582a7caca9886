"""Operations that stay fast when the parameters of many clients are mapped over."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jaxfed.models.ops.conv import conv_general_dilated, way
from jaxfed.models.ops.conv_pool import conv_max_pool, pooled_way
from jaxfed.models.ops.lowering import LOWERINGS, check, lowering
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
    """What a network computes its convolutions with."""

    conv_general_dilated: Callable[..., Array]  # as `jax.lax.conv_general_dilated`
    conv_max_pool: Callable[..., Array]  # as `ops.conv_max_pool`


def convolution(use: str | None = None) -> Convolution:
    """Makes the operations of a network's convolutions.

    Args:
      use: how to compute them all, one of `LOWERINGS`; None chooses for each by `lowering`.

    Returns:
      The operations.

    Raises:
      ValueError: unknown `use`.
    """
    check(use)
    return Convolution(partial(conv_general_dilated, use=use), partial(conv_max_pool, use=use))


def observed(use: str | None = None) -> tuple[Convolution, dict[str, str]]:
    """Makes the same operations, which also tell how they compute what they are called with.

    Args:
      use: as in `convolution`.

    Returns:
      (the operations, a dictionary 'kernel on image' -> way that they fill when they are traced).

    Raises:
      ValueError: unknown `use`.
    """
    plain, told = convolution(use), {}

    def note(x: Array, w: Array, strides: Any, chosen: str, after: str = '') -> None:
        height, width, inputs, outputs = w.shape
        stride = f', stride {max(strides)}' if max(strides) > 1 else ''
        shape = f'{height}x{width}, {inputs} to {outputs}{stride}{after}'
        told[f'{shape} on {x.shape[1]}x{x.shape[2]}'] = chosen

    def conv(x: Array, w: Array, strides: Any, *arguments: Any, **settings: Any) -> Array:
        note(x, w, strides, way(x, w, strides, *arguments, **settings, use=use))
        return plain.conv_general_dilated(x, w, strides, *arguments, **settings)

    def pooled(x: Array, w: Array, padding: Any) -> Array:
        note(x, w, (1, 1), pooled_way(x, w, use=use), ' and 2x2 max-pool')
        return plain.conv_max_pool(x, w, padding)

    return Convolution(conv, pooled), told
