"""Label skew from a Dirichlet distribution (LDA)."""

import copy
import functools

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator
from jaxfed.partition.proportions import deal_counts, draw_by_client, draw_counts, log_gammas


def dirichlet(
    labels: np.ndarray,
    *,
    num_clients: int,
    alpha: float,
    seed: Seed,
    min_size: int = 10,
    balanced: bool = False,
) -> list[np.ndarray]:
    """Splits each class among the clients in proportions drawn from a Dirichlet distribution.

    `p_c ~ Dir(alpha, ..., alpha)` over the N clients for each class `c`; client `i` gets the share
    `p_{c,i}` of the class. All proportions are redrawn until every client holds at least `min_size`
    examples. The balanced variant deals one class after another. A client that holds `n / N`
    examples gets no more: its proportion is set to 0, and the others are renormalised.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      alpha: concentration; the smaller, the fewer classes a client holds.
      seed: random seed of the proportions and shuffles.
      min_size: least number of examples of a client.
      balanced: whether to cap the sizes of the clients.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if alpha is not positive and finite, or `min_size` cannot be reached or was not
        reached with a bounded amount of work.

    Reference:
      Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019,
      section 4; the redraw as in Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022;
      the balanced variant as in the released code of FedNTD (Lee et al., NeurIPS 2022) and FedLMD.
    """
    labels = checked_labels(labels, num_clients)
    _, class_sizes = np.unique(labels, return_counts=True)
    # Equal integers are equal seeds.
    draw = _accepted if isinstance(seed, int | np.integer) else _accepted.__wrapped__
    counts, rng = draw(seed, tuple(class_sizes.tolist()), num_clients, alpha, min_size, balanced)
    return deal_counts(copy.deepcopy(rng), labels, counts)


@functools.lru_cache(maxsize=16)  # the experiments of a sweep or a table share their draws
def _accepted(
    seed: Seed,
    class_sizes: tuple[int, ...],
    num_clients: int,
    alpha: float,
    min_size: int,
    balanced: bool,
) -> tuple[np.ndarray, np.random.Generator]:
    """The counts [N, C] of the first acceptable draw, and the generator after it."""
    rng, sizes = generator(seed), np.array(class_sizes)
    counts = draw_counts(
        rng,
        sizes,
        np.ones((num_clients, sizes.size), bool),
        alpha=alpha,
        min_size=min_size,
        draw=_draw_balanced if balanced else draw_by_client,
    )
    return counts, rng


def _draw_balanced(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    holds: np.ndarray,
    alpha: float,
    min_sizes: np.ndarray,
    attempts: int,
) -> tuple[np.ndarray | None, int]:
    """Draws one class after another over all clients whose size is below the cap."""
    num_clients = len(holds)
    cap = class_sizes.sum() / num_clients
    shape = (attempts, num_clients)
    counts = np.zeros((class_sizes.size, *shape), np.int64)
    sizes = np.zeros(shape, np.int64)
    for c, class_size in enumerate(class_sizes):
        log_gamma = log_gammas(rng, alpha, shape)
        log_gamma[sizes >= cap] = -np.inf
        share = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True)).cumsum(axis=1)
        edge = np.rint(share / share[:, -1:] * class_size).astype(np.int64)
        counts[c] = np.diff(edge, axis=1, prepend=0)
        sizes += counts[c]
    enough = np.flatnonzero((sizes >= min_sizes).all(axis=1))
    return (counts[:, enough[0]].T if enough.size else None), counts.size
