"""MobileNet, version 1 (Howard et al., 2017)."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxfed.models.blocks import ConvNorm, Norm, Stem, run_blocks
from jaxfed.models.layers import linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs

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
    """A 3x3 convolution of each channel on its own and a 1x1 convolution, each with ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        strides: int,
        *,
        norm: Norm,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        self.depthwise = ConvNorm(in_channels, in_channels, 3, strides, groups=in_channels, **made)
        self.pointwise = ConvNorm(in_channels, out_channels, 1, **made)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes [B, H / strides, W / strides, out_channels] of [B, H, W, in_channels]."""
        return nnx.relu(self.pointwise(nnx.relu(self.depthwise(x, mask)), mask))


class MobileNet(nnx.Module):
    """A 3x3 convolution, 13 depthwise separable ones and a mean over places.

    With the stem for CIFAR (stride 1) and 10 classes it has 3 217 226 parameters; with ImageNet's
    (stride 2) and 1000 classes 4 231 976.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      width: multiplier of all channels, above 0; rounded down, at least 2 channels.
      stem: for images as large as CIFAR's or ImageNet's.
      norm: normalisation.
      remat: compute the inside of each block again for its gradient.
      convolution: the operations to compute convolutions with.
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
            raise ValueError(f'--width={width} must be above 0 and at most 8.')
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}

        def scaled(channels: int) -> int:
            return max(2, 2 * int(width * channels / 2))  # an even number, for the two groups

        self.remat = remat
        channels = scaled(32)
        self.stem = ConvNorm(input_shape[2], channels, 3, 2 if stem == 'imagenet' else 1, **made)
        blocks = []
        for out, strides in BLOCKS:
            blocks.append(Separable(channels, scaled(out), strides, **made))
            channels = scaled(out)
        self.blocks = nnx.List(blocks)
        self.classifier = linear(channels, num_classes, rngs=rngs)

    def __call__(self, x: Array, mask: Array | None = None) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        x = nnx.relu(self.stem(x, mask))
        x = run_blocks(self.blocks, x, mask, remat=self.remat)
        features = jnp.mean(x, axis=(1, 2))
        return Outputs(logits=self.classifier(features), features=features)
