"""The convolutional network of FedNTD (Lee et al., 2022) and FedLMD (Lu et al., 2023)."""

from flax import nnx

from jaxfed.models.layers import ConvMaxPool, linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class CNN(nnx.Module):
    """Two padded 5x5 convolutions (32, 64), each with ReLU and max-pool, and 512 hidden units.

    On 32x32x3 with 10 classes it has 2 156 490 parameters.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        height, width, channels = input_shape
        if min(height, width) < 4:
            raise ValueError(
                f'input_shape={input_shape} is too small for --model=cnn, which needs 4x4 or more; '
                'use --model=mlp.'
            )
        self.conv1 = ConvMaxPool(
            channels,
            32,
            kernel_size=(5, 5),
            padding='SAME',
            convolution=convolution,
            rngs=rngs,
        )
        self.conv2 = ConvMaxPool(
            32,
            64,
            kernel_size=(5, 5),
            padding='SAME',
            convolution=convolution,
            rngs=rngs,
        )
        self.hidden = linear((height // 4) * (width // 4) * 64, 512, rngs=rngs)
        self.classifier = linear(512, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 512] of images [B, H, W, channels]."""
        x = nnx.relu(self.conv1(x))
        x = nnx.relu(self.conv2(x))
        features = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return Outputs(logits=self.classifier(features), features=features)
