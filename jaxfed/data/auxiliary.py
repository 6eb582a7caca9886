"""The small class-balanced set that the server holds for methods that need one."""

import numpy as np


def split_auxiliary(
    labels: np.ndarray, *, per_class: int, num_classes: int, seed: int | np.random.SeedSequence
) -> tuple[np.ndarray, np.ndarray]:
    """Takes the same number of random examples of each class out of the training data.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      per_class: examples to take of each class, 0 for none.
      num_classes: number of classes C.
      seed: of the choice.

    Returns:
      Sorted int64 indices of the auxiliary examples, [C * per_class], and of the remaining ones.

    Raises:
      ValueError: if `per_class` is negative or a class has not more examples than that.

    Reference:
      FedCAD, section 4 (32 a class); FedSSD, section IV (64 a class).
    """
    labels = np.asarray(labels)
    if per_class < 0:
        raise ValueError(f'per_class={per_class}: an auxiliary set has 0 or more of each class.')
    rng = np.random.default_rng(seed)
    auxiliary = np.zeros(labels.size, bool)
    for c in range(num_classes if per_class else 0):
        members = np.flatnonzero(labels == c)
        if members.size <= per_class:
            raise ValueError(
                f'per_class={per_class} auxiliary examples are asked of class {c}, which has '
                f'{members.size} and must keep 1: lower per_class.'
            )
        auxiliary[rng.choice(members, per_class, replace=False)] = True
    return np.flatnonzero(auxiliary), np.flatnonzero(~auxiliary)
