"""Dirichlet proportions of classes, redrawn until every client has enough examples."""

from collections.abc import Callable

import numpy as np

from jaxfed.partition.checks import check_concentration, check_min_size

# Random numbers drawn before the search stops with an error: 20 s on an idle core, 50 s on a busy
# one. A step over arrays costs as much as _STEP_WORK random numbers, even if the arrays are short.
# The most skewed setting in use, CIFAR-10 with 100 clients, alpha 0.05 and at least 10 examples
# each, takes 15 million random numbers on average, and 30 million if balanced.
_MAX_WORK = 250_000_000
_STEP_WORK = 300
_DRAWS_AT_ONCE = 1_000_000


# (generator, class sizes [C], holders [N, C] bool, alpha, least sizes [N] of the clients, attempts)
# -> counts [N, C] of the first acceptable attempt, None if there is none, and the work done
Draw = Callable[
    [np.random.Generator, np.ndarray, np.ndarray, float, np.ndarray, int],
    tuple[np.ndarray | None, int],
]


def log_gammas(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draws logarithms of Gamma(alpha) variables, which are Dirichlet proportions up to scale."""
    # Gamma(alpha) = Gamma(alpha + 1) * uniform^(1 / alpha). Logarithms, because Gamma(alpha)
    # underflows if alpha is small.
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def draw_by_client(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    holds: np.ndarray,
    alpha: float,
    min_sizes: np.ndarray,
    attempts: int,
) -> tuple[np.ndarray | None, int]:
    """Draws Dirichlet proportions of every class over its holders, one client after another."""
    # Each client takes a Beta(alpha, (holders left) * alpha) share of the rest of each class, which
    # gives the Dirichlet distribution. An attempt ends at the first client with too few examples,
    # which takes a tenth of the work of drawing all clients.
    alive = np.arange(attempts)
    left = np.ones((attempts, class_sizes.size))
    edge = np.zeros(left.shape, np.int64)
    steps: list[tuple[np.ndarray, np.ndarray]] = []  # attempts alive, and their counts of a client
    work = 0
    others = holds.sum(axis=0)
    for held, min_size in zip(holds, min_sizes, strict=True):
        others -= held
        drawn = held & (others > 0)
        share = np.broadcast_to(held.astype(float), left.shape).copy()
        share[:, drawn] = rng.beta(alpha, others[drawn] * alpha, (len(left), drawn.sum()))
        work += left.size + _STEP_WORK
        left = left * (1 - share)
        before, edge = edge, np.rint((1 - left) * class_sizes).astype(np.int64)
        counts = edge - before
        steps.append((alive, counts))
        enough = counts.sum(axis=1) >= min_size
        alive, left, edge = alive[enough], left[enough], edge[enough]
        if not alive.size:
            return None, work
    return np.stack([counts[np.searchsorted(ids, alive[0])] for ids, counts in steps]), work


def draw_counts(
    rng: np.random.Generator,
    class_sizes: np.ndarray,
    holds: np.ndarray,
    *,
    alpha: float,
    min_size: int,
    first: int = 0,
    flag: str = 'alpha',
    draw: Draw = draw_by_client,
) -> np.ndarray:
    """Draws the examples [N, C] of each class for every client, at least `min_size` for each.

    Each holder of a class gets `first` of its examples, and Dirichlet proportions split the rest.
    Raises a ValueError if `min_size` is invalid, or, naming `flag`, the flag of alpha, if alpha is
    invalid or a bounded amount of work does not reach `min_size`.
    """
    check_concentration(flag, alpha)
    check_min_size(min_size, len(holds), class_sizes.sum())
    rest = class_sizes - first * holds.sum(axis=0)
    min_sizes = min_size - first * holds.sum(axis=1)
    attempts = max(1, _DRAWS_AT_ONCE // holds.size)
    done = 0
    while done <= _MAX_WORK:
        counts, work = draw(rng, rest, holds, alpha, min_sizes, attempts)
        if counts is not None:
            return counts + first * holds
        done += work
    raise ValueError(
        f'no draw with --{flag}={alpha} gave each of --num_clients={len(holds)} at least '
        f'--min_size={min_size} of the {class_sizes.sum()} examples: raise --{flag}, lower '
        '--num_clients or lower --min_size; if a draw was close, try another --seed.'
    )


def deal_counts(
    rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray
) -> list[np.ndarray]:
    """Deals `counts` [N, C] random examples of each class in `labels` [n] to the clients."""
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for c, label in enumerate(np.unique(labels)):
        members = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(members, np.cumsum(counts[:-1, c]))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
