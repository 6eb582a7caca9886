"""VGG with 11 layers (Simonyan and Zisserman, 2015) in its form for CIFAR."""

from itertools import pairwise
from typing import Any

from flax import nnx

from jaxfed.models import ops
from jaxfed.models.blocks import ConvNorm, run_blocks
from jaxfed.models.layers import check_image_size, linear
from jaxfed.models.norm import Norm
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs

# Channels of the convolutions between two max-pools.
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class Stage(nnx.Module):
    """Padded 3x3 convolutions, each with ReLU, and a max-pool."""

    def __init__(self, in_channels: int, widths: tuple[int, ...], **options: Any) -> None:
        channels = pairwise((in_channels, *widths))
        self.convs = nnx.List(ConvNorm(*ends, use_bias=True, **options) for ends in channels)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes [B, H / 2, W / 2, widths[-1]] of [B, H, W, in_channels]."""
        for conv in self.convs:
            x = nnx.relu(conv(x, mask))
        return ops.max_pool(x)


class VGG11(nnx.Module):
    """Eight padded 3x3 convolutions, five max-pools between them and one dense layer.

    It has 9 231 114 parameters on 32x32x3 with 10 classes.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      norm: normalisation.
      remat: recompute the inner values of each stage for its gradient.
      convolution: the implementation of convolutions.
      rngs: random streams of the initialisation.

    Raises:
      ValueError: if an image has fewer than 32 pixels on a side.

    Reference:
      Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition,
      ICLR 2015, table 1, column A, without its two dense layers of 4096 units.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        norm: Norm = 'batch',
        remat: bool = False,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        height, width, channels = input_shape
        check_image_size(input_shape, 'vgg11', 32, ('resnet18', 'cnn'))  # halves images five times
        self.remat = remat
        options: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        inputs = (channels, *(widths[-1] for widths in STAGES))
        self.stages = nnx.List(
            Stage(channels, widths, **options)
            for channels, widths in zip(inputs, STAGES, strict=False)
        )
        self.classifier = linear(
            (height // 32) * (width // 32) * inputs[-1], num_classes, rngs=rngs
        )

    def __call__(self, x: Array, mask: Array | None = None) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        x = run_blocks(self.stages, x, mask, remat=self.remat)
        features = x.reshape(x.shape[0], -1)
        return Outputs(logits=self.classifier(features), features=features)
