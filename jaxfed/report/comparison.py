"""Groups of runs compared with a baseline, paired by seed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxfed.metrics.intervals import holm, mean_interval, paired
from jaxfed.report.grouping import MISSING, RunGroup, conditions_of, protocol_of
from jaxfed.report.reading import RecordedRun
from jaxfed.report.tables import OF_LAST_ROUND, PERSONAL, Cell, GroupTable

# --score -> (accuracy of a run in 0..1, title)
SCORES: dict[str, tuple[Callable[[RecordedRun], float | None], str]] = {
    'final': (RecordedRun.final_accuracy, 'last accuracy (%)'),
    'best': (RecordedRun.best_accuracy, 'best accuracy (%)'),
    'last10': (RecordedRun.last10_accuracy, 'mean of the last ten (%)'),
    'moving': (RecordedRun.moving_accuracy, 'moving average (%)'),
    'best_moving': (RecordedRun.best_moving_accuracy, 'best moving average (%)'),
    'personal': (RecordedRun.personal_accuracy, PERSONAL),
}


class Comparison(NamedTuple):
    """A table of differences from a baseline."""

    baseline: str  # label of the group, or what the groups of several data sets have in common
    table: GroupTable
    by_round: bool  # whether groups need equal evaluations to compare
    without: list[str]  # labels of groups of completed runs that compare with no baseline


def compare(
    groups: Sequence[RunGroup], *, baseline: str | None = None, score: str = 'final'
) -> Comparison | None:
    """Compare the accuracies of groups with those of a baseline.

    Only completed runs on equal data with as many rounds are compared, by the seeds that both have;
    some accuracies also need the same evaluations. Of several such baselines, each group has the
    one with which it shares most settings, and the others of them have the first.

    Args:
      groups: the groups of runs.
      baseline: method or label of the group to compare with; None for FedAvg, or without it for
        the method of the first group.
      score: one of `SCORES`.

    Returns:
      The table, with a row for each group; None if no group has two seeds, unless `baseline` is
      given.

    Raises:
      ValueError: with a chosen baseline, if no completed run is of it or no group has two seeds; if
        `score` is 'personal' and no completed run has that accuracy.
    """
    accuracy, title = SCORES[score]
    by_round = title not in OF_LAST_ROUND
    bases = _find(groups, baseline, by_round=by_round)
    values = [_by_seed(group, accuracy) for group in groups]
    without = [groups[i].label for i, base in enumerate(bases) if values[i] and base is None]
    known = {base for base in bases if base is not None}
    if score == 'personal' and not any(values):
        raise ValueError(
            '--score=personal needs finished runs with --personal_test and --local_eval_every.'
        )
    if not known or all(len(of_seeds) < 2 for of_seeds in values):
        if baseline is not None:
            raise ValueError(
                f'--baseline={baseline} needs runs that differ only in their seeds, at least two '
                'finished ones; run more seeds, or leave it out.'
            )
        return None
    results = [
        None if base is None or base == i else paired(values[i], values[base])
        for i, base in enumerate(bases)
    ]
    adjusted: list[float | None] = [None] * len(groups)
    for base in known:
        places = [i for i, other in enumerate(bases) if other == base]
        for i, p in zip(places, holm([results[i] for i in places]), strict=True):
            adjusted[i] = p
    rows = []
    for of_seeds, result, p in zip(values, results, adjusted, strict=True):
        interval = mean_interval(list(of_seeds.values()))
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
    columns = [title, 'difference (points)', 'p, adjusted', 'common seeds']
    if len(known) == 1:
        label = groups[min(known)].label
        return Comparison(label, GroupTable(columns, rows), by_round, without)
    for i, (of_group, row) in enumerate(zip(bases, rows, strict=True)):
        row.append(Cell(MISSING if of_group in (None, i) else groups[of_group].label))
    methods = {groups[base].runs[0].config['method'] for base in known}
    name = baseline or ' or '.join(sorted(methods))
    table = GroupTable([*columns, 'baseline'], rows)
    return Comparison(f'{name} on the same data', table, by_round, without)


def _find(groups: Sequence[RunGroup], baseline: str | None, *, by_round: bool) -> list[int | None]:
    """The place of the baseline of each group, see `compare`; None without one to compare with."""
    done = [i for i, group in enumerate(groups) if group.counted[0].complete]
    names = {i: (groups[i].runs[0].config['method'], groups[i].label) for i in done}
    wanted = [i for i in done if ('fedavg' if baseline is None else baseline) in names[i]]
    if baseline is not None and not wanted:
        known = '; '.join(dict.fromkeys(name for pair in names.values() for name in pair))
        raise ValueError(
            f'--baseline={baseline} is no method or label of a finished run: choose from '
            f'{known or "none"}.'
        )
    protocols = [protocol_of(group, by_round=by_round) for group in groups]
    conditions = [conditions_of(group) for group in groups]

    def base_of(i: int) -> int | None:
        there = [j for j in wanted or done if protocols[j] == protocols[i]]
        if not wanted:
            there = [j for j in there if names[j][0] == names[there[0]][0]]
        if not there or i in there:
            return there[0] if there else None
        return max(there, key=lambda j: len(conditions[i] & conditions[j]))

    return [base_of(i) for i in range(len(groups))]


def _by_seed(
    group: RunGroup, accuracy: Callable[[RecordedRun], float | None]
) -> dict[object, float]:
    """Seeds -> accuracy in percent of the completed runs that count."""
    pairs = [(run.seeds, accuracy(run)) for run in group.counted if run.complete]
    return {seeds: 100 * value for seeds, value in pairs if value is not None}


def _interval_cell(interval: tuple[float, float | None] | None, sign: str = '') -> Cell:
    """Format a mean and the half of its interval."""
    if interval is None:
        return Cell(MISSING)
    mean, half = interval
    text = f'{mean:{sign}.2f}' if half is None else f'{mean:{sign}.2f} ± {half:.2f}'
    return Cell(text, mean)
