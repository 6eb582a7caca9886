"""The results of runs as a LaTeX table, and their curves as a picture, for a paper."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from jaxfed.internal import latex
from jaxfed.recording.style import style, write
from jaxfed.report import grouping, pictures, tables
from jaxfed.report.crossing import cross
from jaxfed.report.grouping import RunGroup
from jaxfed.report.tables import Cell

_LEFT_OUT = {'in round', 'time', 'client-steps/s', 'seeds', 'state'}


def latex_table(groups: Sequence[RunGroup], target: float | None) -> str:
    r"""Format the results as LaTeX, for \input in a document with \usepackage{booktabs}.

    Args:
      groups: the groups of runs.
      target: the accuracy in 0..1 for 'rounds to target'; None for that of the runs, if equal.
    """
    target = tables.common(tables.targets(groups, target))
    table = tables.results(groups, target)
    places = [i for i, name in enumerate(table.columns) if name not in _LEFT_OUT]
    rows = [
        [latex.escape(group.label), *(_marked(row[i]) for i in places)]
        for group, row in zip(groups, table.rows, strict=True)
    ]
    text = _what_is_shown(groups)
    text += '' if target is None else f' Target: {100 * target:g} %.'
    bold = any(cell.best for row in table.rows for cell in row)
    if bold and len({grouping.sample_of(group, by_round=False) for group in groups}) > 1:
        text += (
            ' Bold: the best of its column among finished runs with the same data, partition, '
            'rounds and seeds.'
        )
    return _table(groups, text, [table.columns[i] for i in places], rows)


def latex_crossing(groups: Sequence[RunGroup], score: str) -> str:
    """Format an accuracy as LaTeX, with a column for each data set and partition.

    Args:
      groups: the groups of runs.
      score: one of `comparison.SCORES`.

    Raises:
      ValueError: if there is nothing to arrange.
    """
    crossed = cross(groups, score)
    if crossed is None:
        raise ValueError(
            '--latex_by_data needs a method with the same settings on two data sets, partitions, '
            'networks or numbers of rounds; write --latex instead.'
        )
    rows = [
        [latex.escape(label), *map(_marked, row)]
        for label, row in zip(crossed.labels, crossed.table.rows, strict=True)
    ]
    text = f'{_what_is_shown(groups)} Numbers: {crossed.title}.'
    if any(cell.best for row in crossed.table.rows for cell in row):
        text += ' Bold: the best of its column among finished runs of the same seeds.'
    return _table(groups, text, crossed.table.columns, rows)


def _what_is_shown(groups: Sequence[RunGroup]) -> str:
    """The data sets and the number of seeds, in a sentence."""
    names = dict.fromkeys(run.config['dataset'] for group in groups for run in group.runs)
    seeds = sorted({len(group.counted) for group in groups})
    spread = f'mean and standard deviation over {" or ".join(map(str, seeds))} seeds'
    return f'{", ".join(names)}: {spread if seeds[-1] > 1 else "one seed"}.'


def _table(
    groups: Sequence[RunGroup], text: str, heads: Sequence[str], rows: list[list[str]]
) -> str:
    """The table, whose caption also says what was measured and which runs are not finished."""
    held_out = _held_out(groups)
    if any(held_out):
        whose = '' if all(held_out) else ' of runs with validation above 0'
        text += f' Accuracies{whose} are on held-out training examples.'
    states = [(group.label, grouping.state(group)) for group in groups]
    text += ''.join(f' {label}: {state}.' for label, state in states if state != 'finished')
    return '\n'.join(
        [
            r'% Needs \usepackage{booktabs}.',
            r'\begin{table}',
            r'\centering',
            rf'\caption{{{latex.escape(text)}}}',
            *latex.tabular(heads, rows),
            r'\end{table}',
            '',
        ]
    )


def _marked(cell: Cell) -> str:
    """The text of a cell with the mean in bold if it is the best of its column."""
    mean, space, rest = latex.escape(cell.text).partition(' ')
    return (rf'\textbf{{{mean}}}' if cell.best else mean) + space + rest


def _held_out(groups: Sequence[RunGroup]) -> list[bool]:
    """Whether the runs of each group are evaluated on held-out training examples."""
    return [bool(group.runs[0].config.get('validation')) for group in groups]


def draw(groups: Sequence[RunGroup], path: Path) -> None:
    """Draw the accuracy by round, a curve for each group with a band of one deviation.

    Args:
      groups: the groups of runs.
      path: the file, of a suffix in `style.FORMATS`.

    Raises:
      ValueError: if no run was evaluated.
      OSError: if the file cannot be written.
    """
    with style():
        labels = [textwrap.fill(group.label, 80) for group in groups]
        columns = max(1, 75 // (6 + max(map(len, labels))))
        lines = sum(1 + label.count('\n') for label in labels) / columns
        figure = Figure(figsize=(6.5, 3.2 + 0.22 * lines), layout='constrained')
        held_out = _held_out(groups)
        kind = 'validation ' if all(held_out) else '' if any(held_out) else 'test '
        axes = figure.add_subplot(xlabel='round', ylabel=f'{kind}accuracy')
        for i, (label, group) in enumerate(zip(labels, groups, strict=True)):
            if curve := grouping.mean_curve(group, lambda run: run.values('test_accuracy')):
                pictures.plot_curve(axes, i, curve, bounded=True, label=label)
        if not axes.lines:
            raise ValueError(f'{path} cannot be drawn: no run was evaluated.')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        legend = figure.legend(loc='outside lower left', ncols=columns)
        for text in legend.get_texts():
            text.set_parse_math(False)  # names of folders may contain dollar signs
        write(figure, path)
