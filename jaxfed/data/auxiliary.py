"""The class-balanced auxiliary set of the server, which some methods need."""

import numpy as np


def split_auxiliary(
    labels: np.ndarray, *, per_class: int, num_classes: int, seed: int | np.random.SeedSequence
) -> tuple[np.ndarray, np.ndarray]:
    """Moves `per_class` random examples of each class from the training data to the server.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      per_class: examples of each class; 0 for none.
      num_classes: number of classes C.
      seed: random seed of the draw.

    Returns:
      Sorted int64 indices [C * per_class] of the auxiliary examples, and sorted int64 indices of
      the others.

    Raises:
      ValueError: if `per_class` is negative, or a class would keep no training example.

    Reference:
      FedCAD, section 4 (32 a class); FedSSD, section 5.1 (64 a class).
    """
    labels = np.asarray(labels)
    if per_class < 0:
        raise ValueError(f'--auxiliary_per_class must be at least 0, got {per_class}.')
    rng = np.random.default_rng(seed)
    auxiliary = np.zeros(labels.size, bool)
    for c in range(num_classes if per_class else 0):
        members = np.flatnonzero(labels == c)
        if not members.size:
            raise ValueError(
                f'--auxiliary_per_class={per_class} needs training examples of every class, but '
                f'class {c} has none; remove that class, or choose a method without them.'
            )
        if members.size <= per_class:
            raise ValueError(
                f'--auxiliary_per_class must be below {members.size}, the number of examples of '
                f'class {c}, got {per_class}.'
            )
        auxiliary[rng.choice(members, per_class, replace=False)] = True
    return np.flatnonzero(auxiliary), np.flatnonzero(~auxiliary)
