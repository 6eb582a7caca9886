"""The partitions of the released code of FedNTD, which FedLMD's code continues.

That code draws each partition once, from random numbers that no setting changes. So these functions
deal the same numbers of examples of each class to each client. Which examples of a class a client
gets differs, because libraries order a dataset differently.
"""

import functools
import random
from typing import Any

import numpy as np

from jaxfed.partition.checks import (
    Seed,
    check_concentration,
    check_least,
    check_min_size,
    checked_labels,
)

SEED = 19940817  # a constant of the code
DRAWS = 100_000  # alpha 0.05 takes 19 126 on CIFAR-10, which is 30 s


def fedntd_dirichlet(
    labels: np.ndarray, *, num_clients: int, alpha: float, seed: Seed, min_size: int = 10
) -> list[np.ndarray]:
    """Deals as `dirichlet` with `balanced`, with the random numbers of the released code.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      alpha: concentration.
      seed: without effect.
      min_size: least number of examples of a client; 10 in the code.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if alpha is not positive and finite, or no draw gives every client as many
        examples.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, released code, `lda_partition`.
    """
    del seed
    labels = checked_labels(labels, num_clients)
    check_concentration('alpha', alpha)
    check_min_size(min_size, num_clients, labels.size)
    classes, class_sizes = np.unique(labels, return_counts=True)
    state = _accepted_state(tuple(class_sizes.tolist()), num_clients, alpha, min_size)
    rng = np.random.RandomState()
    rng.set_state(state)
    by_class = [np.flatnonzero(labels == label) for label in classes]
    drawn, _ = _draw(rng, by_class, num_clients, alpha)
    dealt = [np.split(shuffled, edges[:-1]) for shuffled, edges in drawn]
    return [np.sort(np.concatenate(part)) for part in zip(*dealt, strict=True)]


@functools.lru_cache(maxsize=8)
def _accepted_state(
    class_sizes: tuple[int, ...], num_clients: int, alpha: float, min_size: int
) -> Any:
    """State of the random numbers before the first draw that gives each client `min_size`."""
    rng = np.random.RandomState(SEED)
    by_class = [np.arange(size) for size in class_sizes]
    for _ in range(DRAWS):
        state = rng.get_state()
        with np.errstate(all='ignore'):  # a tiny alpha may draw no share at all
            drawn, sizes = _draw(rng, by_class, num_clients, alpha)
        if sizes.min() >= min_size and all((edges >= 0).all() for _, edges in drawn):
            return state
    raise ValueError(
        f'--min_size={min_size}: --alpha={alpha} left some client with fewer examples in {DRAWS} '
        'draws; lower it.'
    )


def _draw(
    rng: np.random.RandomState, by_class: list[np.ndarray], num_clients: int, alpha: float
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """The shuffled examples of each class and where each client's end, and the clients' sizes."""
    most, alphas = sum(map(len, by_class)) / num_clients, np.full(num_clients, alpha)
    sizes, drawn = np.zeros(num_clients, np.int64), []
    for examples in by_class:
        shuffled = rng.permutation(examples)
        share = rng.dirichlet(alphas) * (sizes < most)
        # Rounded down after the sum, as in the released code; rounding changes the partition.
        edges = (np.cumsum(share / share.sum()) * shuffled.size).astype(int)
        edges[-1] = shuffled.size
        sizes += edges
        sizes[1:] -= edges[:-1]
        drawn.append((shuffled, edges))
    return drawn, sizes


def fedntd_sharding(
    labels: np.ndarray, *, num_clients: int, shards_per_client: int, seed: Seed
) -> list[np.ndarray]:
    """Deals shards of one class each, with the random numbers of the released code.

    Each class has s N / C shards, of which a client may get several.

    Args:
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      shards_per_client: shards s of each client.
      seed: without effect.

    Returns:
      N sorted int64 arrays, the examples of each client. Every example has one client.

    Raises:
      ValueError: if C does not divide s N, or a class has fewer examples than shards.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, released code, `sharding_partition`.
    """
    del seed
    labels = checked_labels(labels, num_clients)
    check_least('shards_per_client', shards_per_client)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    pieces, rest = divmod(num_clients * shards_per_client, len(by_class))
    fewest = min(map(len, by_class))
    if rest or pieces > fewest:
        raise ValueError(
            f'--num_clients={num_clients} with --shards_per_client={shards_per_client} makes '
            f'{num_clients * shards_per_client} shards: they must be a multiple of the '
            f'{len(by_class)} classes, and at most {fewest} of each; change --shards_per_client.'
        )
    shards = [np.array_split(examples, pieces) for examples in by_class]
    order = list(range(len(by_class))) * pieces
    random.Random(SEED).shuffle(order)
    rng = np.random.RandomState(SEED)
    parts = []
    for row in np.reshape(order, (num_clients, shards_per_client)):
        chosen = [shards[c].pop(rng.choice(len(shards[c]), replace=False)) for c in row]
        parts.append(np.sort(np.concatenate(chosen)))
    return parts
