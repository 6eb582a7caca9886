"""Measures of a model, as pure functions."""

from jaxfed.metrics.accuracy import Evaluation, evaluate, local_accuracy, predict

__all__ = ['Evaluation', 'evaluate', 'local_accuracy', 'predict']
