"""Quantity skew: clients of unequal sizes with the same distribution."""

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator
from jaxfed.partition.proportions import deal_counts, draw_counts


def quantity(
    labels: np.ndarray, *, num_clients: int, seed: Seed, size_alpha: float = 0.5, min_size: int = 10
) -> list[np.ndarray]:
    """Deals the examples at random in sizes drawn from a Dirichlet distribution.

    `q ~ Dir(beta, ..., beta)` over the N clients; client `i` gets the share `q_i` of all examples.
    The shares are redrawn until every client holds at least `min_size` examples.

    Args:
      labels: [n] integers, the class of each training example; only n matters.
      num_clients: number of clients N.
      seed: random seed of the sizes and the shuffle.
      size_alpha: concentration beta; the smaller, the more unequal the sizes.
      min_size: least number of examples of a client.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if `size_alpha` is not positive and finite, or `min_size` cannot be reached or
        was not reached with a bounded amount of work.

    Reference:
      Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022,
      section IV-C (quantity skew).
    """
    labels = checked_labels(labels, num_clients)
    rng = generator(seed)
    # All examples are treated as one class, which is split as in `dirichlet`.
    counts = draw_counts(
        rng,
        np.array([labels.size]),
        np.ones((num_clients, 1), bool),
        alpha=size_alpha,
        min_size=min_size,
        flag='size_alpha',
    )
    return deal_counts(rng, np.zeros_like(labels), counts)
