"""Residual networks of 8, 18 and 50 layers (He et al., 2016)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx

from jaxfed.models.blocks import ConvNorm, Norm, Stem, run_blocks
from jaxfed.models.layers import linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ."""

    expansion = 1

    def __init__(
        self,
        in_channels: int,
        width: int,
        strides: int,
        *,
        norm: Norm,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        self.conv1 = ConvNorm(in_channels, width, 3, strides, **made)
        self.conv2 = ConvNorm(width, width, **made)
        changes = strides > 1 or in_channels != width
        self.shortcut = nnx.data(
            ConvNorm(in_channels, width, 1, strides, **made) if changes else None
        )

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes relu(F(x) + shortcut(x)) of [B, H, W, in_channels]."""
        y = nnx.relu(self.conv1(x, mask))
        y = self.conv2(y, mask)
        return nnx.relu(y + (self.shortcut(x, mask) if self.shortcut else x))


class Bottleneck(nnx.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions to 4 times the width, beside a shortcut."""

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        width: int,
        strides: int,
        *,
        norm: Norm,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        out = self.expansion * width
        self.conv1 = ConvNorm(in_channels, width, 1, **made)
        self.conv2 = ConvNorm(width, width, 3, strides, **made)
        self.conv3 = ConvNorm(width, out, 1, **made)
        changes = strides > 1 or in_channels != out
        self.shortcut = nnx.data(
            ConvNorm(in_channels, out, 1, strides, **made) if changes else None
        )

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes relu(F(x) + shortcut(x)) of [B, H, W, in_channels]."""
        y = nnx.relu(self.conv1(x, mask))
        y = nnx.relu(self.conv2(y, mask))
        y = self.conv3(y, mask)
        return nnx.relu(y + (self.shortcut(x, mask) if self.shortcut else x))


class ResNet(nnx.Module):
    """A stem, stages of residual blocks of which each but the first halves the image, and a mean.

    The stem for CIFAR is a 3x3 convolution; the one for ImageNet is a 7x7 convolution with stride 2
    and a 3x3 max-pool with stride 2. What the stages are, the classes below say.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      stem: for images as large as CIFAR's or ImageNet's.
      norm: normalisation.
      remat: compute the inside of each block again for its gradient.
      convolution: the operations to compute convolutions with.
      rngs: random streams of the initialisation.

    Reference:
      He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    block: ClassVar[type[BasicBlock] | type[Bottleneck]]
    widths: ClassVar[Sequence[int]]  # of the blocks of each stage
    depths: ClassVar[Sequence[int]]  # blocks of each stage

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        stem: Stem = 'cifar',
        norm: Norm = 'batch',
        remat: bool = False,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        size, strides = (7, 2) if stem == 'imagenet' else (3, 1)
        self.pool, self.remat = stem == 'imagenet', remat
        channels = self.widths[0]
        self.stem = ConvNorm(input_shape[2], channels, size, strides, **made)
        blocks = []
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for place in range(depth):
                strides = 2 if stage and not place else 1
                blocks.append(self.block(channels, width, strides, **made))
                channels = self.block.expansion * width
        self.blocks = nnx.List(blocks)
        self.classifier = linear(channels, num_classes, rngs=rngs)

    def __call__(self, x: Array, mask: Array | None = None) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        x = nnx.relu(self.stem(x, mask))
        if self.pool:
            x = nnx.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        x = run_blocks(self.blocks, x, mask, remat=self.remat)
        features = jnp.mean(x, axis=(1, 2))
        return Outputs(logits=self.classifier(features), features=features)


class ResNet8(ResNet):
    """The ResNet of 6n + 2 layers for n = 1 (section 4.2), with 1x1 convolutions as shortcuts.

    On 32x32x3 with 10 classes it has 78 042 parameters.
    """

    block, widths, depths = BasicBlock, (16, 32, 64), (1, 1, 1)


class ResNet18(ResNet):
    """ResNet-18 (table 1).

    With the stem for CIFAR and 10 classes it has 11 173 962 parameters, with ImageNet's and 1000
    classes 11 689 512.
    """

    block, widths, depths = BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2)


class ResNet50(ResNet):
    """ResNet-50 (table 1), the stride of a block in its 3x3 convolution as in torchvision.

    With the stem for CIFAR and 10 classes it has 23 520 842 parameters, with ImageNet's and 1000
    classes 25 557 032.
    """

    block, widths, depths = Bottleneck, (64, 128, 256, 512), (3, 4, 6, 3)
