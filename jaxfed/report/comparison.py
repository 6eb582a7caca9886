"""Groups of runs compared with a baseline, paired by seed."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxfed.metrics.intervals import holm, mean_interval, paired
from jaxfed.report.grouping import MISSING, RunGroup, data_of
from jaxfed.report.tables import Cell, GroupTable


class Comparison(NamedTuple):
    """A table of differences from a baseline."""

    baseline: str  # label of the group
    table: GroupTable


def compare(groups: Sequence[RunGroup]) -> Comparison | None:
    """Compare the last accuracies of groups with those of FedAvg, or else of the first group.

    Only completed runs on equal data are compared, by the seeds that both have.

    Args:
      groups: the groups of runs.

    Returns:
      The table, with a row for each group; None if no two groups have two common seeds.
    """
    done = [g for g in groups if g.counted[0].complete]
    averaging = [g for g in done if g.runs[0].config['method'] == 'fedavg']
    baseline = next(iter(averaging or done), None)
    if baseline is None:
        return None
    results = [
        paired(_by_seed(group), _by_seed(baseline))
        if group in done and group is not baseline and data_of(group) == data_of(baseline)
        else None
        for group in groups
    ]
    if all(result is None or result.difference.half is None for result in results):
        return None
    adjusted = holm([result.p_value if result else None for result in results])
    rows = []
    for group, result, p in zip(groups, results, adjusted, strict=True):
        interval = mean_interval(list(_by_seed(group).values())) if group in done else None
        rows.append(
            [
                _interval_cell(interval and (interval.mean, interval.half)),
                _interval_cell(result and (result.difference.mean, result.difference.half), '+'),
                Cell(MISSING) if p is None else Cell(f'{p:.2g}', p),
                Cell(str(result.difference.seeds), result.difference.seeds)
                if result
                else Cell(MISSING),
            ]
        )
    columns = ['last accuracy (%)', 'difference (points)', 'p, adjusted', 'common seeds']
    return Comparison(baseline.label, GroupTable(columns, rows))


def _by_seed(group: RunGroup) -> dict[object, float]:
    """Seeds -> last accuracy in percent of the counted runs."""
    pairs = [(run.seeds, run.final_accuracy()) for run in group.counted]
    return {seeds: 100 * accuracy for seeds, accuracy in pairs if accuracy is not None}


def _interval_cell(interval: tuple[float, float | None] | None, sign: str = '') -> Cell:
    """Format a mean and the half of its interval."""
    if interval is None:
        return Cell(MISSING)
    mean, half = interval
    text = f'{mean:{sign}.2f}' if half is None else f'{mean:{sign}.2f} ± {half:.2f}'
    return Cell(text, mean)
