"""The CNN with dropout of the federated EMNIST benchmarks."""

from math import sqrt
from typing import Any

from flax import nnx

from jaxfed.models.layers import check_image_size, uniform
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class CNNDropout(nnx.Module):
    """Two unpadded 3x3 convolutions (32, 64), a max-pool and 128 hidden units, with dropout.

    A quarter of the pooled image and half of the hidden units are dropped. It has 1 206 590
    parameters on 28x28x1 with 62 classes. Kernels start uniform as of Glorot and Bengio, biases at
    zero.

    Args:
      input_shape: height, width and channels of an image.
      num_classes: C.
      convolution: the implementation of convolutions.
      rngs: random streams of the initialisation and of dropout.

    Raises:
      ValueError: if an image has fewer than 6 pixels on a side.

    Reference:
      Reddi et al., Adaptive Federated Optimization, ICLR 2021, the network for EMNIST, which
      TensorFlow Federated calls `cnn_dropout`; FLUTE has it for FEMNIST, pfl-research for CIFAR-10.
    """

    conv2: Any  # by its type, nnx.Conv may lack a bias

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        check_image_size(input_shape, 'cnn_dropout', 6, ('cnn', 'mlp'))
        height, width, channels = input_shape
        self.conv_max_pool = convolution.conv_max_pool

        def conv(inputs: int, outputs: int) -> nnx.Conv:
            init = uniform(sqrt(6 / (9 * (inputs + outputs))))
            return nnx.Conv(
                inputs, outputs, (3, 3), padding='VALID', kernel_init=init,
                conv_general_dilated=convolution.conv_general_dilated, rngs=rngs,
            )  # fmt: skip

        def dense(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(
                inputs, outputs, kernel_init=uniform(sqrt(6 / (inputs + outputs))), rngs=rngs
            )

        self.conv1, self.conv2 = conv(channels, 32), conv(32, 64)
        self.hidden = dense(((height - 4) // 2) * ((width - 4) // 2) * 64, 128)
        self.classifier = dense(128, num_classes)
        self.dropout1, self.dropout2 = nnx.Dropout(0.25, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 128] of images [B, H, W, channels]."""
        x = nnx.relu(self.conv1(x))
        x = self.conv_max_pool(x, self.conv2.kernel[...], 'VALID')
        x = self.dropout1(nnx.relu(x + self.conv2.bias[...]))
        x = self.dropout2(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))
        return Outputs(logits=self.classifier(x), features=x)
