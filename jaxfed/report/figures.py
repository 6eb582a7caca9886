"""The captioned pictures of the page: curves, classes, confusion matrices and partitions."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxfed.metrics.measures import MEASURES
from jaxfed.report import grouping, pictures
from jaxfed.report.grouping import MISSING, RunGroup
from jaxfed.report.pictures import SvgPicture
from jaxfed.report.reading import RecordedRun, is_number
from jaxfed.report.tables import Cell, GroupTable, format_number, mean_cell

_LOCAL_SECONDS = 'local_evaluation_seconds'
# Titles of fields of metrics.jsonl that no measure has, and whether a field is a share.
_TITLES: dict[str, tuple[str, bool]] = {
    'test_accuracy': ('Test accuracy', True),
    'test_loss': ('Test loss', False),
    'train_loss': ('Training loss', False),
    'local_accuracy': ('Local models, average test accuracy', True),
    'personal_accuracy': ("Local models on their clients' held-out examples", True),
    'personal_global_accuracy': ("Global model on the clients' held-out examples", True),
    'personal_worst_tenth': ('Local models of the worst tenth of the clients, held-out', True),
    'personal_deviation': ('Local models, deviation over clients on held-out examples', True),
    'epsilon': ('Epsilon, bound of the privacy loss so far', False),
}
_FOLDED = {  # in a closed section
    'clients': ('Clients whose update arrived', False),
    'learning_rate': ('Learning rate', False),
    'seconds': ('Seconds a round', False),
    'evaluation_seconds': ('Seconds of evaluation', False),
    _LOCAL_SECONDS: ('Seconds of evaluating local models', False),
}


class CaptionedPicture(NamedTuple):
    """A picture with its caption."""

    caption: str
    picture: SvgPicture | None  # None for an embedded PNG
    embedded: str | None = None  # a data: URI


class Curves(NamedTuple):
    """The pictures of numbers by round."""

    main: list[CaptionedPicture]
    further: list[CaptionedPicture]  # in a closed section
    constant: dict[str, str]  # title -> value, of numbers that never change


def curves(groups: Sequence[RunGroup]) -> Curves:
    """Draw every number recorded by round, except those that are constant."""
    runs = [run for group in groups for run in group.runs]
    entries = (entry for run in runs for entry in run.metrics)
    recorded = {name for entry in entries for name, value in entry.items() if is_number(value)}
    if any(run.forgetting for run in runs):
        recorded.add('forgetting')
    titles = _titles()
    others = sorted(recorded - {'round'} - titles.keys())
    drawn: dict[str, CaptionedPicture] = {}
    constant = {}
    for name in [name for name in (*titles, *others) if name in recorded]:
        values = [_by_round(run, name) for run in runs]
        rounds, different = (
            set().union(*values),
            {v for by_round in values for v in by_round.values()},
        )
        if len(different) == 1 < len(rounds):
            title, percent = _title(name)
            value = different.pop()
            constant[title] = f'{100 * value:g} %' if percent else format_number(value)
        elif picture := _draw(name, groups):
            drawn[name] = picture
    return Curves(
        [picture for name, picture in drawn.items() if name not in _FOLDED],
        [picture for name, picture in drawn.items() if name in _FOLDED],
        constant,
    )


def _titles() -> dict[str, tuple[str, bool]]:
    """The titles of all fields, also of registered measures, in the order of the pictures."""
    measured = (measure.titles for measure in MEASURES.values())
    return functools.reduce(operator.or_, measured, _TITLES) | _FOLDED


def _title(name: str) -> tuple[str, bool]:
    return _titles().get(name, (name, False))


def _by_round(run: RecordedRun, name: str) -> dict[int, float]:
    return run.forgetting if name == 'forgetting' else run.values(name)


def _draw(name: str, groups: Sequence[RunGroup]) -> CaptionedPicture | None:
    title, percent = _title(name)
    runs = [run for group in groups for run in group.runs]
    if name == _LOCAL_SECONDS and not any(run.config.get('local_eval_every') for run in runs):
        return None  # the time of measures of the global model
    means = []
    for i, group in enumerate(groups):
        curve = grouping.mean_curve(group, lambda run: _by_round(run, name))
        if curve and name.endswith('seconds') and any(run.shared for run in group.runs):
            curve = curve._replace(deviation=None)  # shares of one program's time
        if curve:
            means.append((i, curve))
    if not means:
        return None
    words = f'{title} by round' + (f', {len(means)} curves' if len(means) > 1 else '')
    # Forgetting may be negative; other shares are in 0..1.
    bounded = percent and name != 'forgetting'
    picture = pictures.draw_curves(means, words, percent=percent, bounded=bounded)
    return CaptionedPicture(title, picture)


def classes(
    groups: Sequence[RunGroup],
) -> tuple[CaptionedPicture | None, GroupTable | None, list[CaptionedPicture]]:
    """Draw and tabulate the last accuracy of each class; draw it by round for each group."""
    last: list[tuple[int, np.ndarray, np.ndarray | None]] = []
    rows: list[list[Cell]] = []
    by_round: list[CaptionedPicture] = []
    for i, group in enumerate(groups):
        rows.append([])
        mean = grouping.class_accuracy(group)
        if mean is None:
            continue
        found = [list(run.class_accuracy().values()) for run in group.counted]
        ends = np.array([accuracy[-1] for accuracy in found if accuracy])  # [runs, C]
        last.append((i, ends.mean(axis=0), ends.std(axis=0, ddof=1) if len(ends) > 1 else None))
        rows[-1] = [mean_cell(column, lambda x: f'{100 * x:.1f}') for column in ends.T]
        words = f'{group.label}: accuracy of each class by round, as a heat map'
        picture = pictures.draw_by_round(*mean, words)
        by_round.append(CaptionedPicture(_caption(group, grouping.seeds_by_round(group)), picture))
    if not last:
        return None, None, []
    size = max(map(len, rows))
    filled = [[*row, *[Cell(MISSING)] * (size - len(row))] for row in rows]
    words = 'Accuracy of each class when last evaluated; the numbers are in the table below'
    figure = CaptionedPicture('Accuracy of each class, last', pictures.draw_classes(last, words))
    return figure, GroupTable([str(c) for c in range(size)], filled), by_round


def confusions(groups: Sequence[RunGroup]) -> list[CaptionedPicture]:
    """Draw the last confusion matrix of each group, summed over its counted runs."""
    figures = []
    for group in groups:
        matrices = [matrix for run in group.counted if (matrix := run.confusion()) is not None]
        if len({matrix.shape for matrix in matrices}) != 1:
            continue
        words = f'{group.label}: confusion matrix, rows are shares of each class'
        picture = pictures.draw_confusion(np.sum(matrices, axis=0), words)
        figures.append(CaptionedPicture(_caption(group, grouping.seeds(group)), picture))
    return figures


def _caption(group: RunGroup, seeds: str) -> str:
    return ', '.join(filter(None, [group.label, seeds]))


def partitions(groups: Sequence[RunGroup]) -> list[CaptionedPicture]:
    """Draw each partition once, with the names of its runs as caption."""
    drawn: dict[Any, tuple[RecordedRun, list[str]]] = {}
    for group in groups:
        for run in group.runs:
            counts = run.label_counts
            key = run.partition_png if counts is None else (counts.shape, counts.tobytes())
            if key is not None:
                seed = f', seed {run.seed}' if len(group.runs) > 1 else ''
                drawn.setdefault(key, (run, []))[1].append(group.label + seed)
    num_runs = sum(len(group.runs) for group in groups)
    figures = []
    for run, labels in drawn.values():
        name = 'all runs' if len(labels) == num_runs else '; '.join(labels)
        if run.label_counts is None:
            figures.append(CaptionedPicture(name, None, run.partition_png))
            continue
        clients, size = run.label_counts.shape
        words = f'{name}: examples of each of {size} classes at each of {clients} clients'
        figures.append(CaptionedPicture(name, pictures.draw_partition(run.label_counts, words)))
    return figures
