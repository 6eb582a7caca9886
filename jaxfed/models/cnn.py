"""The convolutional network of FedNTD (Lee et al., 2022) and FedLMD (Lu et al., 2023)."""

from flax import nnx

from jaxfed.models.layers import ConvGeneralDilated, conv, linear
from jaxfed.ops import max_pool
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
        conv_general_dilated: ConvGeneralDilated,
        rngs: nnx.Rngs,
    ) -> None:
        height, width, channels = input_shape
        if min(height, width) < 4:
            raise ValueError(
                f'input_shape={input_shape} is too small for --model=cnn, which needs 4x4 or more; '
                'use --model=mlp.'
            )
        self.conv1 = conv(
            channels,
            32,
            kernel_size=(5, 5),
            padding='SAME',
            conv_general_dilated=conv_general_dilated,
            rngs=rngs,
        )
        self.conv2 = conv(
            32,
            64,
            kernel_size=(5, 5),
            padding='SAME',
            conv_general_dilated=conv_general_dilated,
            rngs=rngs,
        )
        self.hidden = linear((height // 4) * (width // 4) * 64, 512, rngs=rngs)
        self.classifier = linear(512, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 512] of images [B, H, W, channels]."""
        # The ReLU after the pool is the same function on a quarter of the elements.
        x = nnx.relu(max_pool(self.conv1(x)))
        x = nnx.relu(max_pool(self.conv2(x)))
        features = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return Outputs(logits=self.classifier(features), features=features)
