"""The numbers of a line of metrics.jsonl."""

import math

import numpy as np
import pytest

from jaxfed.metrics import Evaluation
from jaxfed.recording.entries import describe_round, shortened


@pytest.mark.parametrize(
    'number, want',
    [
        (0.123456789, 0.123457), (12.3456789, 12.345679), (3.64567e-5, 3.646e-5), (0.0, 0.0),
        (-4.4444e-7, -4.444e-7), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_small_numbers_keep_their_digits(number, want):
    assert shortened(number) == want


def test_a_line_has_small_losses_rates_and_measures():
    evaluation = Evaluation(np.float32(0.5), np.float32(2.5e-5), np.array([0.25, 0.75]), None)
    measured = {
        'teacher_kl': np.float32(4.4e-7),
        'drift': np.array([[1 / 3, np.nan]]),
        'no': None,
    }
    entry = describe_round(3, 3.6e-5, evaluation, 2.3e-10, {'local_accuracy': 1 / 3}, measured)
    assert {name: value for name, value in entry.items() if 'personal' not in name} == {
        'round': 3, 'test_accuracy': 0.5, 'test_loss': 2.5e-5, 'class_accuracy': [0.25, 0.75],
        'train_loss': 3.6e-5, 'learning_rate': 2.3e-10, 'local_accuracy': 0.333333,
        'teacher_kl': 4.4e-7, 'drift': [[0.333333, None]], 'no': None,
    }  # fmt: skip
    assert all(type(entry[name]) is float for name in ('test_loss', 'teacher_kl', 'learning_rate'))
