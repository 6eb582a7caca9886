"""What measures need of earlier rounds, of a size that does not grow with them."""

from typing import Any, NamedTuple

import numpy as np

from jaxfed.metrics.accuracy import Evaluation


class Past(NamedTuple):
    """The rounds so far in which the global model was evaluated."""

    rounds: Any  # array [] int32, how many; without any the others say nothing
    best: Any  # array [C] float32, best accuracy of each class
    class_accuracy: Any  # array [C] float32, after the last of them
    predicted: Any  # array [m] int32, predictions after the last of them


def no_past(num_classes: int, examples: int) -> Past:
    """Before the first round.

    Args:
      num_classes: C.
      examples: m, of the test data.

    Returns:
      The past, with no round in it.
    """
    zeros = np.zeros(num_classes, np.float32)
    return Past(np.zeros((), np.int32), zeros, zeros, np.zeros(examples, np.int32))


def remember(past: Past, now: Evaluation) -> Past:
    """Adds a round.

    Args:
      past: the rounds before.
      now: evaluation after this one, NumPy arrays.

    Returns:
      The past of the next round.
    """
    classes = np.asarray(now.class_accuracy)
    best = np.maximum(past.best, classes) if past.rounds else classes
    rounds = np.asarray(past.rounds + 1, np.int32)
    return Past(rounds, best, classes, np.asarray(now.predicted))
