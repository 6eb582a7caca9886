"""What deeper networks are made of: normalisation that knows padding, convolutions before it."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxfed.models.layers import conv
from jaxfed.models.ops import Convolution
from jaxfed.models.ops.chunks import map_over_chunks
from jaxfed.models.remat import recomputed
from jaxfed.types import Array, PyTree

Norm = Literal['batch', 'group', 'none']
Stem = Literal['cifar', 'imagenet']

GROUPS = 2
EPSILON = 1e-5


class BatchNorm(nnx.BatchNorm):
    """Batch normalisation whose statistics are those of the real examples only.

    Momentum and epsilon are PyTorch's, 0.1 of the batch and 1e-5. The running variance is the
    batch's own, without PyTorch's factor m / (m - 1), m the pixels of a batch.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(channels, momentum=0.9, epsilon=EPSILON, rngs=rngs)

    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None
    ) -> Array:
        """Normalises [B, H, W, channels].

        Args:
          x: the input.
          use_running_average: not read, the mask says it.
          mask: [B] bool, the real examples of a batch to train on; None evaluates, by the running
            statistics.

        Returns:
          The same shape.
        """
        del use_running_average
        if mask is None:
            return super().__call__(x, use_running_average=True).astype(x.dtype)
        assert self.scale is not None and self.bias is not None  # there always are both
        y, mean, var = _normalise(x, self.scale[...], self.bias[...], mask)
        for running, own in ((self.mean, mean), (self.var, var)):
            running[...] = self.momentum * running[...] + (1 - self.momentum) * own
        return y


# flax's with its automatic derivatives takes about 1.5 times as long on the CPU.
@jax.custom_vjp
def _normalise(x: Array, scale: Array, bias: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Batch normalisation by the mean and variance [channels] of the real examples, with these."""
    return _normalise_forward(x, scale, bias, mask)[0]


def _normalise_forward(
    x: Array, scale: Array, bias: Array, mask: Array
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    # Computed in float32, like the statistics, whatever the precision of the network.
    own = x.astype(jnp.float32)
    real = mask[:, None, None, None]
    places = jnp.sum(mask) * x.shape[1] * x.shape[2]
    mean, square = (jnp.sum(z, (0, 1, 2), where=real) / places for z in (own, own * own))
    var = jnp.maximum(square - mean * mean, 0.0)
    inverse = lax.rsqrt(var + EPSILON)
    y = (own - mean) * (inverse * scale) + bias
    return (y.astype(x.dtype), mean, var), (x, scale, bias, mask, mean, inverse, places)


def _normalise_backward(
    kept: tuple[Array, ...], gradients: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array, None]:
    x, scale, bias, mask, mean, inverse, places = kept
    g, g_mean, g_var = gradients
    g_bias, product = (
        jnp.sum(z, (0, 1, 2))
        for z in (g.astype(jnp.float32), g.astype(jnp.float32) * (x.astype(jnp.float32) - mean))
    )
    g_scale = product * inverse
    factor = inverse * scale
    # What the mean and the variance bring back to each real place.
    slope = (2 * g_var - factor * inverse * g_scale) / places
    shift = (g_mean - factor * g_bias) / places

    def of_example(x: Array, g: Array, real: Array) -> Array:
        back = slope * (x.astype(jnp.float32) - mean) + shift
        return (factor * g + jnp.where(real, back, 0.0)).astype(x.dtype)

    dx = map_over_chunks(of_example, x, g, mask, places=x.shape[1] * x.shape[2])
    return dx, g_scale.astype(scale.dtype), g_bias.astype(bias.dtype), None


_normalise.defvjp(_normalise_forward, _normalise_backward)


class GroupNorm(nnx.GroupNorm):
    """Group normalisation over 2 groups of channels, each example on its own.

    Reference:
      Wu and He, Group Normalization, ECCV 2018; 2 groups as in Reddi et al., Adaptive Federated
      Optimization, ICLR 2021.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(channels, num_groups=GROUPS, epsilon=EPSILON, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Normalises [B, H, W, channels]; no example sees another, so the mask does not matter."""
        del mask
        return super().__call__(x)


class Unchanged(nnx.Module):
    """No normalisation."""

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        """Gives x."""
        del mask
        return x


def make_norm(kind: Norm, channels: int, *, rngs: nnx.Rngs) -> nnx.Module:
    """Makes the normalisation of a convolution's output.

    Args:
      kind: 'batch', 'group' or 'none'.
      channels: of the output.
      rngs: random streams of the initialisation.

    Returns:
      A layer (x [B, H, W, channels], mask=[B] or None) -> the same shape.

    Raises:
      ValueError: unknown kind.
    """
    kinds: dict[str, Callable[..., nnx.Module]] = {
        'batch': BatchNorm,
        'group': GroupNorm,
        'none': lambda channels, rngs: Unchanged(),
    }
    if kind not in kinds:
        raise ValueError(f'norm={kind!r} must be one of {", ".join(kinds)}.')
    return kinds[kind](channels, rngs=rngs)


class ConvNorm(nnx.Module):
    """A convolution without a bias and the normalisation after it.

    Padding is (size - 1) / 2 on all sides, as in PyTorch's networks; XLA's 'SAME' is not symmetric
    where strides are 2. Without normalisation the convolution has a bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int = 3,
        strides: int = 1,
        *,
        norm: Norm,
        convolution: Convolution,
        rngs: nnx.Rngs,
        groups: int = 1,
        use_bias: bool = False,
    ) -> None:
        edge = (size - 1) // 2
        self.conv = conv(
            in_channels,
            out_channels,
            kernel_size=(size, size),
            padding=((edge, edge), (edge, edge)),
            strides=strides,
            groups=groups,
            use_bias=use_bias or norm == 'none',
            convolution=convolution,
            rngs=rngs,
        )
        self.norm: Any = make_norm(norm, out_channels, rngs=rngs)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes norm(x * kernel) of [B, H, W, in_channels]."""
        return self.norm(self.conv(x), mask=mask)


def run_blocks(blocks: nnx.List, x: Array, mask: Array | None, *, remat: bool) -> Array:
    """Applies blocks one after another.

    Args:
      blocks: modules (x, mask) -> x.
      x: [B, H, W, channels].
      mask: [B] bool, or None to evaluate.
      remat: keep each block's input only and compute the rest again for its gradient.

    Returns:
      The last block's output.
    """
    for block in blocks:
        x = _recomputed(block, x, mask) if remat else block(x, mask)
    return x


def _recomputed(block: nnx.Module, x: Array, mask: Array | None) -> Array:
    graph, weights = nnx.split(block)

    def run(weights: PyTree, x: Array, mask: Array | None) -> tuple[Array, PyTree]:
        own: Any = nnx.merge(graph, weights)
        return own(x, mask), nnx.state(own, nnx.BatchStat)

    y, stats = recomputed(run)(weights, x, mask)
    nnx.update(block, stats)
    return y
