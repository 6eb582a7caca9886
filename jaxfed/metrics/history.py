"""The summary of earlier rounds for measures, of constant size."""

from typing import Any, NamedTuple

import numpy as np

from jaxfed.metrics.accuracy import Evaluation


class History(NamedTuple):
    """The rounds so far in which the global model was evaluated."""

    rounds: Any  # array [] int32, their number; the other fields are undefined if it is 0
    best: Any  # array [C] float32, best accuracy of each class
    class_accuracy: Any  # array [C] float32, after the last of them
    predicted: Any  # array [m] int32, predictions after the last of them


def empty_history(num_classes: int, examples: int) -> History:
    """Makes the history before the first round.

    Args:
      num_classes: C.
      examples: m, of the test data.

    Returns:
      The history without a round.
    """
    zeros = np.zeros(num_classes, np.float32)
    return History(np.zeros((), np.int32), zeros, zeros, np.zeros(examples, np.int32))


def update_history(history: History, evaluation: Evaluation) -> History:
    """Adds a round.

    Args:
      history: of the rounds before.
      evaluation: of the global model after this round, NumPy arrays.

    Returns:
      The history with this round.
    """
    classes = np.asarray(evaluation.class_accuracy)
    best = np.maximum(history.best, classes) if history.rounds else classes
    rounds = np.asarray(history.rounds + 1, np.int32)
    return History(rounds, best, classes, np.asarray(evaluation.predicted))
