"""The tables of the page: results, settings that differ, and costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxfed.metrics import mean_and_deviation
from jaxfed.recording.display import cost_in_words
from jaxfed.report import grouping
from jaxfed.report.grouping import MISSING, RunGroup, shown
from jaxfed.report.reading import RecordedRun, is_number

PERSONAL = 'personal accuracy (%)'

OF_LAST_ROUND = ('last accuracy (%)', PERSONAL)  # others depend on which rounds are evaluated

# Columns of the results that mark their best mean.
_BETTER: dict[str, Callable[[list[float]], float]] = {
    'last accuracy (%)': max,
    'best accuracy (%)': max,
    'moving average (%)': max,
    PERSONAL: max,
    'rounds to target': min,
    'forgetting (%)': min,
}

RunNumber = Callable[[RecordedRun], float | None]
Format = Callable[[float], str]


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    key: float | str | None = None  # to sort by
    best: bool = False  # whether it is the best of its column
    partial: bool = False  # whether it is a mean over some of the runs that count


class GroupTable(NamedTuple):
    """A table with a row for each group; the page adds a first column with the labels."""

    columns: list[str]
    rows: list[list[Cell]]


def mean_cell(values: Sequence[float | None], form: Format, suffix: str = '') -> Cell:
    """Format mean and sample deviation of the values that are not None."""
    mean, deviation = mean_and_deviation(values)
    if mean is None:
        return Cell(MISSING)
    text = form(mean) if deviation is None else f'{form(mean)} ± {form(deviation)}'
    return Cell(text + suffix, mean)


def group_cell(group: RunGroup, number: RunNumber, form: Format, suffix: str = '') -> Cell:
    """Format a number of the runs of a group that count, with how many have it if some lack it."""
    values = [number(run) for run in group.counted]
    known = len(values) - values.count(None)
    if known in (0, len(values)):
        return mean_cell(values, form, suffix)
    part = f' ({known} of {len(values)})'
    return mean_cell(values, form, part + suffix)._replace(partial=True)


def _time_cell(group: RunGroup, number: RunNumber, form: Format, suffix: str = '') -> Cell:
    """Format a time; runs that shared a program have equal shares of it, so no deviation."""
    values = [number(run) for run in group.counted]
    if any(run.shared for run in group.counted):
        values, suffix = [mean_and_deviation(values)[0]], f' †{suffix}'
    return mean_cell(values, form, suffix)


def percent(value: float) -> str:
    """Format a share as percent."""
    return f'{100 * value:.2f}'


def format_number(value: float) -> str:
    """Format a number with three significant digits, or as an integer with separators."""
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'


def _round(value: float) -> str:
    return f'{value:.1f}'.removesuffix('.0')


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f'{seconds:.{1 if seconds >= 10 else 2 if seconds >= 1 else 3}f} s'
    return f'{seconds / 60:.1f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def _total(field: str) -> RunNumber:
    return lambda run: run.total(field)


def targets(groups: Sequence[RunGroup], target: float | None = None) -> list[float]:
    """The given target, or the different values of --target_accuracy of the runs."""
    if target is not None:
        return [target]
    settings = [run.config.get('target_accuracy') for group in groups for run in group.runs]
    return sorted({target for target in settings if target is not None})


def common(targets: Sequence[float]) -> float | None:
    """The target of all runs; None if they have none, or several."""
    return targets[0] if len(targets) == 1 else None


def results(groups: Sequence[RunGroup], target: float | None) -> GroupTable:
    """Tabulate accuracies and times; an asterisk marks groups without a completed run.

    The best mean of a column is marked among groups of completed runs on equal data, with the same
    seeds and as many rounds and evaluations.

    Args:
      groups: the groups of runs.
      target: the accuracy in 0..1 for 'rounds to target'; None for no such column.
    """
    columns = ['last accuracy (%)', 'best accuracy (%)', 'in round', 'moving average (%)']
    personal = any(run.personal_accuracy() is not None for g in groups for run in g.counted)
    columns += [PERSONAL] * personal + ['rounds to target'] * (target is not None)
    columns += ['forgetting (%)', 'time', 'client-steps/s', 'seeds', 'state']
    rows = []
    for group in groups:
        mark = '' if group.counted[0].complete else ' *'
        seeds, state = grouping.seeds(group).removesuffix(' seeds'), grouping.state(group)
        row = [
            group_cell(group, RecordedRun.final_accuracy, percent, mark),
            group_cell(group, RecordedRun.best_accuracy, percent, mark),
            group_cell(group, RecordedRun.best_round, _round, mark),
            group_cell(group, RecordedRun.moving_accuracy, percent, mark),
            *([group_cell(group, RecordedRun.personal_accuracy, percent, mark)] * personal),
            *([] if target is None else [_rounds_to_target(group, target, mark)]),
            group_cell(group, RecordedRun.final_forgetting, percent, mark),
            _time_cell(group, RecordedRun.seconds, _duration, mark),
            _time_cell(group, _total('client_steps_per_second'), format_number),
            Cell(seeds or '1', len(group.counted)),
            Cell(state, state),
        ]
        rows.append(row)
    _mark_best(groups, columns, rows)
    return GroupTable(columns, rows)


def _mark_best(groups: Sequence[RunGroup], columns: list[str], rows: list[list[Cell]]) -> None:
    """Mark the best printed mean of each column among groups that compare."""
    comparable: dict[bool, dict[Any, list[int]]] = {False: {}, True: {}}
    for i, group in enumerate(groups):
        for by_round, samples in comparable.items():
            if sample := grouping.sample_of(group, by_round=by_round):
                samples.setdefault(sample, []).append(i)
    for column in (name for name in _BETTER if name in columns):
        j = columns.index(column)
        for numbers in comparable[column not in OF_LAST_ROUND].values():
            cells = {i: rows[i][j] for i in numbers}
            for i, cell in mark_best(cells, _BETTER[column]).items():
                rows[i][j] = cell


def mark_best(
    cells: Mapping[int, Cell], better: Callable[[list[float]], float] = max
) -> dict[int, Cell]:
    """Mark the cells with the best printed mean over all runs, unless all are printed alike."""
    means = {
        i: cell.key
        for i, cell in cells.items()
        if isinstance(cell.key, int | float) and not cell.partial
    }
    printed = {i: cells[i].text.partition(' ')[0] for i in means}
    if len(set(printed.values())) < 2:
        return dict(cells)
    best = better(list(means.values()))
    shown_best = {printed[i] for i, mean in means.items() if mean == best}
    return {i: cell._replace(best=printed.get(i) in shown_best) for i, cell in cells.items()}


def _rounds_to_target(group: RunGroup, target: float, mark: str) -> Cell:
    """Format the mean over the seeds that reached the target, with their number if some did not."""
    if all(run.rounds_to(target) is None for run in group.counted):
        return Cell(f'not reached{mark}')
    return group_cell(group, lambda run: run.rounds_to(target), _round, mark)


def differing_settings(groups: Sequence[RunGroup]) -> GroupTable:
    """Tabulate the settings that differ; the hyper-parameters of all methods share a column."""
    by_group = grouping.settings_by_group(groups)
    values = {name: texts for name, texts in by_group.items() if len(set(texts)) > 1}
    parts = {
        p['name'] for g in groups for run in g.runs for p in run.config.get('method_parts', [])
    }
    hyper = [name for name in values if '.' in name and name.partition('.')[0] in parts]
    columns = [name for name in values if name not in hyper]
    rows = []
    for i, _ in enumerate(groups):
        row = [Cell(values[name][i], values[name][i]) for name in columns]
        if hyper:
            texts = [f'{name}={values[name][i]}' for name in hyper if values[name][i] != MISSING]
            row.append(Cell(', '.join(texts) or MISSING))
        rows.append(row)
    return GroupTable(columns + ['hyper-parameters'] * bool(hyper), rows)


def costs(groups: Sequence[RunGroup]) -> GroupTable:
    """Tabulate the costs of the first counted run of each group, and mean times."""
    columns = ['beyond FedAvg', 'parameters', 'upload', 'download', 'auxiliary examples']
    columns += ['memory per device', 'time', 'compilation', 'a round', 'device']
    rows = []
    for group in groups:
        run = group.counted[0]
        cost = (run.summary or {}).get('cost') or {}
        auxiliary = run.total('auxiliary_examples')
        try:
            words = cost_in_words(cost) or 'as FedAvg'
        except KeyError:
            words = MISSING
        row = [
            Cell(words, words),
            *(_bytes(cost.get(f'{name}_bytes')) for name in ('parameter', 'upload', 'download')),
            Cell(MISSING) if auxiliary is None else Cell(format_number(auxiliary), auxiliary),
            _memory(run),
            _time_cell(group, RecordedRun.seconds, _duration),
            _time_cell(group, _total('compile_seconds'), _duration),
            _time_cell(group, _total('seconds_per_round'), _duration),
            Cell('; '.join(dict.fromkeys(map(_device, group.runs)))),
        ]
        rows.append(row)
    return GroupTable(columns, rows)


def _memory(run: RecordedRun) -> Cell:
    """Format the memory of the program, with the number of runs that shared it."""
    cell, count = _bytes(run.total('memory_bytes')), run.total('experiments')
    if cell.key is None or not count or count <= 1:
        return cell
    return cell._replace(text=f'{cell.text} for {count:g} runs at once')


def _bytes(value: Any) -> Cell:
    if not is_number(value):
        return Cell(MISSING)
    size, units = float(value), ['B', 'KiB', 'MiB', 'GiB']
    while size >= 999.5 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return Cell(f'{size:.3g} {units[0]}', value)


def _device(run: RecordedRun) -> str:
    device = run.config.get('device') or {}
    if device.get('kind') is None:
        return MISSING
    count = (run.summary or {}).get('devices', device.get('count'))
    words = f'{shown(count)} x {shown(device["kind"])}'
    cores, processor = device.get('cpu_cores'), device.get('processor')
    words += '' if cores is None else f', {shown(cores)} cores'
    return words if processor is None else f'{words} of {shown(processor)}'


def versions(run: RecordedRun) -> str:
    """Return the versions of Python and packages in one line."""
    packages = run.config.get('versions') or {}
    return ', '.join(f'{name} {shown(version)}' for name, version in packages.items()) or MISSING
