"""Label skew from a Dirichlet distribution (LDA)."""

import numpy as np

from jaxfed.partition.checks import Seed, checked_labels, generator

# Work before a request counts as hopeless, about a quarter of a minute, in random numbers drawn; a
# step over arrays costs as much as _STEP_WORK of them, however short they are. 100 clients with 10
# of CIFAR-10's examples each at alpha 0.05, the most skewed setting in use, take 15 million random
# numbers on average and 30 million when balanced.
_MAX_WORK = 250_000_000
_STEP_WORK = 300
_DRAWS_AT_ONCE = 1_000_000


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

    `p_c ~ Dir(alpha, ..., alpha)` over the N clients for each class `c`, and client `i` gets a
    share `p_{c,i}` of the class; all proportions are drawn anew until every client holds at least
    `min_size` examples. In the balanced variant the classes are dealt one after another, and a
    client that already holds `n / N` examples gets no more: its proportion is set to zero and the
    others are renormalised.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      alpha: concentration; the smaller, the fewer classes a client holds.
      seed: of proportions and shuffles.
      min_size: examples that every client must hold at least.
      balanced: whether to cap the clients' sizes as above.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example once.

    Raises:
      ValueError: if alpha is not positive and finite, or `min_size` cannot be reached or was not
        reached with a bounded amount of work.

    Reference:
      Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
      Classification, 2019; the redraw as in Li et al., Federated Learning on Non-IID Data Silos,
      ICDE 2022; the balanced variant as in the released code of FedNTD (Lee et al., NeurIPS 2022)
      and FedLMD.
    """
    labels = checked_labels(labels, num_clients)
    # The limits keep 1 / alpha and num_clients * alpha finite.
    if not 1e-100 < alpha < 1e100:
        raise ValueError(
            f'alpha={alpha} must be a positive, finite number: choose --alpha from about 0.05 '
            '(one or two classes a client) to 100 (nearly the same for all).'
        )
    if min_size < 1:
        raise ValueError(f'min_size={min_size}: every client needs at least 1 example.')
    if min_size * num_clients > labels.size:
        raise ValueError(
            f'min_size={min_size} examples for each of num_clients={num_clients} are more than '
            f'the {labels.size} there are: lower --min_size to at most '
            f'{labels.size // num_clients} or lower --num_clients.'
        )
    rng = generator(seed)
    _, class_sizes = np.unique(labels, return_counts=True)
    draw = _draw_balanced if balanced else _draw
    attempts = max(1, _DRAWS_AT_ONCE // (class_sizes.size * num_clients))
    done = 0
    accepted = None
    while accepted is None:
        accepted, work = draw(rng, class_sizes, num_clients, alpha, min_size, attempts)
        done += work
        if accepted is None and done > _MAX_WORK:
            raise ValueError(
                f'no draw with alpha={alpha} gave each of num_clients={num_clients} at least '
                f'min_size={min_size} of the {labels.size} examples: raise --alpha, lower '
                '--num_clients or lower --min_size (with little to go, another --seed may do).'
            )
    return _deal(rng, labels, accepted)


def _draw(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    num_clients: int,
    alpha: float,
    min_size: int,
    attempts: int,
) -> tuple[np.ndarray | None, int]:
    """Returns the counts [N, C] of the first acceptable attempt, and the work done."""
    # Client after client takes a Beta(alpha, (clients left) * alpha) share of what is left of
    # each class, which is the Dirichlet distribution, and an attempt ends with the first client
    # that gets too little. That is ten times less work than drawing all clients of an attempt.
    alive = np.arange(attempts)
    left = np.ones((attempts, class_sizes.size))
    edge = np.zeros(left.shape, np.int64)
    given: list[tuple[np.ndarray, np.ndarray]] = []
    work = 0
    for i in range(num_clients):
        others = num_clients - 1 - i
        share = rng.beta(alpha, others * alpha, left.shape) if others else 1.0
        work += left.size + _STEP_WORK
        left = left * (1 - share)
        before, edge = edge, np.rint((1 - left) * class_sizes).astype(np.int64)
        given.append((alive, edge - before))
        large = given[-1][1].sum(axis=1) >= min_size
        alive, left, edge = alive[large], left[large], edge[large]
        if not alive.size:
            return None, work
    return np.stack([counts[np.searchsorted(ids, alive[0])] for ids, counts in given]), work


def _draw_balanced(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    num_clients: int,
    alpha: float,
    min_size: int,
    attempts: int,
) -> tuple[np.ndarray | None, int]:
    """Returns the counts [N, C] of the first acceptable attempt, and the work done."""
    cap = class_sizes.sum() / num_clients
    shape = (attempts, num_clients)
    counts = np.zeros((class_sizes.size, *shape), np.int64)
    sizes = np.zeros(shape, np.int64)
    for c, class_size in enumerate(class_sizes):
        # Dirichlet from normalised gammas, as logarithms because gammas of a small alpha
        # underflow: Gamma(alpha) = Gamma(alpha + 1) * uniform^(1 / alpha).
        log_gamma = np.log(rng.standard_gamma(alpha + 1, shape))
        log_gamma -= rng.standard_exponential(shape) / alpha
        log_gamma[sizes >= cap] = -np.inf
        share = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True)).cumsum(axis=1)
        edge = np.rint(share / share[:, -1:] * class_size).astype(np.int64)
        counts[c] = np.diff(edge, axis=1, prepend=0)
        sizes += counts[c]
    large = np.flatnonzero(sizes.min(axis=1) >= min_size)
    return (counts[:, large[0]].T if large.size else None), counts.size


def _deal(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Returns the examples of each client, counts [N, C] of them chosen at random."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c, label in enumerate(np.unique(labels)):
        members = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(members, np.cumsum(counts[:-1, c]))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
