"""Residual networks of 8, 18 and 50 layers (He et al., 2016)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from flax import nnx

from jaxfed.models.blocks import BlockNetwork, ConvNorm, Stem
from jaxfed.models.layers import linear
from jaxfed.models.norm import Norm
from jaxfed.models.ops import Convolution
from jaxfed.types import Array


class ResidualBlock(nnx.Module):
    """Convolutions and a shortcut, a 1x1 convolution if shapes differ."""

    sizes: ClassVar[Sequence[int]]  # of the kernels of conv1, conv2, ...
    strided: ClassVar[int]  # index of the convolution that has the stride
    expansion: ClassVar[int]  # output channels as a multiple of the inner width

    def __init__(self, in_channels: int, width: int, strides: int, **options: Any) -> None:
        out = self.expansion * width
        channels = [in_channels, *[width] * (len(self.sizes) - 1), out]
        for i, size in enumerate(self.sizes):
            step = strides if i == self.strided else 1
            conv = ConvNorm(channels[i], channels[i + 1], size, step, **options)
            setattr(self, f'conv{i + 1}', conv)
        self.shortcut = nnx.data(None)
        if strides > 1 or in_channels != out:
            self.shortcut = ConvNorm(in_channels, out, 1, strides, **options)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes relu(F(x) + shortcut(x)) of [B, H, W, in_channels]."""
        y = x
        for i in range(len(self.sizes)):
            y = getattr(self, f'conv{i + 1}')(nnx.relu(y) if i else y, mask)
        return nnx.relu(y + (self.shortcut(x, mask) if self.shortcut else x))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions and a shortcut."""

    sizes, strided, expansion = (3, 3), 0, 1


class Bottleneck(ResidualBlock):
    """1x1, 3x3 (with the stride) and 1x1 convolutions to 4 times the width, and a shortcut."""

    sizes, strided, expansion = (1, 3, 1), 1, 4


class ResNet(BlockNetwork):
    """A stem, stages of residual blocks and a mean; each stage but the first halves the image.

    The stem for CIFAR is a 3x3 convolution, the one for ImageNet a 7x7 convolution with stride 2
    and a 3x3 max-pool with stride 2.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      stem: for images as large as CIFAR's or ImageNet's.
      norm: normalisation.
      remat: recompute the inner values of each block for its gradient.
      convolution: the implementation of convolutions.
      rngs: random streams of the initialisation.

    Reference:
      He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """

    block: ClassVar[type[ResidualBlock]]
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
        options: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        size, strides = (7, 2) if stem == 'imagenet' else (3, 1)
        self.pool, self.remat = stem == 'imagenet', remat
        channels = self.widths[0]
        self.stem = ConvNorm(input_shape[2], channels, size, strides, **options)
        blocks = []
        for stage, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for i in range(depth):
                strides = 2 if stage and not i else 1
                blocks.append(self.block(channels, width, strides, **options))
                channels = self.block.expansion * width
        self.blocks = nnx.List(blocks)
        self.classifier = linear(channels, num_classes, rngs=rngs)


class ResNet8(ResNet):
    """The ResNet of 6n + 2 layers for n = 1 (section 4.2), with 1x1 convolutions as shortcuts.

    It has 78 042 parameters on 32x32x3 with 10 classes.
    """

    block, widths, depths = BasicBlock, (16, 32, 64), (1, 1, 1)


class ResNet18(ResNet):
    """ResNet-18 (table 1).

    It has 11 173 962 parameters with the stem for CIFAR and 10 classes, 11 689 512 with ImageNet's
    and 1000 classes.
    """

    block, widths, depths = BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2)


class ResNet50(ResNet):
    """ResNet-50 (table 1), the stride of a block in its 3x3 convolution as in torchvision.

    It has 23 520 842 parameters with the stem for CIFAR and 10 classes, 25 557 032 with ImageNet's
    and 1000 classes.
    """

    block, widths, depths = Bottleneck, (64, 128, 256, 512), (3, 4, 6, 3)
