"""Confidence intervals over seeds, and tests that compare two methods with the same seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
# Recorded accuracies are rounded to 1e-4 %. A difference of two rounded differences involves four
# of them, so equal ones may differ by up to 2e-4.
_ROUNDING = 2.5e-4


class Interval(NamedTuple):
    """A mean and its confidence interval mean ± half."""

    mean: float
    half: float | None  # None with fewer than two values
    seeds: int  # number of values


class Paired(NamedTuple):
    """The differences of two methods by seed."""

    difference: Interval
    p_value: float | None  # of the paired t-test; None for one pair or equal differences


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean of normal values and the confidence interval of Student's t.

    m ± t_{n-1, (1 + c) / 2} s / sqrt(n)

    Args:
      values: one number for each seed.
      confidence: c.

    Returns:
      The interval; None without values.
    """
    n = len(values)
    if not n:
        return None
    mean = float(np.mean(values))
    if n == 1:
        return Interval(mean, None, 1)
    scale = float(np.std(values, ddof=1)) / np.sqrt(n)
    return Interval(mean, float(stats.t.ppf((1 + confidence) / 2, n - 1) * scale), n)


def paired(
    ours: Mapping[Any, float],
    others: Mapping[Any, float],
    confidence: float = CONFIDENCE,
) -> Paired | None:
    """Compare two methods by the seeds that both have.

    A seed sets the partition, the clients of each round and the initial parameters of both, so
    their differences vary less than their accuracies.

    Args:
      ours: seed -> percent.
      others: seed -> percent of the other method.
      confidence: of the interval.

    Returns:
      Mean of ours minus others, with the p-value of the two-sided paired t-test; None without a
      common seed.
    """
    differences = [ours[seed] - others[seed] for seed in ours.keys() & others.keys()]
    interval = mean_interval(differences, confidence)
    if interval is None:
        return None
    if interval.half is None or np.ptp(differences) < _ROUNDING:
        return Paired(interval, None)
    return Paired(interval, float(stats.ttest_1samp(differences, 0.0).pvalue))


def holm(results: Sequence[Paired | None], planned: int = 0) -> list[float | None]:
    """Adjusts the p-values of several comparisons by Holm's step-down rule.

    p'_(k) = max_{j <= k} min(1, (m - j + 1) p_(j)), in ascending order of p

    Equal differences have no p-value, but count among the m comparisons: whether a method is tested
    must not depend on its results.

    Args:
      results: comparisons of two pairs or more, and others, which do not count.
      planned: the least m, with comparisons that are not finished or failed.

    Returns:
      Adjusted p-values in the same order, None for those without.

    Reference:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of
      Statistics, 1979.
    """
    made = sum(result is not None and result.difference.seeds > 1 for result in results)
    tests = max(made, planned)
    tested = [(r.p_value, i) for i, r in enumerate(results) if r and r.p_value is not None]
    adjusted: list[float | None] = [None] * len(results)
    largest = 0.0
    for place, (p, i) in enumerate(sorted(tested)):
        largest = max(largest, min(1.0, (tests - place) * p))
        adjusted[i] = largest
    return adjusted
