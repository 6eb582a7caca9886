"""From recorded runs to the curves of a panel."""

from collections.abc import Callable, Sequence

import numpy as np

from experiments.draw.figure import Found, begun
from experiments.draw.quantities import ACCURACY, Entry, Score, global_accuracy, kept_scores
from experiments.draw.shapes import Curve, Lines, Reference, over_seeds, single

TakeLines = Callable[[str, Sequence[Found]], Lines]  # from the title and the finished runs


def by_round(
    value: Callable[[Entry], float | None] = global_accuracy,
    ylabel: str = ACCURACY,
    *,
    zero: bool = False,
) -> TakeLines:
    """A curve over rounds for each series.

    Args:
      value: of an entry, None if it has none.
      ylabel: the quantity, with its unit.
      zero: draw a line at 0.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        curves = []
        for series, _, runs in begun(found):
            tables = [
                {e['round']: v for e in run.metrics if (v := value(e)) is not None} for run in runs
            ]
            rounds = sorted({round_ for table in tables for round_ in table})
            values = np.array([[table.get(r, np.nan) for r in rounds] for table in tables])
            curves.append(Curve(series.name, np.array(rounds), *over_seeds(values)))
        return Lines(title, 'round', ylabel, tuple(curves), reference='zero' if zero else 'none')

    return shape_of


def dots(
    x: Callable[[Entry], float | None], y: Callable[[Entry], float | None], xlabel: str, ylabel: str
) -> TakeLines:
    """A dot for each round of each run, and the line where both values are equal.

    Args:
      x: of an entry.
      y: of an entry.
      xlabel: the quantity x, with its unit.
      ylabel: the quantity y, with its unit.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        curves = []
        for series, _, runs in begun(found):
            pairs = [(x(entry), y(entry)) for run in runs for entry in run.metrics]
            known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
            curves.append(Curve(series.name, known[:, 0], *single(known[:, 1])))
        return Lines(title, xlabel, ylabel, tuple(curves), dots=True, reference='diagonal')

    return shape_of


def sweep(score: Score, xlabel: str, ylabel: str = ACCURACY, *, zero: bool = False) -> TakeLines:
    """A curve for each name of a series over the swept values, in even steps.

    Args:
      score: of a run.
      xlabel: the swept setting.
      ylabel: the quantity of the score, with its unit.
      zero: draw a line at 0.

    Returns:
      The `shape_of` of a panel.
    """

    def shape_of(title: str, found: Sequence[Found]) -> Lines:
        ticks = tuple(dict.fromkeys(one.series.at[0] for one in found))
        scores = {
            (one.series.name, one.series.at[0]): kept_scores(one.runs, score) for one in found
        }
        curves = []
        for name in dict.fromkeys(one.series.name for one in begun(found)):
            places = [i for i, tick in enumerate(ticks) if scores.get((name, tick))]
            points = [over_seeds(np.array(scores[name, ticks[i]])) for i in places]
            y, sd, n = np.array(points, float).reshape(-1, 3).T
            curves.append(Curve(name, np.array(places, int), y, sd, n.astype(int)))
        reference: Reference = 'zero' if zero else 'none'
        return Lines(title, xlabel, ylabel, tuple(curves), ticks, reference=reference)

    return shape_of
