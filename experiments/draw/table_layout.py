"""A filled table as Markdown, LaTeX, CSV and on the terminal."""

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.grid.published import Column, PaperTable, Value
from experiments.grid.runner import GridRow, RecordedCell
from experiments.grid.scores import RowCost, Score, cost_of, places, within
from jaxfed.internal.csv_text import csv_text

NOTHING = '-'
PAPER, DIFFERENCE = 'paper', 'difference'
COSTS = ('runs', 'time', 'steps', 'up', 'down', 'forward', 'needs', 'aside')
COST_NOTE = (
    'Cost: wall time and local steps of all runs of the row; what a client sends up and down in a '
    "round, relative to FedAvg's; forward passes in a local step in addition to the local model's; "
    'examples a class that the method uses on the server, and examples that were set aside.'
)


class Filled(NamedTuple):
    """A table with its finished runs."""

    table: PaperTable
    columns: tuple[Column, ...]  # the shown ones
    rows: tuple[GridRow, ...]
    paper: Mapping[tuple[str, str], Value]  # (row, column) -> published
    scores: Mapping[tuple[str, str], Score]
    runs: Mapping[tuple[str, str], Mapping[int, RecordedCell]]  # seed -> finished run
    title: str  # one line
    command: str  # that makes the table
    header: tuple[str, ...]  # how to read it, and its runs
    notes: tuple[str, ...]
    alike: frozenset[str]  # columns whose runs have the paper's rounds and other settings


class Block(NamedTuple):
    """A part of a table as words: three lines per method."""

    title: str
    heads: tuple[str, ...]  # of the columns
    # Label, cells, places. A tab separates the mean in a cell from the rest.
    lines: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]


class Markup(NamedTuple):
    """A text format."""

    escape: Callable[[str], str]
    inner: str  # template of the labels 'paper' and 'difference'
    marks: tuple[str, str, str]  # template of a mean by its place


def spoken(score: Score, kind: str) -> tuple[str, str]:
    """A score in words.

    Args:
      score: of a cell.
      kind: '', 'rounds' or 'speed-up'.

    Returns:
      Mean ± sd, and the rest with a leading blank, '' if there is none.
    """
    if not score.done:
        return NOTHING, ''
    words = []
    if score.speeds:
        words.append(_spoken_speed(score, kind))
        if score.lacking:
            words.append(f'{len(score.speeds)} of {len(score.accuracies)} compared')
    elif score.lacking:
        words.append(score.lacking)
    if score.failed and score.accuracies:
        words.append(f'{score.failed} of {score.done} failed')
    if score.done < score.asked:
        words.append(f'n = {score.done} of {score.asked}')
    text = 'failed' if score.mean is None else f'{score.mean:.2f}'
    if score.sd is not None:
        text += f' ± {score.sd:.2f}'
    return text, f' ({", ".join(words)})' if words else ''


def _spoken_speed(score: Score, kind: str) -> str:
    if score.speed is None:
        return 'not reached'
    reached = sum(speed is not None for speed in score.speeds)
    text = f'{score.speed:.2f}×' if kind == 'speed-up' else f'{score.speed:.4g}'
    return text + ('' if reached == len(score.speeds) else f' in {reached}')


def spoken_value(value: Value, kind: str) -> str:
    """A published number in words; arguments as for `spoken`."""
    text = f'{value.accuracy:.2f}' + ('' if value.sd is None else f' ± {value.sd:.2f}')
    if value.failed:
        return f'{text} (failed)'
    if not kind:
        return text
    if value.speed is None:
        return f'{text} (not reached)'
    return f'{text} ({value.speed:.2f}×)' if kind == 'speed-up' else f'{text} ({value.speed:g})'


def spoken_difference(score: Score, value: Value, *, alike: bool = True) -> str:
    """Our mean minus the paper's, and whether they agree.

    Args:
      score: ours.
      value: the paper's.
      alike: whether rounds and other settings are the paper's.

    Returns:
      The words.
    """
    if score.mean is None or value.failed:
        return NOTHING
    agrees = within(score, value.accuracy, value.sd, alike=alike)
    words = {True: ' within', False: ' outside', None: ''}[agrees]
    # Of the printed numbers, so that they subtract to it; -0 becomes 0.
    difference = round(round(score.mean, 2) - value.accuracy, 2) + 0.0
    return f'{difference:+.2f}{words}'


def blocks(filled: Filled) -> list[Block]:
    """The parts of a table as words, a block for each group of columns."""
    groups: dict[str, list[Column]] = {}
    for column in filled.columns:
        groups.setdefault(column.group, []).append(column)
    return [_block(filled, group, columns) for group, columns in groups.items()]


def _block(filled: Filled, group: str, columns: list[Column]) -> Block:
    rows, kind = filled.rows, filled.table.speed
    place = [places([filled.scores[row.name, c.name] for row in rows]) for c in columns]
    lines: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = []
    for index, row in enumerate(rows):
        cells = [
            (filled.scores[row.name, c.name], filled.paper[row.name, c.name], c.name)
            for c in columns
        ]
        unplaced = (0,) * len(columns)
        lines += [
            (
                row.name,
                tuple('\t'.join(spoken(score, kind)) for score, _, _ in cells),
                tuple(of_column[index] for of_column in place),
            ),
            (PAPER, tuple(spoken_value(value, kind) for _, value, _ in cells), unplaced),
            (
                DIFFERENCE,
                tuple(
                    spoken_difference(score, value, alike=name in filled.alike)
                    for score, value, name in cells
                ),
                unplaced,
            ),
        ]
    return Block(group, tuple(column.title for column in columns), tuple(lines))


def _rows(block: Block, markup: Markup) -> list[list[str]]:
    """The lines of a block in a text format, label first."""
    rows = []
    for label, cells, place in block.lines:
        row = [(markup.inner if _is_inner(label) else '{}').format(markup.escape(label))]
        for cell, mark in zip(cells, place, strict=True):
            mean, _, rest = markup.escape(cell).partition('\t')
            row.append(markup.marks[mark].format(mean) + rest)
        rows.append(row)
    return rows


def _is_inner(label: str) -> bool:
    return label in (PAPER, DIFFERENCE)


def costs(filled: Filled) -> list[tuple[str, tuple[str, ...]]]:
    """The cost of each row in words: (row, cells as in `COSTS`)."""
    rows = []
    for row in filled.rows:
        runs = [run for column in filled.columns for run in _runs(filled, row, column)]
        cost = cost_of(runs)
        rows.append((row.name, _spoken_cost(cost) if cost else (NOTHING,) * len(COSTS)))
    return rows


def _runs(filled: Filled, row: GridRow, column: Column) -> list[RecordedCell]:
    return list(filled.runs[row.name, column.name].values())


def _spoken_cost(cost: RowCost) -> tuple[str, ...]:
    return (
        str(cost.runs),
        str(datetime.timedelta(seconds=round(3600 * cost.hours))),
        f'{cost.client_steps:.3g}' if cost.client_steps >= 1e6 else f'{cost.client_steps:.0f}',
        f'{cost.upload:.2f}×',
        f'{cost.download:.2f}×',
        f'+{cost.forward_passes}',
        str(cost.auxiliary),
        str(cost.set_aside),
    )


def escape_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r'[\\|*<>_]', r'\\\g<0>', text)


MARKDOWN = Markup(escape_markdown, '*{}*', ('{}', '**{}**', '<u>{}</u>'))


def markdown(filled: Filled) -> str:
    """Format a table as Markdown."""
    parts = [f'# {escape_markdown(filled.title)}', *map(escape_markdown, filled.header)]
    parts.append(f'    {filled.command}')
    for block in blocks(filled):
        parts += [f'## {block.title}'] if block.title else []
        parts.append(markdown_table(map(escape_markdown, block.heads), _rows(block, MARKDOWN)))
    spent = [[escape_markdown(name), *cells] for name, cells in costs(filled)]
    parts += ['## Cost', markdown_table(COSTS, spent), '## Notes']
    parts.append('\n'.join(f'- {escape_markdown(note)}' for note in (*filled.notes, COST_NOTE)))
    return '\n\n'.join(parts) + '\n'


def markdown_table(heads: Iterable[str], rows: list[list[str]]) -> str:
    """Format rows, which begin with a name, as a table in Markdown."""
    lines = [['', *heads], ['---', *['---:'] * (len(rows[0]) - 1)], *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def escape_latex(text: str) -> str:
    """Escape text for LaTeX; a leading minus becomes a minus in math mode."""
    special = {
        **{mark: f'\\{mark}' for mark in '&%$#_{}'},
        '\\': r'\textbackslash{}',
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
        '<': r'$<$',
        '>': r'$>$',
        '"': "''",
        '±': r'$\pm$',
        '×': r'$\times$',
        'α': r'$\alpha$',
        'δ': r'$\delta$',
        '|': r'$|$',
    }
    escaped = ''.join(special.get(mark, mark) for mark in text)
    # Hyphens side by side would become a dash.
    return re.sub(r'^-(?=\d)', '$-$', re.sub('-(?=-)', '-{}', escaped))


LATEX = Markup(escape_latex, r'\quad {}', ('{}', r'\textbf{{{}}}', r'\underline{{{}}}'))


def latex(filled: Filled) -> str:
    r"""Format a table as LaTeX, for \input in a document with \usepackage{booktabs}."""
    lines = [f'% {line}' for line in (filled.title, *filled.header, filled.command)]
    lines += [r'% Needs \usepackage{booktabs}.', r'\begin{table}', r'\centering\footnotesize']
    lines.append(r'\setlength{\tabcolsep}{3pt}')
    lines.append(rf'\caption{{{escape_latex(f"{filled.title}. {filled.header[0]}")}}}')
    lines.append(rf'\label{{tab:{filled.table.name.replace("/", "-")}}}')
    for block in blocks(filled):
        if block.title:
            lines.append(rf'\par\medskip {escape_latex(block.title)}\par\smallskip')
        lines += _tabular(block.heads, _rows(block, LATEX), group=3)
    lines.append(r'\par\medskip Cost\par\smallskip')
    spent = [list(map(escape_latex, (name, *cells))) for name, cells in costs(filled)]
    lines += [*_tabular(COSTS, spent), r'\end{table}']
    return '\n'.join(lines) + '\n'


def _tabular(heads: Sequence[str], rows: list[list[str]], *, group: int = 0) -> list[str]:
    """A LaTeX table, with space after each group of rows."""
    lines = [rf'\begin{{tabular}}{{l{"r" * len(heads)}}}', r'\toprule']
    lines += [' & '.join(['', *map(escape_latex, heads)]) + r' \\', r'\midrule']
    for index, row in enumerate(rows):
        if group and index and index % group == 0:
            lines.append(r'\addlinespace')
        lines.append(' & '.join(row) + r' \\')
    return [*lines, r'\bottomrule', r'\end{tabular}']


CSV = (
    'table', 'method', 'column', 'score', 'rounds', 'paper_rounds', 'seeds', 'n', 'failed', 'mean',
    'sd', 'place', 'paper', 'paper_sd', 'paper_failed', 'difference', 'within', 'rule',
    'speed_kind', 'speed', 'compared', 'reached', 'paper_speed', 'hours', 'client_steps', 'upload',
    'download', 'forward_passes', 'needs_per_class', 'set_aside',
)  # fmt: skip


def as_csv(filled: Filled, rounds: Mapping[str, tuple[int, int]]) -> str:
    """Format a table as CSV, a line for each cell, numbers unrounded.

    Args:
      filled: the table.
      rounds: column -> rounds of the runs and of the paper.

    Returns:
      The text of the file.
    """
    lines: list[Iterable[Any]] = [CSV]
    table = filled.table
    for column in filled.columns:
        place = places([filled.scores[row.name, column.name] for row in filled.rows])
        for row, row_place in zip(filled.rows, place, strict=True):
            key = row.name, column.name
            score, value = filled.scores[key], filled.paper[key]
            cost = cost_of(_runs(filled, row, column))
            alike = column.name in filled.alike and not value.failed
            line = {
                'table': table.name,
                'method': row.name,
                'column': column.name,
                'score': table.score,
                'rounds': rounds[column.name][0],
                'paper_rounds': rounds[column.name][1],
                'seeds': score.asked,
                'n': score.done,
                'failed': score.failed,
                'mean': _plain(score.mean),
                'sd': _plain(score.sd),
                'place': row_place or '',
                'paper': value.accuracy,
                'paper_sd': _plain(value.sd),
                'paper_failed': value.failed,
                'difference': _plain(
                    None if score.mean is None or value.failed else score.mean - value.accuracy
                ),
                'within': within(score, value.accuracy, value.sd, alike=alike),
                'rule': 'sd of the paper' if value.sd is not None else '2 sd of the seeds',
                'speed_kind': table.speed,
                'speed': _plain(score.speed),
                'compared': len(score.speeds) if table.speed and score.done else '',
                'reached': sum(s is not None for s in score.speeds) if score.speeds else '',
                'paper_speed': _plain(value.speed),
            }
            if cost is not None:
                line |= {
                    'hours': f'{cost.hours:.6f}',
                    'client_steps': f'{cost.client_steps:.0f}',
                    'upload': f'{cost.upload:.4f}',
                    'download': f'{cost.download:.4f}',
                    'forward_passes': cost.forward_passes,
                    'needs_per_class': cost.auxiliary,
                    'set_aside': cost.set_aside,
                }
            lines.append([line.get(name, '') for name in CSV])
    return csv_text(lines)


def _plain(value: float | None) -> str:
    return '' if value is None else f'{value:.4f}'.rstrip('0').rstrip('.')


def show(filled: Filled, console: Console) -> None:
    """Print a table, best bold, second underlined, in parts no wider than the console."""
    console.print(Text(filled.title, 'bold'))
    for line in (*filled.header, filled.command):
        console.print(Text(line))
    for block in blocks(filled):
        label = max(len(name) + 2 for name, _, _ in block.lines)
        widths = [
            max(max(map(len, head.split())), *(len(cells[i]) for _, cells, _ in block.lines))
            for i, head in enumerate(block.heads)
        ]
        for columns in packed(widths, console.width - label - 2, gap=2):
            part = _table(block.title or None)
            for i in columns:
                part.add_column(block.heads[i], justify='right', min_width=widths[i])
            for name, cells, place in block.lines:
                shown = [_styled(cells[i], place[i]) for i in columns]
                part.add_row(f'  {name}' if _is_inner(name) else name, *shown)
                if name == DIFFERENCE:
                    part.add_section()
            console.print(part)
    spent = _table('Cost')
    for name in COSTS:
        spent.add_column(name, justify='right')
    for name, cells in costs(filled):
        spent.add_row(name, *cells)
    console.print(spent)


def _table(title: str | None) -> Table:
    """An empty table with a column for labels."""
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column('method', no_wrap=True)
    return table


def _styled(cell: str, place: int) -> Text:
    mean, _, rest = cell.partition('\t')
    return Text.assemble((mean, ('', 'bold', 'underline')[place]), rest)


def packed(widths: list[int], room: int, *, gap: int) -> list[list[int]]:
    """Distribute columns over parts that fit.

    Args:
      widths: of the columns.
      room: width of a part.
      gap: between columns.

    Returns:
      Indices of the columns of each part, in order; at least one a part.
    """
    parts: list[list[int]] = []
    left = 0
    for index, width in enumerate(widths):
        if not parts or width + gap > left:
            parts.append([])
            left = room
        parts[-1].append(index)
        left -= width + gap
    return parts
