"""VGG with 11 layers (Simonyan and Zisserman, 2015) in its form for CIFAR."""

from typing import Any

from flax import nnx

from jaxfed.models import ops
from jaxfed.models.blocks import ConvNorm, Norm, run_blocks
from jaxfed.models.layers import linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs

# Channels of the convolutions between two max-pools.
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class Stage(nnx.Module):
    """Padded 3x3 convolutions, each with ReLU, and a max-pool."""

    def __init__(
        self,
        in_channels: int,
        widths: tuple[int, ...],
        *,
        norm: Norm,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        ends = (in_channels, *widths)
        self.convs = nnx.List(
            ConvNorm(a, b, norm=norm, use_bias=True, convolution=convolution, rngs=rngs)
            for a, b in zip(ends[:-1], widths, strict=True)
        )

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Computes [B, H / 2, W / 2, widths[-1]] of [B, H, W, in_channels]."""
        for conv in self.convs:
            x = nnx.relu(conv(x, mask))
        return ops.max_pool(x)


class VGG11(nnx.Module):
    """Eight padded 3x3 convolutions, five max-pools between them and one dense layer.

    On 32x32x3 with 10 classes it has 9 231 114 parameters.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      norm: normalisation.
      remat: compute the inside of each stage again for its gradient.
      convolution: the operations to compute convolutions with.
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
        if min(height, width) < 32:
            raise ValueError(
                f'input_shape={input_shape} is too small for --model=vgg11, which halves images '
                'five times and needs 32x32 or more; use --model=resnet18 or --model=cnn.'
            )
        self.remat = remat
        made: dict[str, Any] = {'norm': norm, 'convolution': convolution, 'rngs': rngs}
        stages = []
        for widths in STAGES:
            stages.append(Stage(channels, widths, **made))
            channels = widths[-1]
        self.stages = nnx.List(stages)
        features = (height // 32) * (width // 32) * channels
        self.classifier = linear(features, num_classes, rngs=rngs)

    def __call__(self, x: Array, mask: Array | None = None) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        x = run_blocks(self.stages, x, mask, remat=self.remat)
        features = x.reshape(x.shape[0], -1)
        return Outputs(logits=self.classifier(features), features=features)
