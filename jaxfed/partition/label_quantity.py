"""Label skew from a fixed number of classes a client (#K = k)."""

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator


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
    if not 1 <= labels_per_client <= num_classes:
        raise ValueError(
            f'labels_per_client={labels_per_client} with {num_classes} classes: choose '
            f'--labels_per_client from 1 to {num_classes}.'
        )
    if num_clients * labels_per_client < num_classes:
        raise ValueError(
            f'num_clients={num_clients} with labels_per_client={labels_per_client} cannot hold '
            f'all {num_classes} classes: raise --labels_per_client to at least '
            f'{-(-num_classes // num_clients)}.'
        )
    rng = generator(seed)
    holds = np.zeros((num_clients, num_classes), bool)
    turn = np.arange(max(num_clients, num_classes))
    holds[turn % num_clients, rng.permutation(num_classes)[turn % num_classes]] = True
    for row in holds:
        row[rng.choice(np.flatnonzero(~row), labels_per_client - row.sum(), replace=False)] = True
    if (holds.sum(axis=0) > class_sizes).any():
        c = np.argmax(holds.sum(axis=0) - class_sizes)
        raise ValueError(
            f'class {classes[c]} has {class_sizes[c]} examples for the {holds[:, c].sum()} of '
            f'num_clients={num_clients} that hold it with labels_per_client={labels_per_client}: '
            'lower --num_clients or --labels_per_client.'
        )
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for column, label in enumerate(classes):
        holders = np.flatnonzero(holds[:, column])
        members = rng.permutation(np.flatnonzero(labels == label))
        for i, piece in zip(holders, np.array_split(members, holders.size), strict=True):
            parts[i].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
