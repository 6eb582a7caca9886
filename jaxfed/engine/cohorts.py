"""The clients of a round: sampling, failures and stragglers.

`SAMPLINGS` maps a name to a function of the round's number, the clients' sizes, how many to sample
and a seed. To add one, assign it: `SAMPLINGS['mine'] = mine`.
"""

import math
from collections.abc import Callable

import numpy as np

from jaxfed.internal.messages import locate_errors
from jaxfed.types import Cohort


def uniform(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples clients without replacement, each with the same probability; [number] ids."""
    return np.random.default_rng([seed, round_]).choice(len(size), number, replace=False)


def by_size(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples clients one by one, in proportion to the examples of those left; [number] ids."""
    if np.count_nonzero(size) < number:
        raise ValueError(
            f'--sampling=size samples {number} clients a round, but only {np.count_nonzero(size)} '
            'have examples; lower --clients_per_round, or use another sampling.'
        )
    rng = np.random.default_rng([seed, round_])
    return rng.choice(len(size), number, replace=False, p=size / size.sum())


def round_robin(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Cycles through the clients in one random order; [number] ids."""
    order = np.random.default_rng(seed).permutation(len(size))
    return order[((round_ - 1) * number + np.arange(number)) % len(size)]


def fedntd(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples as the released code of FedNTD, by the round's number alone; [number] ids."""
    return np.random.RandomState(round_ - 1).choice(len(size), number, replace=False)


# name -> function of (number of the round from 1, size [N] examples of each client,
# *, number of clients to sample, seed), which returns distinct client ids [number] in any order
SAMPLINGS: dict[str, Callable[..., np.ndarray]] = {
    'uniform': uniform,
    'size': by_size,
    'round_robin': round_robin,
    'fedntd': fedntd,
}


def sample(name: str, round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """The clients of a round by the name of a sampling, [number] int64 ids, ascending.

    Raises:
      ValueError: if the sampling fails, or does not return `number` distinct clients.
    """
    with locate_errors(f'SAMPLINGS[{name!r}](round_, size, *, number, seed)'):
        chosen = np.sort(np.atleast_1d(SAMPLINGS[name](round_, size, number=number, seed=seed)))
    valid = chosen.shape == (number,) and np.issubdtype(chosen.dtype, np.integer)
    if not (valid and (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < len(size)):
        raise ValueError(
            f'--sampling={name} must return {number} distinct clients from 0 to {len(size) - 1}, '
            f'got {np.array2string(chosen, threshold=20)} in round {round_}.'
        )
    return chosen.astype(np.int64)


def draw_cohort(
    round_: int,
    size: np.ndarray,
    *,
    clients_per_round: int,
    local_epochs: int,
    sampling: str = 'uniform',
    dropout: float = 0.0,
    stragglers: float = 0.0,
    over_selection: float = 0.0,
    cohort_seed: int,
    availability_seed: int,
) -> Cohort:
    """Draws the clients of a round and the number of local epochs that each completes.

    `ceil((1 + over_selection) S)` clients are sampled. Each fails with probability `dropout`. Each
    of the others is a straggler with probability `stragglers`: it completes 1 to E local epochs,
    uniformly, instead of E. The server waits for the S clients that report first, which are those
    with the fewest examples to process, in random order if they are equal. The work of the others
    is lost.

    Args:
      round_: number of the round, from 1.
      size: [N] examples of each client.
      clients_per_round: S.
      local_epochs: E.
      sampling: a key of SAMPLINGS.
      dropout: probability that a sampled client fails.
      stragglers: probability that a client is a straggler.
      over_selection: clients sampled beyond S, as a share of S.
      cohort_seed: seed of sampling.
      availability_seed: seed of failures and stragglers.

    Returns:
      The cohort, sorted by client; failed clients fill it up to S.

    Raises:
      ValueError: if a user's sampling does not return distinct clients, or `size` has fewer clients
        with examples.

    Reference:
      Bonawitz et al., Towards Federated Learning at Scale, 2019, section 2 (over-selection, 0.3);
      Li et al., Federated Optimization in Heterogeneous Networks, 2020, section 5.2 (stragglers).
    """
    sampled = candidates(clients_per_round, over_selection)
    chosen = sample(sampling, round_, size, number=sampled, seed=cohort_seed)
    rng = np.random.default_rng([availability_seed, round_])
    arrives = rng.random(sampled) >= dropout
    slow = rng.random(sampled) < stragglers
    fewer = rng.integers(1, local_epochs, sampled, endpoint=True)
    epochs = np.where(arrives, np.where(slow, fewer, local_epochs), 0)
    # A client that fails never reports. Of those with equal work, a random one is the first.
    work = np.where(arrives, epochs * size[chosen], np.inf)
    first = np.sort(np.lexsort((rng.random(sampled), work))[:clients_per_round])
    return Cohort(chosen[first].astype(np.int32), epochs[first].astype(np.int32))


def candidates(clients_per_round: int, over_selection: float) -> int:
    """Clients sampled in a round, ceil((1 + over_selection) S)."""
    # Rounding precedes ceil because 1.1 * 10 > 11 in floating point.
    return math.ceil(round((1 + over_selection) * clients_per_round, 9))


def everyone(clients: np.ndarray | list[int], local_epochs: int) -> Cohort:
    """A cohort of clients [S] that all complete `local_epochs`."""
    ids = np.asarray(clients, np.int32)
    return Cohort(ids, np.full(ids.shape, local_epochs, np.int32))
