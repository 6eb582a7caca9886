"""Layers with PyTorch's initialisation, because the papers' numbers were made with it."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import jax
from flax import nnx

from jaxfed.models.ops import Convolution
from jaxfed.types import Array


def check_image_size(
    input_shape: tuple[int, int, int], name: str, least: int, others: Sequence[str]
) -> None:
    """Raises a ValueError if an image has fewer than `least` pixels along a side."""
    if min(input_shape[:2]) < least:
        raise ValueError(
            f'input_shape={input_shape} is too small for --model={name}, which needs {least}x'
            f'{least} or more; use {" or ".join(f"--model={other}" for other in others)}.'
        )


def uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    """Makes PyTorch's default initialiser of weights and biases, U(-1/sqrt(n), 1/sqrt(n))."""
    bound = 1 / sqrt(fan_in)  # that of `kaiming_uniform` with a = sqrt(5)

    def init(key: Array, shape: tuple[int, ...], dtype: Any, out_sharding: Any = None) -> Array:
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class ConvMaxPool(nnx.Conv):
    """A convolution [B, H, W, in] -> [B, H' // 2, W' // 2, out] and a 2x2 max-pool."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int,
        padding: str,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        init = uniform_fan_in(in_channels * size**2)
        super().__init__(
            in_channels,
            out_channels,
            (size, size),
            padding=padding,
            kernel_init=init,
            bias_init=init,
            rngs=rngs,
        )
        self.bias: nnx.Param[Array]  # never None
        self.conv_max_pool = convolution.conv_max_pool

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Computes max_pool(inputs * kernel) + bias."""
        del out_sharding  # lanes are not sharded within
        x, kernel, bias = self.promote_dtype(
            (inputs, self.kernel[...], self.bias[...]), dtype=self.dtype
        )
        # The bias is added after the pool: the same function on a quarter of the elements.
        return self.conv_max_pool(x, kernel, self.padding) + bias


def linear(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """Makes a dense layer [B, in_features] -> [B, out_features]."""
    init = uniform_fan_in(in_features)
    return nnx.Linear(in_features, out_features, kernel_init=init, bias_init=init, rngs=rngs)
