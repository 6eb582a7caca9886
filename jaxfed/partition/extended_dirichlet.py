"""Label skew from a fixed number of classes per client, split in Dirichlet proportions."""

import numpy as np

from jaxfed.partition.checks import (
    Seed,
    check_holders,
    check_labels_per_client,
    checked_labels,
    generator,
)
from jaxfed.partition.proportions import deal_counts, draw_counts


def extended_dirichlet(
    labels: np.ndarray,
    *,
    num_clients: int,
    labels_per_client: int,
    alpha: float,
    seed: Seed,
    min_size: int = 10,
) -> list[np.ndarray]:
    """Gives each client k classes and splits each class among its holders by Dirichlet shares.

    One client after another, in random order, takes the k classes with the fewest holders, ties
    broken at random, so the numbers of holders differ by at most one. Each holder `i` of a class
    `c` gets one example, so a client has exactly k classes at any alpha, and the share `p_{c,i}` of
    the rest, `p_c ~ Dir(alpha, ..., alpha)` over the holders. All proportions are redrawn until
    every client holds at least `min_size` examples. The authors' code draws the classes of each
    client at random until each class has a fifth of the mean number of holders, and deals at most
    n/N examples to a client.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      labels_per_client: classes k of each client.
      alpha: concentration; the smaller, the more unequal the shares of a class.
      seed: random seed of the classes, proportions and shuffles.
      min_size: least number of examples of a client.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if k is not in 1..C, if N * k < C, if a class has fewer examples than holders, if
        alpha is not positive and finite, or `min_size` cannot be reached or was not reached with a
        bounded amount of work.

    Reference:
      Li and Lyu, Convergence Analysis of Sequential Federated Learning on Heterogeneous Data,
      NeurIPS 2023 (extended Dirichlet strategy).
    """
    labels = checked_labels(labels, num_clients)
    classes, class_sizes = np.unique(labels, return_counts=True)
    check_labels_per_client(labels_per_client, num_clients, classes.size)
    rng = generator(seed)
    holds = np.zeros((num_clients, classes.size), bool)
    for row in holds:
        fewest_first = np.lexsort((rng.random(classes.size), holds.sum(axis=0)))
        row[fewest_first[:labels_per_client]] = True
    holds = rng.permutation(holds)  # the last to choose share the most crowded classes
    check_holders(holds, classes, class_sizes)
    counts = draw_counts(rng, class_sizes, holds, alpha=alpha, min_size=min_size, first=1)
    return deal_counts(rng, labels, counts)
