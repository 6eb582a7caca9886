"""Label counts of the clients."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class LabelSkew(NamedTuple):
    """How much the labels of clients with examples differ, in the mean over these clients."""

    effective_classes: float  # from 1 to C
    distance: float  # from 0 to 1, between a client's labels and those of all


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


def one_class_share(counts: np.ndarray, *, least: float = 0.95) -> float:
    """Computes the share of all examples that clients of one class hold.

    `sum_i n_i [max_c n_{i,c} >= least n_i] / sum_i n_i`: if all clients take part with weights by
    size, the share of their updates in the average.

    Args:
      counts: [N, C] integers, from `label_counts`.
      least: in (0, 1], the share of its examples that makes a class the only one of a client.

    Returns:
      In 0..1; 0 without examples.
    """
    sizes = counts.sum(axis=1)
    of_one = counts.max(axis=1) >= least * sizes
    return float(sizes[of_one].sum() / max(sizes.sum(), 1))


def label_skew(counts: np.ndarray) -> LabelSkew:
    """Measures the skew of the labels, in the mean over the clients with examples.

    effective classes: `exp(-sum_c q_{i,c} log q_{i,c})`, `q_{i,c} = n_{i,c} / n_i`; distance, total
    variation: `1/2 sum_c |q_{i,c} - q_c|`, `q_c` the share of class c among all examples.

    Args:
      counts: [N, C] integers, from `label_counts`.

    Returns:
      The two means; for IID clients about the number of equal classes and 0, for clients of one of
      C equal classes 1 and 1 - 1/C. NaN without examples.
    """
    counts = counts[counts.sum(axis=1) > 0].astype(float)
    if not counts.size:
        return LabelSkew(np.nan, np.nan)
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
    of_all = counts.sum(axis=0) / counts.sum()
    distance = np.abs(shares - of_all).sum(axis=1) / 2
    return LabelSkew(float(np.exp(entropy).mean()), float(distance.mean()))
