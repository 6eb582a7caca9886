"""A convolutional network for signals, such as those of human activity recognition."""

from flax import nnx

from jaxfed.models.layers import linear, uniform_fan_in
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs

_WIDTH = 9  # of the convolutions


class CNN1D(nnx.Module):
    """Two padded convolutions of width 9 (32, 64), each with ReLU and max-pool, and 512 units.

    A signal of `length` samples is an image of height 1: x is [B, 1, length, channels].

    Reference:
      In the form of Zeng et al., Convolutional Neural Networks for Human Activity Recognition using
      Mobile Sensors, MobiCASE 2014, with the sizes of the CNN of FedNTD.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        height, length, channels = input_shape
        if height != 1 or length < 4:
            raise ValueError(
                '--model=cnn1d requires signals [n, 1, length, channels] of 4 samples or more, got '
                f'input_shape={tuple(input_shape)}; x[:, None] makes them of [n, length, channels].'
            )
        fast = convolution.conv_general_dilated

        def conv(inputs: int, outputs: int) -> nnx.Conv:
            init = uniform_fan_in(_WIDTH * inputs)
            return nnx.Conv(
                inputs, outputs, (1, _WIDTH), kernel_init=init, bias_init=init,
                conv_general_dilated=fast, rngs=rngs,
            )  # fmt: skip

        self.conv1, self.conv2 = conv(channels, 32), conv(32, 64)
        self.hidden = linear(length // 4 * 64, 512, rngs=rngs)
        self.classifier = linear(512, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 512] of signals [B, 1, length, channels]."""
        for layer in (self.conv1, self.conv2):
            x = nnx.relu(_max_pool(layer(x)))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return Outputs(logits=self.classifier(x), features=x)


def _max_pool(x: Array) -> Array:
    """Maxima of pairs of samples, [B, 1, length, ch] -> [B, 1, length // 2, ch]."""
    batch, _, length, channels = x.shape
    pairs = x[:, :, : length // 2 * 2].reshape(batch, 1, length // 2, 2, channels)
    return pairs.max(axis=3)
