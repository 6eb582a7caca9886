"""Forgetting: the gap between the best class accuracies so far and the current ones."""

from typing import TypeVar

import jax
import numpy as np

Array = TypeVar('Array', np.ndarray, jax.Array)


def class_forgetting(history: Array) -> Array:
    """Gap between each class's best accuracy in earlier rounds and its current accuracy.

    F_c = max_{t < T} A_c^t - A_c^T

    It is negative for a class with a new best accuracy, and 0 after the first evaluation and for a
    class without test examples.

    Args:
      history: A [T, C], class accuracies of the global model after each evaluated round. A NumPy
        array remains on the host, so a growing history causes no compilation.

    Returns:
      [C].

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 2.1.
    """
    best = history[:-1].max(axis=0) if len(history) > 1 else history[-1]
    return best - history[-1]


def forgetting(history: Array, tested: np.ndarray | None = None) -> Array:
    """Mean of the forgetting of the classes with test examples.

    F = mean_c F_c

    Args:
      history: A [T, C], as for `class_forgetting`.
      tested: [C] bool, whether a class has test examples; None for all.

    Returns:
      [].

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 2.1.
    """
    classes = class_forgetting(history)
    return (classes if tested is None else classes[tested]).mean()
