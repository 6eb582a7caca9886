"""A figure's files: the picture, its numbers, and its runs."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.draw.figure import FigureCells, cells_of
from experiments.draw.panels import draw
from experiments.draw.shapes import Lines, Matrix, Shape
from experiments.grid.command import write_all
from experiments.grid.published import rounds_in_words
from experiments.grid.runner import Cell, RecordedCell, equal
from jaxfed.internal import console
from jaxfed.internal.csv_text import csv_text
from jaxfed.recording.style import save, style

_HEADER = ('panel', 'series', 'x', 'value', 'sd', 'n')


def write_figure(
    name: str,
    plan: FigureCells,
    shapes: Sequence[Shape],
    done: dict[Path, RecordedCell],
    output: Path,
) -> None:
    """Write the picture as PNG and SVG, its numbers as CSV and its runs as Markdown.

    Args:
      name: 'PAPER/NUMBER'.
      plan: the figure and its cells.
      shapes: the numbers of each panel.
      done: work directory -> run.
      output: folder, created if it is missing.
    """
    base = output / name.replace('/', '_')
    output.mkdir(parents=True, exist_ok=True)
    with style():
        note = '; '.join(summarise(plan, done))
        for path in save(draw(shapes, across=plan.figure.across, note=note), base):
            console.say(f'written: {path}')
    write_all(
        {Path(f'{base}.csv'): numbers(shapes), Path(f'{base}.md'): describe(name, plan, done)}
    )


def numbers(shapes: Sequence[Shape]) -> str:
    """Format the drawn numbers as CSV, a line for each point or cell of a matrix.

    Args:
      shapes: one a panel.

    Returns:
      The text; `series` is the curve or the row of a matrix, `x` the position or the column.
    """
    lines: list[tuple[str, ...]] = [_HEADER]
    for shape in shapes:
        if isinstance(shape, Lines):
            for curve in shape.curves:
                for x, *point in zip(curve.x, curve.y, curve.sd, curve.n, strict=True):
                    position = shape.ticks[int(x)] if shape.ticks else f'{x:g}'
                    lines.append((shape.title, curve.label, position, *map(_number, point)))
        elif isinstance(shape, Matrix):
            for (i, j), value in np.ndenumerate(shape.values):
                numbers_ = map(_number, (value, shape.sd[i, j], shape.n[i, j]))
                lines.append((shape.title, shape.rows[i], shape.columns[j], *numbers_))
    return csv_text(lines)


def _number(value: float) -> str:
    return '' if np.isnan(value) else f'{value:.10g}'


def summarise(plan: FigureCells, done: dict[Path, RecordedCell]) -> list[str]:
    """A phrase each for rounds, seeds, other settings than the flag file's, and unusual runs.

    Args:
      plan: the figure and its cells.
      done: work directory -> run.

    Returns:
      The phrases.
    """
    cells = cells_of(plan.panels)
    phrases = [_rounds(cells, plan.paper_rounds), _seeds(cells)] if cells else ['no training']
    if plan.changed:
        phrases.append(f"settings other than the flag file's: {plan.changed}")
    if repeated := sum(len(group) - 1 for group in equal(cells)):
        phrases.append(f'{repeated} of {len(cells)} runs have the settings of another one')
    if left := [cell for cell in cells if cell.folder not in done]:
        phrases.append(f'{len(left)} of {len(cells)} runs are not done and not drawn')
    finished = [cell for cell in cells if cell.folder in done]
    if diverged := [cell.name for cell in finished if done[cell.folder].summary['failed']]:
        phrases.append(f'diverged: {", ".join(diverged)}')
    return phrases


def _rounds(cells: Sequence[Cell], paper: dict[str, int]) -> str:
    pairs = sorted({(cell.config.rounds, paper[cell.column]) for cell in cells})
    if all(run == papers for run, papers in pairs):
        return f'all {" or ".join(str(run) for run, _ in pairs)} rounds'
    return ', '.join(itertools.starmap(rounds_in_words, pairs))


def _seeds(cells: Sequence[Cell]) -> str:
    n = len({cell.seed for cell in cells})
    return 'one seed' if n == 1 else f'mean of {n} seeds, bands and bars ± 1 standard deviation'


def describe(name: str, plan: FigureCells, done: dict[Path, RecordedCell]) -> str:
    """The caption: title, runs, the flags of every series, versions and device.

    Args:
      name: 'PAPER/NUMBER'.
      plan: the figure and its cells.
      done: work directory -> run.

    Returns:
      Markdown.
    """
    file, title = name.replace('/', '_'), plan.figure.title
    summary = '; '.join(summarise(plan, done))
    lines = [
        f'# {name}',
        '',
        f'![{name}: {title}]({file}.png)',
        '',
        f'{title[0].upper()}{title[1:]}. {summary[0].upper()}{summary[1:]}.',
        '',
        f'The same as [vectors]({file}.svg), and [the numbers]({file}.csv).',
        '',
        *(f'- {note}' for note in plan.figure.notes),
        *([''] if plan.figure.notes else []),
    ]
    lines += ['| panel | series | flags | seeds done |', '|---|---|---|---|']
    for panel, cells in plan.panels:
        for series, of_seeds in zip(panel.series, cells, strict=True):
            file_flag = f'--flagfile=experiments/{series.column}.flags'
            seeds = ', '.join(str(cell.seed) for cell in of_seeds if cell.folder in done)
            texts = (
                panel.title.replace('\n', ' '),
                ' '.join(dict.fromkeys([series.name, *series.at])),
                f'`{" ".join([file_flag, *series.row.flags, *series.variant])}`',
                (seeds or 'none') if panel.trains else 'not needed',
            )
            lines.append(f'| {" | ".join(text.replace("|", chr(92) + "|") for text in texts)} |')
    configs = [done[cell.folder].config for cell in cells_of(plan.panels) if cell.folder in done]
    lines += ['', *_unique('versions', configs), *_unique('device', configs)]
    return '\n'.join(lines).rstrip() + '\n'


def _unique(key: str, configs: Sequence[dict[str, Any]]) -> list[str]:
    """The different values of a dictionary in the settings, a line for each."""
    pairs = [', '.join(f'{name} {v}' for name, v in config[key].items()) for config in configs]
    return [f'{key.capitalize()}: {text}.' for text in dict.fromkeys(pairs)]
