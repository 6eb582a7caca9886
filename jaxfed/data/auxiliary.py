"""The small class-balanced set that the server holds for methods that need one."""

import numpy as np


def split_auxiliary(
    labels: np.ndarray, *, per_class: int, num_classes: int, seed: int | np.random.SeedSequence
) -> tuple[np.ndarray, np.ndarray]:
    """Moves the same number of random examples of each class out of the training data.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      per_class: number of examples of each class, 0 for none.
      num_classes: number of classes C.
      seed: random seed of the choice.

    Returns:
      Sorted int64 indices of the auxiliary examples, [C * per_class], and of the remaining ones.

    Raises:
      ValueError: if `per_class` is negative or a class has too few examples to keep one.

    Reference:
      FedCAD, section 4 (32 a class); FedSSD, section IV (64 a class).
    """
    labels = np.asarray(labels)
    if per_class < 0:
        raise ValueError(f'per_class={per_class} must be at least 0.')
    rng = np.random.default_rng(seed)
    auxiliary = np.zeros(labels.size, bool)
    for c in range(num_classes if per_class else 0):
        members = np.flatnonzero(labels == c)
        if members.size <= per_class:
            raise ValueError(
                f'per_class={per_class} takes too many examples of class {c}, which has '
                f'{members.size} and must keep 1: lower per_class.'
            )
        auxiliary[rng.choice(members, per_class, replace=False)] = True
    return np.flatnonzero(auxiliary), np.flatnonzero(~auxiliary)
