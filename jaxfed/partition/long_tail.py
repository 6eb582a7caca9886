"""Class imbalance of the training data of all clients."""

import numpy as np


def long_tail(
    labels: np.ndarray, *, num_classes: int, imbalance: float, seed: int | np.random.SeedSequence
) -> np.ndarray:
    """Draws examples so that the classes have exponentially falling sizes.

    Class `c` keeps `floor(n_max rho^(-c / (C - 1)))` examples. `n_max` is the largest number for
    which every class has enough. If all classes have the same size, `n_max` is that size, and an
    example that is kept at one imbalance is kept at every lower one.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      num_classes: number of classes C.
      imbalance: rho, at least 1; examples of class 0 for each one of class C-1. With 1 all
        examples are kept, also if the classes differ in size.
      seed: random seed of the draw.

    Returns:
      Sorted int64 indices of the examples that are kept.

    Raises:
      ValueError: if a label is not in 0..C-1, the imbalance is not a finite number of at least 1,
        there is one class only, or a class has or would keep no example.

    Reference:
      Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss,
      NeurIPS 2019, section 4.1; with clients in Shang et al., Federated Learning on Heterogeneous
      and Long-Tailed Data via Classifier Re-Training with Federated Features, IJCAI 2022.
    """
    if not 1 <= imbalance < np.inf:
        raise ValueError(f'--imbalance must be finite and at least 1 (none), got {imbalance}.')
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f'labels has values from {labels.min()} to {labels.max()}: they must be from 0 to '
            f'{num_classes - 1}, as num_classes={num_classes}.'
        )
    if imbalance == 1:
        return np.arange(labels.size)
    if num_classes < 2:
        raise ValueError(
            f'--imbalance must be 1 with num_classes={num_classes}, got {imbalance}: there is no '
            'other class.'
        )
    present = np.bincount(labels, minlength=num_classes)
    if not present.all():
        raise ValueError(
            f'--imbalance={imbalance:g} needs training examples of every class, but class '
            f'{present.argmin()} has none.'
        )
    shares = imbalance ** (-np.arange(num_classes) / (num_classes - 1))
    # The tolerance keeps a whole number that rounding makes slightly smaller.
    kept = np.floor((present / shares).min() * shares * (1 + 1e-12)).astype(int)
    if not kept.all():
        raise ValueError(
            f'--imbalance={imbalance:g} leaves class {kept.argmin()} without training examples; '
            'lower it.'
        )
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:count] for c, count in enumerate(kept)]
    return np.sort(np.concatenate(chosen))
