"""Examples that each client keeps for testing itself."""

from collections.abc import Sequence

import numpy as np


def hold_out(
    parts: Sequence[np.ndarray], labels: np.ndarray, *, share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's examples into some to train on and some to test with.

    Of a client's `m` examples `round(share * m)` are for testing, but not all of them. They are
    chosen evenly over the examples sorted by class, at random within a class, so that of each
    class their number is its share rounded up or down. A client's choice depends on seed and
    client only.

    Args:
      parts: N index arrays into labels, the examples of each client.
      labels: [n] integers, the class of each training example.
      share: of each client's examples, 0 for none, below 1.
      seed: of the choice.

    Returns:
      N sorted index arrays to train on, each with at least one example where the client has any,
      and N sorted index arrays to test with, empty for clients with too few examples.

    Raises:
      ValueError: if share is not in this range.
    """
    if not 0 <= share < 1:
        raise ValueError(
            f'personal_test={share}: choose --personal_test from 0 (none) to below 1; every client '
            'trains with at least 1 example.'
        )
    if not share:  # a generator for each of a million clients takes half a minute
        return [np.sort(part) for part in parts], [np.array([], np.int64)] * len(parts)
    train, test = [], []
    for i, part in enumerate(parts):
        rng = np.random.default_rng([seed, i])
        size = len(part)
        count = max(min(round(share * size), size - 1), 0)
        shuffled = rng.permutation(part)
        by_class = shuffled[np.argsort(labels[shuffled], kind='stable')]
        # Integers, so that the last one stays below size.
        places = (np.arange(count) * size + rng.integers(max(size, 1))) // max(count, 1)
        chosen = np.zeros(size, bool)
        chosen[places] = True
        train.append(np.sort(by_class[~chosen]))
        test.append(np.sort(by_class[chosen]))
    return train, test
