"""Confidence intervals over seeds, and tests that compare two methods with the same seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and its confidence interval mean ± half."""

    mean: float
    half: float | None  # None with fewer than two values
    seeds: int  # number of values


class Paired(NamedTuple):
    """The differences of two methods by seed."""

    difference: Interval
    p_value: float | None  # of the paired t-test; None with fewer than two pairs or equal values


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
      ours: seed -> number.
      others: seed -> number of the other method.
      confidence: of the interval.

    Returns:
      Mean of ours minus others, with the p-value of the two-sided paired t-test; None without a
      common seed.
    """
    differences = [ours[seed] - others[seed] for seed in ours.keys() & others.keys()]
    interval = mean_interval(differences, confidence)
    if interval is None:
        return None
    # Recorded accuracies are rounded, so equal differences may vary in the last digit.
    if interval.half is None or np.allclose(differences, interval.mean, rtol=1e-3, atol=0):
        return Paired(interval, None)
    return Paired(interval, float(stats.ttest_1samp(differences, 0.0).pvalue))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts the p-values of several tests by Holm's step-down rule.

    p'_(k) = max_{j <= k} min(1, (m - j + 1) p_(j)), in ascending order of p

    Args:
      p_values: of m tests; None for a test that could not be made.

    Returns:
      Adjusted p-values in the same order.

    Reference:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of
      Statistics, 1979.
    """
    made = [i for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, i in enumerate(sorted(made, key=lambda i: p_values[i] or 0.0)):
        largest = max(largest, min(1.0, (len(made) - place) * (p_values[i] or 0.0)))
        adjusted[i] = largest
    return adjusted
