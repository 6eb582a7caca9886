"""The images of clients outside of training, under --feature_shift."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.config import Config
from jaxfed.data.feature_shift import FeatureShift, Shift, make_shift
from jaxfed.runs.experiment import Experiment


def shift_of(config: Config) -> Shift | None:
    """The shift of --feature_shift, None without one."""
    return _shift(config.feature_shift, config.shift_strength, config.num_clients)


@cache  # so that it is compiled once
def _shift(kind: FeatureShift, strength: float | None, num_clients: int) -> Shift | None:
    shift = make_shift(kind, strength, num_clients)
    return shift and jax.jit(shift)


def client_images(experiment: Experiment, clients: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Training images as the clients see them.

    Args:
      experiment: the experiment.
      clients: [k] client ids.
      rows: [K, n] indices of training examples; K >= k, the other rows are padding.

    Returns:
      [K, n, H, W, channels] in the units of the dataset's files.
    """
    images, shift = experiment.dealt.dataset.x_train[rows], shift_of(experiment.config)
    if shift is None:
        return images
    shifted = np.zeros(images.shape, np.float32)
    for place, client in enumerate(clients):
        shifted[place] = shift(images[place], jnp.float32(client))
    return shifted
