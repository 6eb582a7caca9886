"""Layers initialised as PyTorch initialises them, because the papers' numbers were made with it."""

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import jax
from flax import nnx

from jaxfed.models.ops import Convolution
from jaxfed.types import Array


def uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    """Makes PyTorch's default initialiser, U(-1/sqrt(fan_in), 1/sqrt(fan_in)).

    Weights and biases alike: `kaiming_uniform` with a = sqrt(5) is this bound.

    Args:
      fan_in: inputs that one output unit sums over.

    Returns:
      Function (key, shape, dtype) -> array.
    """
    bound = 1 / sqrt(fan_in)

    def init(key: Array, shape: tuple[int, ...], dtype: Any, out_sharding: Any = None) -> Array:
        del out_sharding
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def conv(
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: tuple[int, int],
    padding: str | Sequence[tuple[int, int]],
    convolution: Convolution,
    rngs: nnx.Rngs,
    strides: int = 1,
    groups: int = 1,
    use_bias: bool = True,
) -> nnx.Conv:
    """Makes a convolution [B, H, W, in_channels] -> [B, H', W', out_channels].

    Args:
      in_channels: channels of the input.
      out_channels: channels of the output.
      kernel_size: height and width of the kernel.
      padding: 'SAME', 'VALID' or the zeros (low, high) along height and width.
      convolution: the operations to compute with.
      rngs: random streams of the initialisation.
      strides: step of the kernel along both sides.
      groups: of channels that do not see each other.
      use_bias: whether a bias is added.

    Returns:
      The layer.
    """
    init = uniform_fan_in(in_channels // groups * prod(kernel_size))
    return nnx.Conv(
        in_channels,
        out_channels,
        kernel_size,
        strides,
        padding=padding,
        feature_group_count=groups,
        use_bias=use_bias,
        conv_general_dilated=convolution.conv_general_dilated,
        kernel_init=init,
        bias_init=init,
        rngs=rngs,
    )


class ConvMaxPool(nnx.Conv):
    """A convolution [B, H, W, in] -> [B, H' // 2, W' // 2, out] and the 2x2 max-pool after it.

    The bias is added after the pool, which is the same function on a quarter of the elements.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: tuple[int, int],
        padding: str,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        init = uniform_fan_in(in_channels * prod(kernel_size))
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            padding=padding,
            kernel_init=init,
            bias_init=init,
            rngs=rngs,
        )
        self.bias: nnx.Param[Array]  # there always is one
        self.conv_max_pool = convolution.conv_max_pool

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        """Computes max_pool(inputs * kernel) + bias."""
        del out_sharding  # lanes are not sharded within
        x, kernel, bias = self.promote_dtype(
            (inputs, self.kernel[...], self.bias[...]), dtype=self.dtype
        )
        return self.conv_max_pool(x, kernel, self.padding) + bias


def linear(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """Makes a dense layer [B, in_features] -> [B, out_features].

    Args:
      in_features: width of the input.
      out_features: width of the output.
      rngs: random streams of the initialisation.

    Returns:
      The layer.
    """
    init = uniform_fan_in(in_features)
    return nnx.Linear(in_features, out_features, kernel_init=init, bias_init=init, rngs=rngs)
