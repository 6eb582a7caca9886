"""Label counts of the clients."""

from collections.abc import Sequence

import numpy as np


def label_counts(labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Counts each client's examples by class, `counts[i, c] = n_{i,c}`.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      parts: N index arrays into labels, the examples of each client.
      num_classes: number of classes C.

    Returns:
      [N, C] int32.

    Raises:
      ValueError: if a label is not in 0..C-1.
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f'labels are from {labels.min()} to {labels.max()}: with num_classes={num_classes} '
            f'they must be in 0..{num_classes - 1}.'
        )
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    # Client and class as one number, so that all clients are counted at once.
    cell = client * num_classes + labels[np.concatenate([*parts, np.array([], int)])]
    counts = np.bincount(cell, minlength=len(parts) * num_classes)
    return counts.reshape(len(parts), num_classes).astype(np.int32)
