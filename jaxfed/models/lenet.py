"""LeNet-5 in the form of FedCAD (He et al., 2022) and FedSSD (He et al., 2022)."""

from flax import nnx

from jaxfed.models.layers import ConvMaxPool, linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class LeNet(nnx.Module):
    """Two unpadded 5x5 convolutions (6, 16), each with ReLU and max-pool, then 120 and 84 units.

    On 32x32x3 with 10 classes it has 62 006 parameters.
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
        if min(height, width) < 16:
            raise ValueError(
                f'input_shape={input_shape} is too small for --model=lenet, whose convolutions '
                'have no padding and need 16x16 or more; use --model=cnn or --model=mlp.'
            )
        self.conv1 = ConvMaxPool(
            channels,
            6,
            kernel_size=(5, 5),
            padding='VALID',
            convolution=convolution,
            rngs=rngs,
        )
        self.conv2 = ConvMaxPool(
            6,
            16,
            kernel_size=(5, 5),
            padding='VALID',
            convolution=convolution,
            rngs=rngs,
        )
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        self.hidden1 = linear(left[0] * left[1] * 16, 120, rngs=rngs)
        self.hidden2 = linear(120, 84, rngs=rngs)
        self.classifier = linear(84, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 84] of images [B, H, W, channels]."""
        x = nnx.relu(self.conv1(x))
        x = nnx.relu(self.conv2(x))
        x = nnx.relu(self.hidden1(x.reshape(x.shape[0], -1)))
        features = nnx.relu(self.hidden2(x))
        return Outputs(logits=self.classifier(features), features=features)
