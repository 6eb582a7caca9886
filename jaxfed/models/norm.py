"""Normalisation layers."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxfed.types import Array

Norm = Literal['batch', 'group', 'none']

EPSILON = 1e-5


class BatchNorm(nnx.BatchNorm):
    """Batch normalisation with the statistics of the real examples of a batch.

    Momentum and epsilon are PyTorch's, 0.1 of the batch and 1e-5. The running variance is that of
    the batch, without PyTorch's factor m / (m - 1), m the pixels of a batch.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(channels, momentum=0.9, epsilon=EPSILON, rngs=rngs)

    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None
    ) -> Array:
        """Normalises by the real examples, or without a mask by the running statistics."""
        del use_running_average
        if mask is None:
            return super().__call__(x, use_running_average=True).astype(x.dtype)
        assert self.scale is not None and self.bias is not None
        y, mean, var = _normalise(x, self.scale[...], self.bias[...], mask)
        for running, batch in ((self.mean, mean), (self.var, var)):
            running[...] = self.momentum * running[...] + (1 - self.momentum) * batch
        return y


# XLA writes a value that several passes over x share to memory and keeps it for the gradient. So
# each pass has an expression of its own; flax's derivatives take more time and memory on the CPU.
@jax.custom_vjp
def _normalise(x: Array, scale: Array, bias: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Batch normalisation, and the mean and variance [channels] of the real examples."""
    return _normalise_forward(x, scale, bias, mask)[0]


def _normalise_forward(
    x: Array, scale: Array, bias: Array, mask: Array
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    # Computed in float32, like the statistics, whatever the precision of the network.
    exact = x.astype(jnp.float32)
    pixels = jnp.sum(mask) * x.shape[1] * x.shape[2]

    def mean_of(z: Array) -> Array:
        # Masking each pixel would create such a shared value, so each example is summed first.
        return jnp.sum(jnp.sum(z, (1, 2)), 0, where=mask[:, None]) / pixels

    mean = mean_of(exact)
    # Not the mean of the squares less the square of the mean, which cancels where a channel of few
    # pixels varies little: mobilenet's features then lose two more digits.
    var = mean_of(jnp.square(exact - mean))
    inverse = lax.rsqrt(var + EPSILON)
    factor = inverse * scale
    y = exact * factor + (bias - mean * factor)
    return (y.astype(x.dtype), mean, var), (x, scale, bias, mask, mean, inverse, pixels)


def _normalise_backward(
    residuals: tuple[Array, ...], gradients: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array, None]:
    x, scale, bias, mask, mean, inverse, pixels = residuals
    g, g_mean, g_var = gradients
    exact, g = x.astype(jnp.float32), g.astype(jnp.float32)
    g_bias = jnp.sum(g, (0, 1, 2))
    g_scale = jnp.sum(g * (exact * inverse - mean * inverse), (0, 1, 2))
    factor = inverse * scale
    # The gradient that reaches each real pixel through the mean and the variance.
    slope = (2 * g_var - factor * inverse * g_scale) / pixels
    shift = (g_mean - factor * g_bias) / pixels - slope * mean
    statistics = jnp.where(mask[:, None, None, None], slope * exact + shift, 0.0)
    dx = (factor * g + statistics).astype(x.dtype)
    return dx, g_scale.astype(scale.dtype), g_bias.astype(bias.dtype), None


_normalise.defvjp(_normalise_forward, _normalise_backward)


def group_norm(channels: int, *, rngs: nnx.Rngs) -> nnx.GroupNorm:
    """Makes the group normalisation of each example over 2 groups of channels.

    Reference:
      Wu and He, Group Normalization, ECCV 2018; 2 groups as in Reddi et al., Adaptive Federated
      Optimization, ICLR 2021.
    """
    return nnx.GroupNorm(channels, num_groups=2, epsilon=EPSILON, rngs=rngs)
