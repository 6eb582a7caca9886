"""MobileNet, version 1 (Howard et al., 2017)."""

from itertools import pairwise
from typing import Any

from flax import nnx

from jaxfed.models.blocks import BlockNetwork, ConvNorm, Stem
from jaxfed.models.layers import linear
from jaxfed.models.norm import Norm
from jaxfed.models.ops import Convolution
from jaxfed.types import Array

# Channels and stride of each block.
BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


class Separable(nnx.Module):
    """A depthwise 3x3 convolution and a 1x1 convolution, each with ReLU."""

    def __init__(self, in_channels: int, out_channels: int, strides: int, **options: Any) -> None:
        inputs = in_channels
        self.depthwise = ConvNorm(inputs, inputs, 3, strides, groups=inputs, **options)
        self.pointwise = ConvNorm(in_channels, out_channels, 1, **options)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes [B, H / strides, W / strides, out_channels] of [B, H, W, in_channels]."""
        return nnx.relu(self.pointwise(nnx.relu(self.depthwise(x, mask)), mask))


class MobileNet(BlockNetwork):
    """A 3x3 convolution, 13 depthwise separable ones and a mean over pixels.

    It has 3 217 226 parameters with the stem for CIFAR (stride 1) and 10 classes, 4 231 976 with
    ImageNet's (stride 2) and 1000 classes.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      width: multiplier of all channels, above 0 and at most 8; channels are rounded down to an even
        number, at least 2.
      stem: for images as large as CIFAR's or ImageNet's.
      norm: normalisation.
      remat: recompute the inner values of each block for its gradient.
      convolution: the implementation of convolutions.
      rngs: random streams of the initialisation.

    Reference:
      Howard et al., MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
      Applications, 2017, table 1.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        width: float = 1.0,
        stem: Stem = 'cifar',
        norm: Norm = 'batch',
        remat: bool = False,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        if not 0 < width <= 8:
            raise ValueError(f'--width must be above 0 and at most 8, got {width}.')
        options: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}

        def scaled(channels: int) -> int:
            return max(2, 2 * int(width * channels / 2))  # an even number, for the two groups

        self.remat = remat
        channels = [scaled(32), *(scaled(out) for out, _ in BLOCKS)]
        strides = 2 if stem == 'imagenet' else 1
        self.stem = ConvNorm(input_shape[2], channels[0], 3, strides, **options)
        self.blocks = nnx.List(
            Separable(*ends, strides, **options)
            for ends, (_, strides) in zip(pairwise(channels), BLOCKS, strict=True)
        )
        self.classifier = linear(channels[-1], num_classes, rngs=rngs)
