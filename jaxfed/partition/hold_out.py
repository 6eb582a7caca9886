"""Personal test data: the examples that each client holds out from training."""

from collections.abc import Sequence

import numpy as np


def hold_out(
    parts: Sequence[np.ndarray], labels: np.ndarray, *, share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits each client's examples into training and test data.

    A client with `m` examples holds out `round(share * m)` of them, at most `m - 1`. The held-out
    examples are evenly spaced in the examples sorted by class, in random order within a class, so
    each class contributes its share rounded up or down. The draws of a client depend only on the
    seed and its id.

    Args:
      parts: N index arrays into labels, the examples of each client.
      labels: [n] integers, the class of each training example.
      share: share of each client's examples, 0 <= share < 1.
      seed: random seed of the draws.

    Returns:
      N sorted index arrays of training data, with at least one example of each client that has
      any, and N sorted index arrays of test data, empty for clients with too few examples.

    Raises:
      ValueError: if share is outside 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise ValueError(
            f'share must be at least 0 (none) and below 1, got {share}: every client '
            'trains on at least 1 example.'
        )
    if not share:  # a million generators take half a minute
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
