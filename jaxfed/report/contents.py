"""What the page says of the runs: cells of tables, and pictures with their captions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfed.recording.display import cost_in_words
from jaxfed.report import grouping, pictures
from jaxfed.report.grouping import Group, Spread, curve, spread, spread_of
from jaxfed.report.pictures import Picture
from jaxfed.report.reading import Run, is_number

NOTHING = '–'

# Titles of fields of metrics.jsonl, and whether they are shares. Others are called by their names.
_TITLES = {
    'test_accuracy': ('Test accuracy', True),
    'test_loss': ('Test loss', False),
    'train_loss': ('Training loss', False),
    'local_accuracy': ('Local models, average test accuracy', True),
    'personal_accuracy': ("Local models on their clients' held-out examples", True),
    'personal_global_accuracy': ("Global model on the clients' held-out examples", True),
    'forgetting': ('Forgetting', True),
    'class_consistency': ('Cosine of class accuracies with the round before', False),
    'same_predictions': ('Predictions that stayed the same', True),
    'in_local_accuracy': ('Local models, in-local accuracy', True),
    'out_local_accuracy': ('Local models, out-local accuracy', True),
    'in_local_accuracy_before': ('Global model before the round, in-local accuracy', True),
    'out_local_accuracy_before': ('Global model before the round, out-local accuracy', True),
    'in_local_accuracy_after': ('Global model after the round, in-local accuracy', True),
    'out_local_accuracy_after': ('Global model after the round, out-local accuracy', True),
    'update_norm': ("Norm of the clients' updates", False),
    'update_cosine': ('Cosine of updates with their mean', False),
    'update_diversity': ('Diversity of updates', False),
    'gradient_diversity': ('Diversity of gradients', False),
    'weight_divergence': ('Distance of local models to the global one before the round', False),
    'distribution_divergence': ("Distance of clients' labels to class accuracies", False),
    'weight_alignment': ('Neurons that prefer the same class as before', True),
    'teacher_kl': ('Divergence from the global model before the round', False),
}
# What is rarely looked at stands folded.
_FURTHER = {
    'learning_rate': ('Learning rate', False),
    'seconds': ('Seconds a round', False),
    'evaluation_seconds': ('Seconds of evaluation', False),
    'local_evaluation_seconds': ('Seconds of evaluating local models', False),
}


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    key: float | str | None = None  # to sort by


class Table(NamedTuple):
    """A table with a row a group; the first column is the group's label."""

    columns: list[str]
    rows: list[list[Cell]]


class Figure(NamedTuple):
    """A picture with its caption."""

    caption: str
    picture: Picture | None  # None for an embedded PNG
    embedded: str | None = None


def _cell(found: Spread | None, form: Callable[[float], str], mark: str = '') -> Cell:
    if found is None:
        return Cell(NOTHING)
    text = form(found.mean)
    if found.deviation is not None:
        text += f' ± {form(found.deviation)}'
    return Cell(text + mark, found.mean)


def _percent(value: float) -> str:
    return f'{100 * value:.2f}'


def _number(value: float) -> str:
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'


def _round(value: float) -> str:
    return f'{value:.1f}'.removesuffix('.0')


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f'{seconds:.{1 if seconds >= 10 else 2 if seconds >= 1 else 3}f} s'
    return f'{seconds / 60:.1f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def of_summary(name: str) -> Callable[[Run], float | None]:
    """Reads a number of summary.json.

    Args:
      name: its field.

    Returns:
      A function of a run; None where it has no such number.
    """

    def read(run: Run) -> float | None:
        value = (run.summary or {}).get(name)
        return value if is_number(value) else None

    return read


def seconds(run: Run) -> float | None:
    """Time of a run.

    Args:
      run: the run.

    Returns:
      Seconds of the whole run, of an unfinished one the sum of its rounds'; None of one without
      rounds.
    """
    total = of_summary('seconds_total')(run)
    held = run.values('seconds').values()
    return total if total is not None else (sum(held) if held else None)


def state(group: Group) -> str:
    """How the runs of a group ended.

    Args:
      group: the group.

    Returns:
      A few words, once where they are the same for all runs, or else by seed; first how many
      seeds the means are of, if not of all.
    """
    if len({run.state for run in group.runs}) == 1:
        return group.runs[0].state
    some = len(group.counted) < len(group.runs)
    told = [run for run in group.runs if not some or run.state != 'finished']
    by_seed = [f'seed {run.seed}: {run.state}' for run in told]
    return '; '.join([*([f'mean of {seeds(group)}'] if some else []), *by_seed])


def seeds(group: Group) -> str:
    """Number of seeds that the means of a group are of.

    Args:
      group: the group.

    Returns:
      Such as '3 seeds' or '2 of 3 seeds'; nothing of a single run.
    """
    count, every = len(group.counted), len(group.runs)
    if every == 1:
        return ''
    return f'{every} seeds' if count == every else f'{count} of {every} seeds'


def seeds_by_round(group: Group) -> str:
    """Number of seeds that the curves of a group are the mean of.

    Args:
      group: the group.

    Returns:
      Such as '3 seeds, 2 after round 40'; nothing of a single run.
    """
    sound = [[e['round'] for e in run.metrics if not e.get('failed')] for run in group.runs]
    ends = [rounds[-1] for rounds in sound if rounds]
    if len(group.runs) == 1 or not ends:
        return ''
    words = [f'{len(ends)} seed{"s" * (len(ends) > 1)}']
    for last in sorted(set(ends))[:-1]:
        words.append(f'{sum(end > last for end in ends)} after round {last}')
    return ', '.join(words)


def results(groups: Sequence[Group], target: float | None) -> Table:
    """The table of results.

    Args:
      groups: of runs.
      target: accuracy whose rounds are told; None for that of each run.

    Returns:
      The table; several seeds as mean and deviation of the sample, numbers of a group without a
      finished run with an asterisk.
    """
    has_target = target is not None or any(
        run.config.get('target_accuracy') is not None for group in groups for run in group.runs
    )
    columns = ['last accuracy (%)', 'best accuracy (%)', 'in round']
    columns += ['rounds to target'] * has_target
    columns += ['forgetting (%)', 'time', 'client-steps/s', 'seeds', 'state']
    rows = []
    for group in groups:
        mark = '' if group.counted[0].complete else ' *'

        def best(run: Run, place: int) -> float | None:
            found = grouping.best(run)
            return None if found is None else found[place]

        def forgotten(run: Run) -> float | None:
            return next(reversed(run.forgetting.values()), None)

        row = [
            _cell(spread(group, grouping.final), _percent, mark),
            _cell(spread(group, lambda run: best(run, 0)), _percent, mark),
            _cell(spread(group, lambda run: best(run, 1)), _round, mark),
        ]
        if has_target:
            row.append(_to_target(group, target, mark))
        row += [
            _cell(spread(group, forgotten), _percent, mark),
            _cell(spread(group, seconds), _duration, mark),
            _cell(spread(group, of_summary('client_steps_per_second')), _number),
            Cell(seeds(group).removesuffix(' seeds') or '1', len(group.counted)),
            Cell(state(group), state(group)),
        ]
        rows.append(row)
    return Table(columns, rows)


def _to_target(group: Group, target: float | None, mark: str) -> Cell:
    """Rounds to the target, and how many seeds reached it if not all did."""
    found = spread(group, lambda run: grouping.to_target(run, target))
    every = len(group.counted)
    reached = sum(grouping.to_target(run, target) is not None for run in group.counted)
    if found is None:
        asked = target is not None or any(r.config.get('target_accuracy') for r in group.runs)
        return Cell(f'not reached{mark}' if asked else NOTHING)
    part = f' ({reached} of {every})' if reached < every else ''
    return _cell(found, _round, part + mark)


def differing(groups: Sequence[Group]) -> Table:
    """The table of settings that are not the same in all groups.

    Args:
      groups: of runs.

    Returns:
      The table; hyper-parameters of all methods are in one column.
    """
    found = grouping.differing(groups)
    own = {name: values for name, values in found.items() if _is_hyperparameter(name, groups)}
    columns = [name for name in found if name not in own]
    rows = []
    for i, _ in enumerate(groups):
        row = [Cell(found[name][i], found[name][i]) for name in columns]
        given = [f'{n}={values[i]}' for n, values in own.items() if values[i] != NOTHING]
        rows.append([*row, Cell(', '.join(given) or NOTHING)] if own else row)
    return Table([*columns, *(['hyper-parameters'] if own else [])], rows)


def _is_hyperparameter(name: str, groups: Sequence[Group]) -> bool:
    parts = {
        part['name']
        for g in groups
        for run in g.runs
        for part in run.config.get('method_parts', [])
    }
    return name.partition('.')[0] in parts and '.' in name


def curves(groups: Sequence[Group]) -> tuple[list[Figure], list[Figure]]:
    """A picture of every number that is recorded by round.

    Args:
      groups: of runs.

    Returns:
      Those that stand open, and those folded.
    """
    recorded = {
        name
        for group in groups
        for run in group.runs
        for entry in run.metrics
        for name, value in entry.items()
        if is_number(value) and name != 'round'
    }
    if any(run.forgetting for group in groups for run in group.runs):
        recorded.add('forgetting')
    others = sorted(recorded - _TITLES.keys() - _FURTHER.keys())
    shown = [*_TITLES, *others]
    return (
        [f for name in shown if name in recorded and (f := _curves(name, groups))],
        [f for name in _FURTHER if name in recorded and (f := _curves(name, groups))],
    )


def _curves(name: str, groups: Sequence[Group]) -> Figure | None:
    def values(run: Run) -> dict[int, float]:
        return run.forgetting if name == 'forgetting' else run.values(name)

    title, percent = {**_TITLES, **_FURTHER}.get(name, (name, False))
    found = [(i, c) for i, group in enumerate(groups) if (c := curve(group, values))]
    if not found:
        return None
    words = f'{title} by round, {len(found)} curves' if len(found) > 1 else f'{title} by round'
    return Figure(title, pictures.draw_curves(found, words, percent=percent))


def classes(groups: Sequence[Group]) -> tuple[Figure | None, Table | None, list[Figure]]:
    """Accuracy of each class: the last of all groups, and by round a picture a group.

    Args:
      groups: of runs.

    Returns:
      The picture that compares groups, its numbers as a table, and the pictures by round.
    """
    last: list[tuple[int, np.ndarray, np.ndarray | None]] = []
    rows: list[list[Cell]] = []
    by_round: list[Figure] = []
    for i, group in enumerate(groups):
        found = grouping.class_accuracy(group)
        each = [list(run.by_class('class_accuracy').values()) for run in group.counted]
        if found is None or not any(each):
            rows.append([])
            continue
        rounds, accuracy = found
        ends = np.array([held[-1] for held in each if held])
        deviation = ends.std(axis=0, ddof=1) if len(ends) > 1 else None
        last.append((i, ends.mean(axis=0), deviation))
        rows.append(
            [_cell(spread_of(ends[:, c]), lambda x: f'{100 * x:.1f}') for c in range(ends.shape[1])]
        )
        words = f'{group.label}: accuracy of each class by round, as a heat map'
        caption = ', '.join(filter(None, [group.label, seeds_by_round(group)]))
        by_round.append(Figure(caption, pictures.draw_by_round(rounds, accuracy, words)))
    if not last:
        return None, None, []
    size = max(map(len, rows))
    filled = [[*row, *[Cell(NOTHING)] * (size - len(row))] for row in rows]
    words = 'Accuracy of each class when last evaluated; the numbers are in the table below'
    figure = Figure('Accuracy of each class, last', pictures.draw_classes(last, words))
    return figure, Table([str(c) for c in range(size)], filled), by_round


def confusions(groups: Sequence[Group]) -> list[Figure]:
    """Pictures of the last confusion matrices, the sum over the counted runs of a group.

    Args:
      groups: of runs.

    Returns:
      A picture for each group that has matrices, of one size.
    """
    figures = []
    for group in groups:
        found = [held for run in group.counted if (held := run.confusion()) is not None]
        if not found or len({held.shape for held in found}) > 1:
            continue
        words = f'{group.label}: confusion matrix, rows are shares of each class'
        caption = ', '.join(filter(None, [group.label, seeds(group)]))
        figures.append(Figure(caption, pictures.draw_confusion(np.sum(found, axis=0), words)))
    return figures


def partitions(groups: Sequence[Group]) -> list[Figure]:
    """Pictures of how data is dealt.

    Args:
      groups: of runs.

    Returns:
      A picture for each partition, which tells the runs that have it.
    """
    users: dict[Any, list[str]] = {}
    held: dict[Any, Run] = {}
    for group in groups:
        for run in group.runs:
            counts, picture = run.label_counts, run.picture
            if counts is None and picture is None:
                continue
            key = picture if counts is None else (counts.shape, counts.tobytes())
            seed = f', seed {run.seed}' if len(group.runs) > 1 else ''
            users.setdefault(key, []).append(group.label + seed)
            held[key] = run
    every = sum(len(group.runs) for group in groups)
    figures = []
    for key, labels in users.items():
        run = held[key]
        name = 'all runs' if len(labels) == every else '; '.join(labels)
        if run.label_counts is None:
            figures.append(Figure(name, None, run.picture))
            continue
        clients, size = run.label_counts.shape
        words = f'{name}: examples of each of {size} classes at each of {clients} clients'
        figures.append(Figure(name, pictures.draw_partition(run.label_counts, words)))
    return figures


def costs(groups: Sequence[Group]) -> Table:
    """The table of what runs cost, as far as summary.json tells.

    Args:
      groups: of runs.

    Returns:
      The table; what follows from the settings is that of the first counted run, times are of all.
    """
    columns = ['beyond FedAvg', 'parameters', 'upload', 'download', 'auxiliary examples']
    columns += ['memory a device', 'time', 'of it compiling', 'a round', 'device']
    rows = []
    for group in groups:
        run = group.counted[0]
        summary = run.summary or {}
        cost = summary.get('cost') or {}
        auxiliary = of_summary('auxiliary_examples')(run)
        try:
            words = cost_in_words(cost) or 'as FedAvg'
        except KeyError:
            words = NOTHING

        rows.append(
            [
                Cell(words, words),
                *(
                    _bytes(cost.get(f'{name}_bytes'))
                    for name in ('parameter', 'upload', 'download')
                ),
                Cell(NOTHING) if auxiliary is None else Cell(_number(auxiliary), auxiliary),
                _of_program(run),
                _cell(spread(group, seconds), _duration),
                _cell(spread(group, of_summary('compile_seconds')), _duration),
                _cell(spread(group, of_summary('seconds_per_round')), _duration),
                Cell(_same(group, _device)),
            ]
        )
    return Table(columns, rows)


def _of_program(run: Run) -> Cell:
    """Memory of the program that trained a run, and of how many if of more than one."""
    cell, count = _bytes((run.summary or {}).get('memory_bytes')), of_summary('experiments')(run)
    shared = f' for {count:g} runs at once' if count and count > 1 and cell.key is not None else ''
    return cell._replace(text=cell.text + shared)


def _bytes(value: Any) -> Cell:
    if not is_number(value):
        return Cell(NOTHING)
    size, units = float(value), ['B', 'KiB', 'MiB', 'GiB']
    while size >= 999.5 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return Cell(f'{size:.3g} {units[0]}', value)


def _same(group: Group, words: Callable[[Run], str]) -> str:
    return '; '.join(dict.fromkeys(map(words, group.runs)))


def _device(run: Run) -> str:
    device = run.config.get('device') or {}
    kind = device.get('kind')
    if kind is None:
        return NOTHING
    used = (run.summary or {}).get('devices', device.get('count'))
    words = f'{grouping.shown(used)} x {grouping.shown(kind)}'
    cores = device.get('cpu_cores')
    return words if cores is None else f'{words}, {grouping.shown(cores)} cores'


def versions(run: Run) -> str:
    """Versions of Python and packages, in a line.

    Args:
      run: the run.

    Returns:
      The words.
    """
    held = run.config.get('versions') or {}
    return ', '.join(f'{name} {grouping.shown(v)}' for name, v in held.items()) or NOTHING
