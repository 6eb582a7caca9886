"""What deeper networks are made of: normalisation that knows padding, convolutions before it."""

from collections.abc import Callable
from typing import Any, Literal

from flax import nnx

from jaxfed.models.layers import conv
from jaxfed.models.remat import recomputed
from jaxfed.ops import Convolution
from jaxfed.types import Array, PyTree

Norm = Literal['batch', 'group', 'none']
Stem = Literal['cifar', 'imagenet']

GROUPS = 2


class BatchNorm(nnx.BatchNorm):
    """Batch normalisation whose statistics are those of the real examples only.

    Momentum and epsilon are PyTorch's, 0.1 of the batch and 1e-5. The running variance is the
    batch's own, without PyTorch's factor m / (m - 1), m the pixels of a batch.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(channels, momentum=0.9, epsilon=1e-5, rngs=rngs)

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
        real = None if mask is None else mask[:, None, None, None]
        # Computed in float32, like the statistics, whatever the precision of the network.
        y = super().__call__(x, use_running_average=mask is None, mask=real)
        return y.astype(x.dtype)


class GroupNorm(nnx.GroupNorm):
    """Group normalisation over 2 groups of channels, each example on its own.

    Reference:
      Wu and He, Group Normalization, ECCV 2018; 2 groups as in Reddi et al., Adaptive Federated
      Optimization, ICLR 2021.
    """

    def __init__(self, channels: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(channels, num_groups=GROUPS, epsilon=1e-5, rngs=rngs)

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
