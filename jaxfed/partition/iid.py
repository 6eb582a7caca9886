"""A random partition, in which all clients have the same distribution."""

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator


def iid(labels: np.ndarray, *, num_clients: int, seed: Seed) -> list[np.ndarray]:
    """Deals the examples at random to clients whose sizes differ by at most one.

    Args:
      labels: [n] integers, the class of each training example; only n matters.
      num_clients: number of clients N.
      seed: random seed of the shuffle.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if there are more clients than examples.

    Reference:
      McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
      AISTATS 2017, section 3.
    """
    labels = checked_labels(labels, num_clients)
    order = generator(seed).permutation(labels.size)
    return [np.sort(part) for part in np.array_split(order, num_clients)]
