"""Checks that every partition makes of its input."""

import numpy as np

Seed = int | np.random.SeedSequence


def checked_labels(labels: np.ndarray, num_clients: int) -> np.ndarray:
    """Returns the labels as an int64 vector after checking that the clients can share them.

    Args:
      labels: [n] integers, not negative, the class of each training example.
      num_clients: number of clients N, 1 to n.

    Returns:
      [n] int64.

    Raises:
      ValueError: if the labels are not such a vector or there are more clients than examples.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f'labels has shape {labels.shape} and dtype {labels.dtype}: pass one integer an '
            'example, [n].'
        )
    if num_clients < 1:
        raise ValueError(f'num_clients={num_clients}: there must be at least 1 client.')
    if num_clients > labels.size:
        raise ValueError(
            f'num_clients={num_clients} is more than the {labels.size} training examples: choose '
            f'--num_clients from 1 to {labels.size}.'
        )
    if labels.min() < 0:
        raise ValueError(f'labels holds {labels.min()}: classes are numbered from 0.')
    return labels.astype(np.int64)


def generator(seed: Seed) -> np.random.Generator:
    """Returns the random generator of a seed.

    Args:
      seed: integer, not negative, or a SeedSequence.

    Returns:
      A NumPy generator that depends on the seed only.

    Raises:
      ValueError: if the seed is negative.
    """
    if isinstance(seed, int | np.integer) and seed < 0:
        raise ValueError(f'seed={seed}: a seed is an integer from 0 on.')
    return np.random.default_rng(seed)
