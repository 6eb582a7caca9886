"""Label skew without quantity skew: each client draws its class proportions."""

import numpy as np

from jaxfed.partition.checks import Seed, check_concentration, checked_labels, generator
from jaxfed.partition.proportions import deal_counts, log_gammas


def client_dirichlet(
    labels: np.ndarray, *, num_clients: int, alpha: float, seed: Seed
) -> list[np.ndarray]:
    """Fills clients of equal size by class proportions drawn from a Dirichlet distribution.

    `p_i ~ Dir(alpha, ..., alpha)` over the C classes for each client `i`. All clients draw the
    classes of their examples from `p_i` at once. If clients request more examples of a class than
    it has, random requests are served, and the clients draw the rest from `p_i` over the remaining
    classes. So clients differ only in their labels; with `dirichlet` they also differ in size.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      alpha: concentration; the smaller, the fewer classes a client holds.
      seed: random seed of the proportions and shuffles.

    Returns:
      N sorted int64 arrays, the examples of each client, whose sizes differ by at most one. Every
      example has one client.

    Raises:
      ValueError: if alpha is not positive and finite, or there are more clients than examples.

    Reference:
      Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
      Classification, 2019, section 3 (their alpha is `C * alpha`); classes that run out as in
      Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, where clients
      take one example after another.
    """
    labels = checked_labels(labels, num_clients)
    check_concentration('alpha', alpha)
    rng = generator(seed)
    _, left = np.unique(labels, return_counts=True)
    log_gamma = log_gammas(rng, alpha, (num_clients, left.size))
    needed = np.full(num_clients, labels.size // num_clients)
    needed[: labels.size % num_clients] += 1
    counts = np.zeros((num_clients, left.size), np.int64)
    # A client that still needs examples has requested a class that ran out, so this takes at most
    # C + 1 iterations.
    while needed.any():
        logits = np.where(left > 0, log_gamma, -np.inf)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        drawn = rng.multinomial(needed, p / p.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(drawn.sum(axis=0) > left):
            drawn[:, c] = rng.multivariate_hypergeometric(drawn[:, c], left[c])
        counts += drawn
        needed -= drawn.sum(axis=1)
        left -= drawn.sum(axis=0)
    return deal_counts(rng, labels, counts)
