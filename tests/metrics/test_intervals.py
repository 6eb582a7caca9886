"""Intervals and tests over seeds, against published tables and by hand."""

import numpy as np
import pytest
from scipy import stats

from jaxfed.metrics.intervals import Interval, Paired, holm, mean_interval, paired


def test_interval_of_five_values():
    interval = mean_interval([10, 12, 14, 16, 18])
    # t_{4, 0.975} = 2.776; s = sqrt(10), and s / sqrt(5) = sqrt(2)
    assert interval.mean == 14
    assert interval.half == pytest.approx(2.776 * np.sqrt(2), abs=1e-3)
    assert interval.seeds == 5


def test_interval_of_few_values():
    assert mean_interval([]) is None
    assert mean_interval([3.0]) == (3.0, None, 1)
    assert mean_interval([1.0, 3.0]).half == pytest.approx(12.706, abs=1e-3)  # s / sqrt(2) = 1


def test_student_covers_the_mean_in_95_of_100_samples():
    samples = np.random.default_rng(0).normal(5, 2, (4000, 5))
    intervals = [mean_interval(sample) for sample in samples]
    covered = np.mean([abs(interval.mean - 5) <= interval.half for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.01)


def test_pairs_use_common_seeds_only():
    result = paired({0: 5.0, 1: 7.0, 2: 9.0, 9: 100.0}, {0: 4.0, 1: 5.0, 2: 6.0, 8: 0.0})
    # differences 1, 2, 3: mean 2, s = 1, t = 2 sqrt(3) with 2 degrees of freedom
    assert result.difference[:2] == (2.0, pytest.approx(4.303 / np.sqrt(3), abs=1e-3))
    assert result.p_value == pytest.approx(0.0742, abs=1e-4)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 1.0}, {0: 3.0}) == ((-2.0, None, 1), None)
    assert paired({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.0}).p_value is None  # equal differences
    assert paired({0: 1.00001, 1: 2.0}, {0: 0.0, 1: 1.0}).p_value is None


def test_large_differences_are_tested():
    ours = {0: 98.02, 1: 98.05, 2: 98.0, 3: 98.04, 4: 97.99}
    result = paired(ours, dict.fromkeys(ours, 10.0))
    assert result.p_value == pytest.approx(stats.ttest_1samp([*ours.values()], 10).pvalue)
    assert result.p_value < 1e-12


def of_p(*p_values, seeds=3):
    return [None if p == '-' else Paired(Interval(1.0, 0.5, seeds), p) for p in p_values]


def test_holm_by_hand():
    assert holm(of_p(0.01, 0.04, 0.03, 0.005)) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(of_p(0.6, '-', 0.7)) == [1.0, None, 1.0]
    assert holm([]) == []
    assert holm(of_p(0.01, '-', 0.03), planned=4) == pytest.approx([0.04, None, 0.09])


def test_holm_counts_equal_differences_but_not_single_pairs():
    assert holm(of_p(0.01, None, 0.03)) == pytest.approx([0.03, None, 0.06])
    assert holm([*of_p(0.01, 0.03), *of_p(None, seeds=1)]) == pytest.approx([0.02, 0.03, None])
