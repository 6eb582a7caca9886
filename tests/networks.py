"""A network that is fast to compile, for runs of every method."""

import contextlib
import functools
from unittest import mock

from flax import nnx

from jaxfed.models import MODELS


class Tiny(nnx.Module):
    """One hidden layer, with batch normalisation if `normal`."""

    def __init__(self, rngs, input_shape, num_classes, normal=False):
        height, width, channels = input_shape
        self.hidden = nnx.Linear(height * width * channels, 8, use_bias=not normal, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs) if normal else nnx.relu
        self.classifier = nnx.Linear(8, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.classifier(nnx.relu(self.norm(self.hidden(x.reshape(len(x), -1)))))


@contextlib.contextmanager
def tiny_networks():
    """Registers the networks `tiny` and `tiny_normal`."""
    normal = functools.partial(Tiny, normal=True)
    with mock.patch.dict(MODELS, {'tiny': Tiny, 'tiny_normal': normal}):
        yield
