"""Dirichlet proportions of classes, drawn anew until every client holds enough."""

from collections.abc import Callable

import numpy as np

# Work before a request counts as hopeless, up to 20 seconds on a free core and 50 on a busy one, in
# random numbers drawn; a step over arrays costs as much as _STEP_WORK of them, however short they
# are. 100 clients with 10 of CIFAR-10's examples each at alpha 0.05, the most skewed setting in
# use, take 15 million random numbers on average and 30 million when balanced.
_MAX_WORK = 250_000_000
_STEP_WORK = 300
_DRAWS_AT_ONCE = 1_000_000

# (generator, class sizes [C], holders [N, C], alpha, least sizes [N], attempts) -> the counts
# [N, C] of the first acceptable attempt, and the work done
Draw = Callable[
    [np.random.Generator, np.ndarray, np.ndarray, float, np.ndarray, int],
    tuple[np.ndarray | None, int],
]


def log_gammas(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draws logarithms of Gamma(alpha) variables; normalised, these are Dirichlet proportions.

    `Gamma(alpha) = Gamma(alpha + 1) * uniform^(1 / alpha)`, as logarithms because gammas of a
    small alpha underflow.

    Args:
      rng: random generator.
      alpha: concentration, positive.
      shape: of the result.

    Returns:
      Array of that shape.
    """
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def draw_in_turn(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    holds: np.ndarray,
    alpha: float,
    least: np.ndarray,
    attempts: int,
) -> tuple[np.ndarray | None, int]:
    """Draws Dirichlet proportions of every class over its holders, client after client.

    Args:
      rng: random generator.
      class_sizes: [C] integers, examples to deal of each class.
      holds: [N, C] bool, who gets a share of which class; a class has at least one holder.
      alpha: concentration, positive.
      least: [N] integers, examples that the clients must get at least.
      attempts: how many draws to make at once.

    Returns:
      The counts [N, C] of the first draw that gives everybody enough, None if none does, and the
      work done.
    """
    # Client after client takes a Beta(alpha, (holders left) * alpha) share of what is left of
    # each class, which is the Dirichlet distribution, and an attempt ends with the first client
    # that gets too little. That is ten times less work than drawing all clients of an attempt.
    alive = np.arange(attempts)
    left = np.ones((attempts, class_sizes.size))
    edge = np.zeros(left.shape, np.int64)
    given: list[tuple[np.ndarray, np.ndarray]] = []
    work = 0
    others = holds.sum(axis=0)
    for i, held in enumerate(holds):
        others -= held
        drawn = held & (others > 0)
        share = np.broadcast_to(held.astype(float), left.shape).copy()
        share[:, drawn] = rng.beta(alpha, others[drawn] * alpha, (len(left), drawn.sum()))
        work += left.size + _STEP_WORK
        left = left * (1 - share)
        before, edge = edge, np.rint((1 - left) * class_sizes).astype(np.int64)
        given.append((alive, edge - before))
        large = given[-1][1].sum(axis=1) >= least[i]
        alive, left, edge = alive[large], left[large], edge[large]
        if not alive.size:
            return None, work
    return np.stack([counts[np.searchsorted(ids, alive[0])] for ids, counts in given]), work


def draw_counts(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    holds: np.ndarray,
    *,
    alpha: float,
    min_size: int,
    first: int = 0,
    flag: str = 'alpha',
    draw: Draw = draw_in_turn,
) -> np.ndarray:
    """Draws how many examples of each class every client gets, with a smallest size.

    Each holder of a class gets `first` of its examples, and Dirichlet proportions split the rest;
    they are drawn anew until every client has at least `min_size` examples.

    Args:
      rng: random generator.
      class_sizes: [C] integers, at least `first` times the class's holders.
      holds: [N, C] bool, who gets a share of which class; a class has at least one holder.
      alpha: concentration, positive.
      min_size: examples that every client must hold at least.
      first: examples of a class that each of its holders gets in any case.
      flag: the name under which alpha was given.
      draw: how proportions are drawn.

    Returns:
      [N, C] int64, whose columns sum to `class_sizes`.

    Raises:
      ValueError: if a bounded amount of work does not reach `min_size`.
    """
    num_clients = len(holds)
    rest = class_sizes - first * holds.sum(axis=0)
    least = min_size - first * holds.sum(axis=1)
    attempts = max(1, _DRAWS_AT_ONCE // holds.size)
    done = 0
    while True:
        counts, work = draw(rng, rest, holds, alpha, least, attempts)
        if counts is not None:
            return counts + first * holds
        done += work
        if done > _MAX_WORK:
            raise ValueError(
                f'no draw with {flag}={alpha} gave each of num_clients={num_clients} at least '
                f'min_size={min_size} of the {class_sizes.sum()} examples: raise --{flag}, lower '
                '--num_clients or lower --min_size (with little to go, another --seed may do).'
            )


def deal_counts(
    rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray
) -> list[np.ndarray]:
    """Deals random examples of each class in given numbers.

    Args:
      rng: random generator.
      labels: [n] integers, C of them different.
      counts: [N, C] integers, examples of each class for each client; columns sum to the classes'
        sizes.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example once.
    """
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c, label in enumerate(np.unique(labels)):
        members = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(members, np.cumsum(counts[:-1, c]))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
