"""The values that pass between the parts of jaxfed, every array field with its shape.

Letters: `B` examples in a batch, `C` classes, `F` features, `N` clients, `S` clients sampled a
round, `n` training examples. Everything a method sees is written for ONE client; the engine maps
it over the stacked clients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
PyTree = Any


class Batch(NamedTuple):
    """Examples of one client, ready for the network."""

    x: Array  # [B, H, W, channels] float32, normalised and augmented
    y: Array  # [B] int32 in 0..C-1
    mask: Array  # [B] bool, False for the padding of a short batch


class Outputs(NamedTuple):
    """What a network computes for a batch."""

    logits: Array  # [B, C]
    features: Array  # [B, F], the input of the last layer


class Model(NamedTuple):
    """A network as a pair of pure functions; parameters are a nested dict of arrays."""

    init: Callable[[Array], PyTree]  # random key -> params
    apply: Callable[[PyTree, Array], Outputs]  # (params, x [B, H, W, channels]) -> Outputs


class ClientInfo(NamedTuple):
    """What the engine knows of a client before training."""

    label_counts: Array  # [C] int32, examples of each class
    size: Array  # [] int32, examples in all


class Dataset(NamedTuple):
    """A labelled image classification dataset in host memory."""

    name: str
    x_train: np.ndarray  # [n, H, W, channels] uint8 (or float32), in the file's own units
    y_train: np.ndarray  # [n] int32 in 0..C-1
    x_test: np.ndarray  # [m, H, W, channels], as x_train
    y_test: np.ndarray  # [m] int32
    num_classes: int
