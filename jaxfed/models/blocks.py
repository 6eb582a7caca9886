"""Parts of the deeper networks: a normalised convolution, and a chain of blocks."""

from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx

from jaxfed.models.layers import uniform_fan_in
from jaxfed.models.norm import BatchNorm, Norm, group_norm
from jaxfed.models.ops import Convolution
from jaxfed.models.remat import recomputed
from jaxfed.types import Array, Outputs, PyTree

Stem = Literal['cifar', 'imagenet']


class ConvNorm(nnx.Module):
    """A convolution and its normalisation; without normalisation it has a bias."""

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
        # PyTorch's padding; XLA's 'SAME' is asymmetric for strides of 2.
        edge = (size - 1) // 2
        init = uniform_fan_in(in_channels // groups * size**2)
        self.conv = nnx.Conv(
            in_channels,
            out_channels,
            (size, size),
            strides,
            padding=((edge, edge), (edge, edge)),
            feature_group_count=groups,
            use_bias=use_bias or norm == 'none',
            conv_general_dilated=convolution.conv_general_dilated,
            kernel_init=init,
            bias_init=init,
            rngs=rngs,
        )
        make_norm = {'batch': BatchNorm, 'group': group_norm}.get(norm)
        self.norm: Any = nnx.data(make_norm(out_channels, rngs=rngs) if make_norm else None)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes norm(x * kernel) of [B, H, W, in_channels]."""
        x = self.conv(x)
        if isinstance(self.norm, BatchNorm):
            return self.norm(x, mask=mask)
        return self.norm(x) if self.norm else x


class BlockNetwork(nnx.Module):
    """A stem, blocks, a mean over pixels and a classifier; subclasses make these layers."""

    stem: ConvNorm
    blocks: nnx.List
    classifier: nnx.Linear
    remat: bool
    pool: bool = False  # a 3x3 max-pool with stride 2 after the stem

    def __call__(self, x: Array, mask: Array | None = None) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        x = nnx.relu(self.stem(x, mask))
        if self.pool:
            x = nnx.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        x = run_blocks(self.blocks, x, mask, remat=self.remat)
        features = jnp.mean(x, axis=(1, 2))
        return Outputs(logits=self.classifier(features), features=features)


def run_blocks(blocks: nnx.List, x: Array, mask: Array | None, *, remat: bool) -> Array:
    """Applies blocks (x, mask) -> x in order; `remat` keeps only their inputs for the gradient."""
    for block in blocks:
        x = _recomputed(block, x, mask) if remat else block(x, mask)
    return x


def _recomputed(block: nnx.Module, x: Array, mask: Array | None) -> Array:
    """Applies a block whose inner values are recomputed for the gradient."""
    graph, weights = nnx.split(block)

    def run(weights: PyTree, x: Array, mask: Array | None) -> tuple[Array, PyTree]:
        module: Any = nnx.merge(graph, weights)
        return module(x, mask), nnx.state(module, nnx.BatchStat)

    y, stats = recomputed(run)(weights, x, mask)
    nnx.update(block, stats)
    return y
