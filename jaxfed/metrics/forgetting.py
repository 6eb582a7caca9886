"""Forgetting: how far classes have fallen below the best that the global model could."""

from typing import TypeVar

import jax
import numpy as np

Array = TypeVar('Array', np.ndarray, jax.Array)


def class_forgetting(history: Array) -> Array:
    """Gap between each class's best accuracy so far and its accuracy now.

    F_c = max_{t < T} A_c^t - A_c^T

    A class that is better than ever has a negative one. After the first evaluation there is
    nothing to forget, and F_c = 0; a class without test examples stays at 0.

    Args:
      history: A [T, C], class accuracies of the global model after each evaluated round, the last
        one is now. A NumPy array stays on the host, so a run that grows compiles nothing.

    Returns:
      [C].

    Reference:
      Lee et al., Preservation of Global Knowledge by Not-True Distillation in Federated Learning,
      NeurIPS 2022, section 2.1.
    """
    best = history[:-1].max(axis=0) if len(history) > 1 else history[-1]
    return best - history[-1]


def forgetting(history: Array) -> Array:
    """Mean of the forgetting of all classes.

    F = mean_c F_c

    Args:
      history: A [T, C], as for `class_forgetting`.

    Returns:
      [].

    Reference:
      Lee et al., Preservation of Global Knowledge by Not-True Distillation in Federated Learning,
      NeurIPS 2022, section 2.1.
    """
    return class_forgetting(history).mean()
