"""Label skew from a fixed number of classes per client (#K = k)."""

import numpy as np

from jaxfed.partition.checks import (
    Seed,
    check_holders,
    check_labels_per_client,
    checked_labels,
    generator,
)
from jaxfed.partition.proportions import deal_counts


def label_quantity(
    labels: np.ndarray, *, num_clients: int, labels_per_client: int, seed: Seed
) -> list[np.ndarray]:
    """Gives each client k random classes and splits each class evenly among its holders.

    First, the classes are dealt round-robin in random order, until every client has a class and
    every class has a holder. Each client then draws the rest of its k classes from the others.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      labels_per_client: classes k of each client.
      seed: random seed of the classes and shuffles.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if k is not in 1..C, if N * k < C, or if a class has fewer examples than holders.

    Reference:
      Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022,
      section IV-A (quantity-based label imbalance), as used by FedSSD, table II.
    """
    labels = checked_labels(labels, num_clients)
    classes, class_sizes = np.unique(labels, return_counts=True)
    num_classes = classes.size
    check_labels_per_client(labels_per_client, num_clients, num_classes)
    rng = generator(seed)
    holds = np.zeros((num_clients, num_classes), bool)
    pairs = np.arange(max(num_clients, num_classes))
    holds[pairs % num_clients, rng.permutation(num_classes)[pairs % num_classes]] = True
    for row in holds:
        row[rng.choice(np.flatnonzero(~row), labels_per_client - row.sum(), replace=False)] = True
    check_holders(holds, classes, class_sizes)
    # The first holders of a class get one example more if it does not divide evenly.
    size, remainder = np.divmod(class_sizes, holds.sum(axis=0))
    counts = holds * (size + (holds.cumsum(axis=0) <= remainder))
    return deal_counts(rng, labels, counts)
