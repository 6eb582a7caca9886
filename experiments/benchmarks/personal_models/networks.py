"""What `personal_models` adds to jaxfed: two networks, and PFLlib's rule of APFL."""

import jax
from flax import nnx

from jaxfed import Method, losses, methods
from jaxfed.methods.method import ClientView, LocalView
from jaxfed.models import MODELS
from jaxfed.models.feedforward import FeedForward
from jaxfed.models.layers import linear, uniform_fan_in
from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Outputs, PyTree


class UnpaddedCNN(FeedForward):
    """Two unpadded 5x5 convolutions (32, 64), each with ReLU and max-pool, and 512 hidden units."""

    name, channels, padding, units = 'unpadded_cnn', (32, 64), 'VALID', (('hidden', 512),)
    least = 16


class NormalisedCNN(nnx.Module):
    """`UnpaddedCNN` with batch normalisation after each convolution."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        convolution: Convolution,
        rngs: nnx.Rngs,
    ) -> None:
        height, width, channels = input_shape
        for i, units in enumerate((32, 64), start=1):
            init = uniform_fan_in(25 * channels)
            conv = nnx.Conv(
                channels, units, (5, 5), padding='VALID', kernel_init=init, bias_init=init,
                conv_general_dilated=convolution.conv_general_dilated, rngs=rngs,
            )  # fmt: skip
            setattr(self, f'conv{i}', conv)
            setattr(self, f'norm{i}', nnx.BatchNorm(units, momentum=0.9, epsilon=1e-5, rngs=rngs))
            height, width, channels = (height - 4) // 2, (width - 4) // 2, units
        self.hidden = linear(height * width * channels, 512, rngs=rngs)
        self.classifier = linear(512, num_classes, rngs=rngs)

    def __call__(self, x: Array) -> Outputs:
        """Computes logits [B, C] and features [B, 512] of images [B, H, W, channels]."""
        for i in (1, 2):
            x = getattr(self, f'norm{i}')(getattr(self, f'conv{i}')(x))
            x = nnx.max_pool(nnx.relu(x), (2, 2), strides=(2, 2))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return Outputs(self.classifier(x), x)


def apfl_overwritten(*, alpha: float = 0.5) -> Method:
    """APFL as PFLlib trains it, with a fixed share.

    v_i: CE(v_i); after local training v_i <- alpha v_i + (1 - alpha) w

    Args:
      alpha: share of the client's model, in 0..1.

    Returns:
      The method.
    """
    paper = methods.apfl(alpha=alpha)

    def penalty(view: LocalView) -> Array:
        logits = view.apply({'model': view.params['own']}, view.batch.x).logits
        return view.mean(losses.cross_entropy(logits, view.batch.y))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        own = jax.tree.map(
            lambda v, w: alpha * v + (1 - alpha) * w, client.params['own'], client.params['model']
        )
        return paper.finish(client._replace(params={**client.params, 'own': own}))

    return paper._replace(penalty=penalty, finish=finish)


NETWORKS = {'unpadded_cnn': UnpaddedCNN, 'normalised_cnn': NormalisedCNN}


def register() -> None:
    """Adds the networks and the method to jaxfed's registries."""
    MODELS.update(NETWORKS)
    methods.METHODS['apfl_overwritten'] = apfl_overwritten
