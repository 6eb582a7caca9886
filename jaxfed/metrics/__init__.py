"""Measures of a model, as pure functions."""

from jaxfed.metrics.accuracy import Evaluation, evaluate, predict
from jaxfed.metrics.local import Own, local_accuracy, personal_accuracy

__all__ = ['Evaluation', 'Own', 'evaluate', 'local_accuracy', 'personal_accuracy', 'predict']
