"""Train a network of your own beside a built-in one: python -m experiments.examples.own_network."""

from math import prod
from typing import Any

import jax
from flax import nnx

import jaxfed
from jaxfed.models import MODELS
from jaxfed.types import Outputs


class Residual(nnx.Module):
    """Two fully connected layers with a shortcut."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, convolution: Any, rngs: nnx.Rngs
    ) -> None:
        """Make the layers; `convolution` is for networks with convolutions."""
        self.first = nnx.Linear(prod(input_shape), 64, rngs=rngs)
        self.second = nnx.Linear(64, 64, rngs=rngs)
        self.classifier = nnx.Linear(64, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> Outputs:
        """Compute logits [B, C] and features [B, 64] of images [B, H, W, channels]."""
        hidden = nnx.relu(self.first(x.reshape(x.shape[0], -1)))
        features = nnx.relu(hidden + self.second(hidden))
        return Outputs(self.classifier(features), features)


def main(rounds: int = 20) -> dict[str, float]:
    """Register the network, train it and the built-in mlp, and print both accuracies."""
    MODELS['residual'] = Residual
    accuracies = {}
    for model in ('mlp', 'residual'):
        print(f'{model}:')
        config = jaxfed.Config(method='fedlmd', model=model, rounds=rounds)
        result = jaxfed.simulate(config, quiet=False)
        accuracies[model] = result.summary['final_accuracy']
    for model, accuracy in accuracies.items():
        print(f'{model:10} final accuracy {accuracy:.1%}')
    return accuracies


if __name__ == '__main__':
    jaxfed.use_every_core()
    main()
