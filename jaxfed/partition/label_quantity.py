"""Label skew from a fixed number of classes a client (#K = k)."""

import numpy as np

from jaxfed.partition.checks import (
    Seed,
    check_holders,
    check_labels_per_client,
    checked_labels,
    generator,
)


def label_quantity(
    labels: np.ndarray, *, num_clients: int, labels_per_client: int, seed: Seed
) -> list[np.ndarray]:
    """Gives each client k random classes and splits each class evenly among its holders.

    The classes are first dealt in turn, one to each client or, if there are fewer clients than
    classes, until all are dealt, so that every class has a holder; the rest of a client's k
    classes are drawn from those it does not hold.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      labels_per_client: classes k of each client.
      seed: of the classes and shuffles.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example once.

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
    turn = np.arange(max(num_clients, num_classes))
    holds[turn % num_clients, rng.permutation(num_classes)[turn % num_classes]] = True
    for row in holds:
        row[rng.choice(np.flatnonzero(~row), labels_per_client - row.sum(), replace=False)] = True
    check_holders(holds, classes, class_sizes)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for column, label in enumerate(classes):
        holders = np.flatnonzero(holds[:, column])
        members = rng.permutation(np.flatnonzero(labels == label))
        for i, piece in zip(holders, np.array_split(members, holders.size), strict=True):
            parts[i].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
