"""Metrics of a model, of a round's clients and of a run, as pure functions."""

from jaxfed.metrics.accuracy import Evaluation, grade
from jaxfed.metrics.alignment import alignment, class_preference
from jaxfed.metrics.confusion import confusion_matrix, prediction_share
from jaxfed.metrics.consistency import class_consistency, same_predictions
from jaxfed.metrics.curves import (
    mean_and_deviation,
    mean_of_last,
    moving_average,
    rounds_to_target,
    speed_up,
)
from jaxfed.metrics.divergence import distribution_divergence, weight_distances
from jaxfed.metrics.drift import Drift, diversity, drift
from jaxfed.metrics.forgetting import class_forgetting, forgetting
from jaxfed.metrics.in_out import in_out_accuracy, label_shares, out_local
from jaxfed.metrics.teacher import Agreement, Teacher, agreement, as_teacher, teacher_kl

__all__ = [
    'Agreement',
    'Drift',
    'Evaluation',
    'Teacher',
    'agreement',
    'alignment',
    'as_teacher',
    'class_consistency',
    'class_forgetting',
    'class_preference',
    'confusion_matrix',
    'distribution_divergence',
    'diversity',
    'drift',
    'forgetting',
    'grade',
    'in_out_accuracy',
    'label_shares',
    'mean_and_deviation',
    'mean_of_last',
    'moving_average',
    'out_local',
    'prediction_share',
    'rounds_to_target',
    'same_predictions',
    'speed_up',
    'teacher_kl',
    'weight_distances',
]
