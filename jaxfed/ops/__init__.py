"""Operations that stay fast when the parameters of many clients are mapped over."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxfed.ops.conv import conv_general_dilated
from jaxfed.ops.conv_pool import conv_max_pool
from jaxfed.ops.lowering import LOWERINGS, check, lowering
from jaxfed.ops.pool import max_pool
from jaxfed.types import Array

__all__ = [
    'LOWERINGS',
    'Convolution',
    'conv_general_dilated',
    'conv_max_pool',
    'convolution',
    'lowering',
    'max_pool',
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
