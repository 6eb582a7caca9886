"""Label skew without quantity skew: each client draws its own mix of classes."""

import numpy as np

from jaxfed.partition.checks import Seed, check_concentration, checked_labels, generator
from jaxfed.partition.proportions import deal_counts, log_gammas


def client_dirichlet(
    labels: np.ndarray, *, num_clients: int, alpha: float, seed: Seed
) -> list[np.ndarray]:
    """Fills clients of equal size by class proportions that each draws from a Dirichlet.

    `p_i ~ Dir(alpha, ..., alpha)` over the C classes for each client `i`, whose examples are drawn
    from `p_i` for all clients at once. Where they ask for more of a class than there is, its
    examples go to the requests at random, and what a client still needs is drawn from its `p_i`
    over the classes that are left. So clients differ in their labels alone, where `dirichlet`
    makes them differ in size, too.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      alpha: concentration; the smaller, the fewer classes a client holds.
      seed: of proportions and shuffles.

    Returns:
      N sorted int64 arrays, the examples of each client, whose sizes differ by at most one;
      together every example once.

    Raises:
      ValueError: if alpha is not positive and finite or there are more clients than examples.

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
    # Whoever still needs examples has met a class that ran out: C + 1 turns at most.
    while needed.any():
        open_ = np.where(left > 0, log_gamma, -np.inf)
        p = np.exp(open_ - open_.max(axis=1, keepdims=True))
        asked = rng.multinomial(needed, p / p.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, c] = rng.multivariate_hypergeometric(asked[:, c], left[c])
        counts += asked
        needed -= asked.sum(axis=1)
        left -= asked.sum(axis=0)
    return deal_counts(rng, labels, counts)
