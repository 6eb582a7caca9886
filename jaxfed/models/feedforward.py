"""The small networks of the papers: a perceptron, LeNet-5 and the CNN of FedNTD and FedLMD."""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from flax import nnx

from jaxfed.models.layers import check_image_size, linear, uniform_fan_in
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class FeedForward(nnx.Module):
    """5x5 convolutions with max-pools, then dense layers, each with ReLU, and a classifier."""

    name: ClassVar[str]
    channels: ClassVar[Sequence[int]] = ()  # of the convolutions conv1, conv2, ...
    padding: ClassVar[str] = 'SAME'
    units: ClassVar[Sequence[tuple[str, int]]]  # name and width of the dense layers
    least: ClassVar[int] = 1  # smallest height and width of an image
    others: ClassVar[Sequence[str]] = ()  # networks for smaller images

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        check_image_size(input_shape, self.name, self.least, self.others)
        self.conv_max_pool = convolution.conv_max_pool
        *sides, width = input_shape
        for i, channels in enumerate(self.channels, start=1):
            init = uniform_fan_in(25 * width)
            conv = nnx.Conv(width, channels, (5, 5), kernel_init=init, bias_init=init, rngs=rngs)
            setattr(self, f'conv{i}', conv)
            sides = [(side if self.padding == 'SAME' else side - 4) // 2 for side in sides]
            width = channels
        width *= prod(sides)
        for name, units in self.units:
            setattr(self, name, linear(width, units, rngs=rngs))
            width = units
        self.classifier = linear(width, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, F] of images [B, H, W, channels]."""
        for i in range(len(self.channels)):
            conv = getattr(self, f'conv{i + 1}')
            # The bias follows the pool: the same function on a quarter of the elements.
            x = nnx.relu(self.conv_max_pool(x, conv.kernel[...], self.padding) + conv.bias[...])
        x = x.reshape(x.shape[0], -1)
        for name, _ in self.units:
            x = nnx.relu(getattr(self, name)(x))
        return Outputs(logits=self.classifier(x), features=x)


class MLP(FeedForward):
    """Two hidden layers of 200 units with ReLU.

    It has 199 210 parameters on 28x28x1 with 10 classes.

    Reference:
      McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
      AISTATS 2017.
    """

    name, units = 'mlp', (('hidden1', 200), ('hidden2', 200))


class CNN(FeedForward):
    """Two padded 5x5 convolutions (32, 64), each with ReLU and max-pool, and 512 hidden units.

    It has 2 156 490 parameters on 32x32x3 with 10 classes.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022; Lu et al., Federated Learning with Label-Masking Distillation,
      ACM MM 2023.
    """

    name, channels, units = 'cnn', (32, 64), (('hidden', 512),)
    least, others = 4, ('mlp',)


class LeNet(FeedForward):
    """Two unpadded 5x5 convolutions (6, 16), each with ReLU and max-pool, then 120 and 84 units.

    It has 62 006 parameters on 32x32x3 with 10 classes.

    Reference:
      LeNet-5 in the form of FedCAD (He et al., 2022) and FedSSD (He et al., 2022).
    """

    name, channels, padding = 'lenet', (6, 16), 'VALID'
    units = (('hidden1', 120), ('hidden2', 84))
    least, others = 16, ('cnn', 'mlp')
