"""How the clients of a round are sampled.

`SAMPLINGS` maps a name to a function of the round's number, the clients' sizes, how many to sample
and a seed. To add one of your own, put it here: `SAMPLINGS['mine'] = mine`.
"""

from collections.abc import Callable

import numpy as np


def uniform(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples without replacement, all clients alike.

    Args:
      round_: number of the round, 1 for the first.
      size: [N] examples of each client.
      number: of clients to sample.
      seed: of sampling.

    Returns:
      [number] distinct client ids, in any order.
    """
    return np.random.default_rng([seed, round_]).choice(len(size), number, replace=False)


def by_size(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Samples without replacement, with chances in proportion to the clients' examples.

    Args:
      round_: number of the round, 1 for the first.
      size: [N] examples of each client.
      number: of clients to sample.
      seed: of sampling.

    Returns:
      [number] distinct client ids, in any order.
    """
    rng = np.random.default_rng([seed, round_])
    return rng.choice(len(size), number, replace=False, p=size / size.sum())


def round_robin(round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """Takes the clients in turn, in one random order over and over.

    Args:
      round_: number of the round, 1 for the first.
      size: [N] examples of each client.
      number: of clients to sample.
      seed: of the order.

    Returns:
      [number] distinct client ids, in any order.
    """
    order = np.random.default_rng(seed).permutation(len(size))
    return order[((round_ - 1) * number + np.arange(number)) % len(size)]


SAMPLINGS: dict[str, Callable[..., np.ndarray]] = {
    'uniform': uniform,
    'size': by_size,
    'round_robin': round_robin,
}


def sample(name: str, round_: int, size: np.ndarray, *, number: int, seed: int) -> np.ndarray:
    """The clients of a round by the name of a sampling.

    Args:
      name: a key of SAMPLINGS.
      round_: number of the round, 1 for the first.
      size: [N] examples of each client.
      number: of clients to sample.
      seed: of sampling.

    Returns:
      [number] int64 client ids, ascending.

    Raises:
      ValueError: if the sampling gives anything but that many distinct clients.
    """
    given = SAMPLINGS[name](round_, size, number=number, seed=seed)
    chosen = np.sort(np.atleast_1d(given))
    whole = chosen.shape == (number,) and np.issubdtype(chosen.dtype, np.integer)
    if not (whole and (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < len(size)):
        raise ValueError(
            f'--sampling={name} gave {np.array2string(chosen, threshold=20)} in round {round_}; '
            f'it must give {number} distinct clients from 0 to {len(size) - 1}.'
        )
    return chosen.astype(np.int64)
