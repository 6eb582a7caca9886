"""A figure's files: picture, numbers, and what was run."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.draw.figure import FigureCells, cells_of
from experiments.draw.panels import draw
from experiments.draw.shapes import Lines, Matrix, Shape
from experiments.grid.command import write
from experiments.grid.runner import Cell, RecordedCell, equal
from jaxfed.recording.style import save, style

_HEADER = ('panel', 'series', 'x', 'value', 'sd', 'n')


def write_figure(
    name: str,
    plan: FigureCells,
    shapes: Sequence[Shape],
    done: dict[Path, RecordedCell],
    output: Path,
) -> list[Path]:
    """Write the picture as PNG and SVG, its numbers as CSV and what was run as Markdown.

    Args:
      name: 'PAPER/NUMBER'.
      plan: what was asked for.
      shapes: what is drawn in each panel.
      done: work directory -> run.
      output: folder, made where it is not there.

    Returns:
      The four files.
    """
    base = output / name.replace('/', '_')
    told = tell(plan, done)
    base.parent.mkdir(parents=True, exist_ok=True)
    with style():
        files = save(draw(shapes, across=plan.figure.across, note='; '.join(told)), base)
    for suffix, text in (('.csv', numbers(shapes)), ('.md', describe(name, plan, done))):
        files.append(Path(f'{base}{suffix}'))
        write(files[-1], text)
    return files


def numbers(shapes: Sequence[Shape]) -> str:
    """What is drawn as CSV, a point or a cell of a matrix a line.

    Args:
      shapes: one a panel.

    Returns:
      The text; `series` is the curve or the row of a matrix, `x` the position or the column.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow(_HEADER)
    for shape in shapes:
        if isinstance(shape, Lines):
            for curve in shape.curves:
                for x, *point in zip(curve.x, curve.y, curve.sd, curve.n, strict=True):
                    where = shape.ticks[int(x)] if shape.ticks else f'{x:g}'
                    writer.writerow((shape.title, curve.label, where, *map(_number, point)))
        elif isinstance(shape, Matrix):
            for (i, j), value in np.ndenumerate(shape.values):
                point = [value, shape.sd[i, j], shape.n[i, j]]
                writer.writerow(
                    (shape.title, shape.rows[i], shape.columns[j], *map(_number, point))
                )
    return text.getvalue()


def _number(value: float) -> str:
    return '' if np.isnan(value) else f'{value:.10g}'


def tell(plan: FigureCells, done: dict[Path, RecordedCell]) -> list[str]:
    """What was run, in short: rounds, seeds, other settings than the paper's, what is missing.

    Args:
      plan: what was asked for.
      done: work directory -> run.

    Returns:
      A few words each.
    """
    cells = cells_of(plan.panels)
    told = [_rounds(cells, plan.paper_rounds), _seeds(cells)] if cells else ['no training']
    if plan.changed:
        told.append(f"settings that are not the paper's: {plan.changed}")
    if repeated := sum(len(alike) - 1 for alike in equal(cells)):
        told.append(f'{repeated} of {len(cells)} runs have the settings of another one')
    if left := [cell for cell in cells if cell.folder not in done]:
        told.append(f'{len(left)} of {len(cells)} runs are not done and not drawn')
    if ended := [cell.name for cell in cells if _failed(cell, done)]:
        told.append(f'diverged: {", ".join(ended)}')
    return told


def _rounds(cells: Sequence[Cell], paper: dict[str, int]) -> str:
    pairs = sorted({(cell.config.rounds, paper[cell.column]) for cell in cells})
    if all(run == papers for run, papers in pairs):
        return f'all {" or ".join(str(run) for run, _ in pairs)} rounds'
    return ', '.join(
        f"{run} of the paper's {papers} rounds" if run <= papers else f'{run} rounds, not {papers}'
        for run, papers in pairs
    )


def _seeds(cells: Sequence[Cell]) -> str:
    n = len({cell.seed for cell in cells})
    return 'one seed' if n == 1 else f'mean of {n} seeds, bands and bars ± 1 standard deviation'


def _failed(cell: Cell, done: dict[Path, RecordedCell]) -> bool:
    return cell.folder in done and bool(done[cell.folder].summary['failed'])


def describe(name: str, plan: FigureCells, done: dict[Path, RecordedCell]) -> str:
    """The caption: title, what was run and on what, series by series.

    Args:
      name: 'PAPER/NUMBER'.
      plan: what was asked for.
      done: work directory -> run.

    Returns:
      Markdown.
    """
    file, title = name.replace('/', '_'), plan.figure.title
    told = '; '.join(tell(plan, done))
    lines = [
        f'# {name}',
        '',
        f'![{name}: {title}]({file}.png)',
        '',
        f'{title[0].upper()}{title[1:]}. {told[0].upper()}{told[1:]}.',
        '',
        f'The same as [vectors]({file}.svg), and [the numbers]({file}.csv).',
        '',
        *(f'- {note}' for note in plan.figure.notes),
        *([''] if plan.figure.notes else []),
    ]
    lines += ['| panel | series | flags | seeds done |', '|---|---|---|---|']
    for panel, cells in plan.panels:
        for series, of_seeds in zip(panel.series, cells, strict=True):
            given = [f'--flagfile=experiments/{series.column}.flags', *series.row.flags]
            given += series.variant
            seeds = [str(cell.seed) for cell in of_seeds if cell.folder in done]
            cell_texts = (
                panel.title.replace('\n', ' '),
                ' '.join(dict.fromkeys([series.name, *series.at])),
                f'`{" ".join(given)}`',
                (', '.join(seeds) or 'none') if panel.trains else 'not needed',
            )
            lines.append(
                f'| {" | ".join(text.replace("|", chr(92) + "|") for text in cell_texts)} |'
            )
    used = [done[cell.folder].config for cell in cells_of(plan.panels) if cell.folder in done]
    lines += ['', *_unique('Versions', [_pairs(config['versions']) for config in used])]
    lines += _unique('Device', [_pairs(config['device']) for config in used])
    return '\n'.join(lines).rstrip() + '\n'


def _pairs(values: dict[str, Any]) -> str:
    return ', '.join(f'{name} {value}' for name, value in values.items())


def _unique(what: str, texts: Sequence[str]) -> list[str]:
    return [f'{what}: {text}.' for text in dict.fromkeys(texts)]
