"""The multi-layer perceptron with two hidden layers of 200 units (McMahan et al., 2017)."""

from math import prod

from flax import nnx

from jaxfed.models.layers import linear
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs


class MLP(nnx.Module):
    """Two hidden layers of 200 units with ReLU.

    On 28x28x1 with 10 classes it has 199 210 parameters.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        del convolution  # every network is made with the same arguments
        self.hidden1 = linear(prod(input_shape), 200, rngs=rngs)
        self.hidden2 = linear(200, 200, rngs=rngs)
        self.classifier = linear(200, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 200] of images [B, H, W, channels]."""
        x = nnx.relu(self.hidden1(x.reshape(x.shape[0], -1)))
        features = nnx.relu(self.hidden2(x))
        return Outputs(logits=self.classifier(features), features=features)
