"""The numbers that a panel of a figure shows."""

from typing import Literal, NamedTuple

import numpy as np

Reference = Literal['none', 'zero', 'diagonal']


class Curve(NamedTuple):
    """A curve, or dots: k points, each over the seeds with a value."""

    label: str
    x: np.ndarray  # [k]
    y: np.ndarray  # [k], mean over seeds
    sd: np.ndarray  # [k], sample standard deviation over seeds, NaN for less than two
    n: np.ndarray  # [k] integers, seeds


class Lines(NamedTuple):
    """Curves in one pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    curves: tuple[Curve, ...]
    ticks: tuple[str, ...] = ()  # names of x = 0, 1, ..., in even steps; () for numbers
    dots: bool = False  # not joined
    reference: Reference = 'none'  # a thin line to compare with


class Matrix(NamedTuple):
    """A matrix as coloured cells."""

    title: str
    xlabel: str  # of columns
    ylabel: str  # of rows
    values: np.ndarray  # [R, C], NaN for no value
    sd: np.ndarray  # [R, C], over seeds, NaN for less than two
    n: np.ndarray  # [R, C] integers, seeds
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    label: str  # the quantity of the colours, with its unit
    # Values of the lightest and the darkest colour; None for the least and the largest of all
    # matrices of the figure with the same label and the same of these numbers.
    low: float | None = 0.0
    high: float | None = None
    gamma: float = 1.0  # exponent of the colours; below 1 sets small values apart
    form: str = ''  # of the numbers in the cells, '' for none


class Missing(NamedTuple):
    """A panel without finished runs."""

    title: str


Shape = Lines | Matrix | Missing


def over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and sample standard deviation over seeds.

    Args:
      values: [seeds, ...], NaN if a seed has none.

    Returns:
      Mean, NaN without any seed; standard deviation, NaN with less than two; number of seeds.
    """
    values = np.asarray(values, float)
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    mean = np.where(known, values, 0).sum(axis=0) / np.where(n, n, np.nan)
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.sqrt(squares / np.where(n > 1, n - 1, np.nan)), n


def single(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result of `over_seeds` for one seed."""
    return over_seeds(np.asarray(values, float)[None])
