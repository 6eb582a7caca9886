"""Measures of a model, as pure functions."""

from jaxfed.metrics.accuracy import Evaluation, evaluate, predict

__all__ = ['Evaluation', 'evaluate', 'predict']
