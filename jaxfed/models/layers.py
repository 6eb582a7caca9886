"""Layers and initialisers; most networks have PyTorch's initialisation, as the papers."""

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import jax
from flax import nnx

from jaxfed.types import Array

_ROOMS = tuple(2**power for power in (8, 12, 16, 18, 20, 22))


def check_image_size(
    input_shape: tuple[int, int, int], name: str, least: int, others: Sequence[str]
) -> None:
    """Raises a ValueError if an image has fewer than `least` pixels along a side."""
    if min(input_shape[:2]) < least:
        raise ValueError(
            f'--model={name} requires images of {least}x{least} pixels or more, got '
            f'input_shape={input_shape}; use {" or ".join(f"--model={other}" for other in others)}.'
        )


def uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    """Makes PyTorch's default initialiser of weights and biases, U(-1/sqrt(n), 1/sqrt(n))."""
    return uniform(1 / sqrt(fan_in))  # that of `kaiming_uniform` with a = sqrt(5)


def uniform(bound: float) -> Callable[..., Array]:
    """Makes the initialiser U(-bound, bound)."""

    def init(key: Array, shape: tuple[int, ...], dtype: Any, out_sharding: Any = None) -> Array:
        del out_sharding
        # A program that draws takes half a second to compile, so sizes share few programs; the
        # first numbers of a longer draw are those of a shorter one.
        size = prod(shape)
        longer = jax.random.uniform(key, (_room(size),), dtype, -bound, bound)
        return longer[:size].reshape(shape)

    return init


def _room(size: int) -> int:
    """The least of a few lengths that holds `size` numbers; large sizes are their own."""
    return next((room for room in _ROOMS if size <= room), size)


def linear(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """Makes a dense layer [B, in_features] -> [B, out_features]."""
    init = uniform_fan_in(in_features)
    return nnx.Linear(in_features, out_features, kernel_init=init, bias_init=init, rngs=rngs)
