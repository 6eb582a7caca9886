"""A filled table as Markdown, LaTeX, CSV and on the terminal."""

import csv
import datetime
import io
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as Shown
from rich.text import Text

from experiments.grid.published import Column, PaperTable, Value
from experiments.grid.runner import GridRow, RecordedCell
from experiments.grid.scores import RowCost, Score, cost_of, places, within

NOTHING = '-'
PAPER, DIFFERENCE = 'paper', 'difference'
COSTS = ('runs', 'time', 'steps', 'up', 'down', 'forward', 'needs', 'aside')
COST_NOTE = (
    'Cost: wall time and local steps of all runs of the row; what a client sends up and down in a '
    "round, relative to FedAvg's; forward passes in a local step besides the local model's own; "
    'examples a class that the method uses on the server, and examples that were set aside.'
)


class Filled(NamedTuple):
    """A table with what was run for it."""

    table: PaperTable
    columns: tuple[Column, ...]  # those that are shown
    rows: tuple[GridRow, ...]
    paper: Mapping[tuple[str, str], Value]  # (row, column) -> published
    scores: Mapping[tuple[str, str], Score]
    runs: Mapping[tuple[str, str], Mapping[int, RecordedCell]]  # seed -> finished run
    title: str  # one line
    command: str  # that runs it
    told: tuple[str, ...]  # what was run, and how to read it
    notes: tuple[str, ...]
    alike: frozenset[str]  # columns whose runs have the paper's rounds and other settings


class Block(NamedTuple):
    """A part of a table as words: three lines a method."""

    title: str
    heads: tuple[str, ...]  # of the columns
    lines: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]  # label, cells, places


def spoken(score: Score, kind: str) -> tuple[str, str]:
    """A score in words.

    Args:
      score: of a cell.
      kind: '', 'rounds' or 'speed-up'.

    Returns:
      Mean +- sd, and what follows it, with a blank before it if there is anything.
    """
    if not score.done:
        return NOTHING, ''
    after = []
    if score.speeds:
        after.append(_spoken_speed(score, kind))
        if score.lacking:
            after.append(f'{len(score.speeds)} of {len(score.accuracies)} compared')
    elif score.lacking:
        after.append(score.lacking)
    if score.failed:
        after.append(f'{score.failed} of {score.done} failed')
    if score.done < score.asked:
        after.append(f'n = {score.done} of {score.asked}')
    mean, sd = score.mean, score.sd
    if mean is None:
        after = [words for words in after if not words.endswith('failed')]
    text = 'failed' if mean is None else f'{mean:.2f}' + ('' if sd is None else f' ± {sd:.2f}')
    return text, f' ({", ".join(after)})' if after else ''


def _spoken_speed(score: Score, kind: str) -> str:
    reached = [speed for speed in score.speeds if speed is not None]
    if score.speed is None:
        return 'not reached'
    unit = f'{score.speed:.2f}×' if kind == 'speed-up' else f'{score.speed:.4g}'
    return unit + ('' if len(reached) == len(score.speeds) else f' in {len(reached)}')


def spoken_value(value: Value, kind: str) -> str:
    """A published number in words.

    Args:
      value: of the paper.
      kind: '', 'rounds' or 'speed-up'.

    Returns:
      The words.
    """
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
    if score.mean is None:
        return NOTHING
    agrees = within(score, value.accuracy, value.sd, alike=alike)
    words = {True: ' within', False: ' outside', None: ''}[agrees]
    return f'{score.mean - value.accuracy:+.2f}{words}'


def blocks(filled: Filled) -> list[Block]:
    """The parts of a table as words.

    Args:
      filled: the table.

    Returns:
      A block a group of columns.
    """
    made = []
    for group in dict.fromkeys(column.group for column in filled.columns):
        columns = [column for column in filled.columns if column.group == group]
        made.append(_block(filled, group, columns))
    return made


def _block(filled: Filled, group: str, columns: list[Column]) -> Block:
    rows, kind = filled.rows, filled.table.speed
    place = {
        column.name: places([filled.scores[row.name, column.name] for row in rows])
        for column in columns
    }
    lines = []
    for index, row in enumerate(rows):
        keys = [(row.name, column.name) for column in columns]
        scores, values = [filled.scores[key] for key in keys], [filled.paper[key] for key in keys]
        none = (0,) * len(columns)
        own = tuple('\t'.join(spoken(score, kind)) for score in scores)
        lines.append((row.name, own, tuple(place[column.name][index] for column in columns)))
        lines.append((PAPER, tuple(spoken_value(value, kind) for value in values), none))
        differences = tuple(
            spoken_difference(score, value, alike=column.name in filled.alike)
            for column, score, value in zip(columns, scores, values, strict=True)
        )
        lines.append((DIFFERENCE, differences, none))
    return Block(group, tuple(column.title for column in columns), tuple(lines))


def _marked(cell: str, place: int, marks: Mapping[int, Callable[[str], str]]) -> str:
    """Puts the mark of a place round the mean; what follows it stays as it is."""
    mean, _, after = cell.partition('\t')
    return (marks[place](mean) if place else mean) + after


def costs(filled: Filled) -> list[tuple[str, tuple[str, ...]]]:
    """What each row cost, in words.

    Args:
      filled: the table.

    Returns:
      (row, cells as in `COSTS`).
    """
    made = []
    for row in filled.rows:
        runs = [run for column in filled.columns for run in _runs(filled, row, column)]
        cost = cost_of(runs)
        made.append((row.name, (NOTHING,) * len(COSTS) if cost is None else _spoken_cost(cost)))
    return made


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


def markdown(filled: Filled) -> str:
    """A table as Markdown.

    Args:
      filled: the table.

    Returns:
      The text of the file.
    """
    marks = {1: lambda text: f'**{text}**', 2: lambda text: f'<u>{text}</u>'}
    parts = [f'# {_escape_markdown(filled.title)}', *map(_escape_markdown, filled.told)]
    parts.append(f'    {filled.command}')
    for block in blocks(filled):
        rows = [
            (
                _escape_markdown(label) if label not in (PAPER, DIFFERENCE) else f'*{label}*',
                *(
                    _marked(_escape_markdown(cell), place, marks)
                    for cell, place in zip(cells, place_of, strict=True)
                ),
            )
            for label, cells, place_of in block.lines
        ]
        heads = tuple(_escape_markdown(head) for head in block.heads)
        parts += [f'## {block.title}'] if block.title else []
        parts.append(_markdown_table(('', *heads), rows))
    parts.append('## Cost')
    spent = [(_escape_markdown(name), *cells) for name, cells in costs(filled)]
    parts.append(_markdown_table(('', *COSTS), spent))
    parts.append('## Notes')
    parts.append('\n'.join(f'- {_escape_markdown(note)}' for note in (*filled.notes, COST_NOTE)))
    return '\n\n'.join(parts) + '\n'


def _escape_markdown(text: str) -> str:
    for mark in '\\|*<>_':
        text = text.replace(mark, f'\\{mark}')
    return text


def _markdown_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = ('---', *('---:' for _ in heads[1:]))
    return '\n'.join(f'| {" | ".join(line)} |' for line in (heads, rule, *rows))


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is.

    Args:
      text: any.

    Returns:
      The text with every special character escaped.
    """
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
    # Hyphens side by side would become a dash.
    return re.sub('-(?=-)', '-{}', ''.join(special.get(mark, mark) for mark in text))


def latex(filled: Filled) -> str:
    r"""A table as LaTeX, for \input in a document with \usepackage{booktabs}.

    Args:
      filled: the table.

    Returns:
      The text of the file.
    """
    marks = {1: lambda text: rf'\textbf{{{text}}}', 2: lambda text: rf'\underline{{{text}}}'}
    lines = [f'% {line}' for line in (filled.title, *filled.told, filled.command)]
    lines += [r'% Needs \usepackage{booktabs}.', r'\begin{table}', r'\centering\footnotesize']
    lines.append(r'\setlength{\tabcolsep}{3pt}')
    lines.append(rf'\caption{{{escape_latex(f"{filled.title}. {filled.told[0]}")}}}')
    lines.append(rf'\label{{tab:{filled.table.name.replace("/", "-")}}}')
    for block in blocks(filled):
        if block.title:
            lines.append(rf'\par\medskip {escape_latex(block.title)}\par\smallskip')
        rows = []
        for label, cells, place_of in block.lines:
            first = r'\quad ' if label in (PAPER, DIFFERENCE) else ''
            rows.append(
                [
                    first + escape_latex(label),
                    *(
                        _marked(_signed(escape_latex(cell)), place, marks)
                        for cell, place in zip(cells, place_of, strict=True)
                    ),
                ]
            )
        lines += _tabular(list(map(escape_latex, block.heads)), rows, apart=3)
    lines.append(r'\par\medskip Cost\par\smallskip')
    spent = [list(map(escape_latex, (name, *cells))) for name, cells in costs(filled)]
    lines += [*_tabular(list(map(escape_latex, COSTS)), spent), r'\end{table}']
    return '\n'.join(lines) + '\n'


def _signed(cell: str) -> str:
    number = cell.partition('\t')[0]
    return f'$-${cell[1:]}' if number.startswith('-') and number != NOTHING else cell


def _tabular(heads: list[str], rows: list[list[str]], *, apart: int = 0) -> list[str]:
    lines = [rf'\begin{{tabular}}{{l{"r" * len(heads)}}}', r'\toprule']
    lines += [' & '.join(['', *heads]) + r' \\', r'\midrule']
    for index, row in enumerate(rows):
        if apart and index and index % apart == 0:
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
    """A table as CSV, a line a cell, numbers as they are.

    Args:
      filled: the table.
      rounds: column -> rounds of the runs and of the paper.

    Returns:
      The text of the file.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV, lineterminator='\n')
    writer.writeheader()
    table = filled.table
    for column in filled.columns:
        place = places([filled.scores[row.name, column.name] for row in filled.rows])
        for row, own in zip(filled.rows, place, strict=True):
            key = row.name, column.name
            score, value = filled.scores[key], filled.paper[key]
            cost = cost_of(_runs(filled, row, column))
            alike = column.name in filled.alike
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
                'place': own or '',
                'paper': value.accuracy,
                'paper_sd': _plain(value.sd),
                'paper_failed': value.failed,
                'difference': _plain(None if score.mean is None else score.mean - value.accuracy),
                'within': _plain(within(score, value.accuracy, value.sd, alike=alike)),
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
            writer.writerow(line)
    return file.getvalue()


def _plain(value: float | None) -> object:
    if value is None or isinstance(value, bool):
        return '' if value is None else value
    return f'{value:.4f}'.rstrip('0').rstrip('.')


def show(filled: Filled, console: Console) -> None:
    """Print a table, best bold, second underlined, in parts no wider than the console.

    Args:
      filled: the table.
      console: where to.
    """
    styles = {0: '', 1: 'bold', 2: 'underline'}
    console.print(Text(filled.title, 'bold'))
    for line in (*filled.told, filled.command):
        console.print(Text(line))
    for block in blocks(filled):
        label = max(len(name) + 2 for name, _, _ in block.lines)
        widths = [
            max(max(map(len, head.split())), *(len(cells[i]) for _, cells, _ in block.lines))
            for i, head in enumerate(block.heads)
        ]
        for columns in packed(widths, console.width - label - 2, gap=2):
            part = Shown(title=block.title or None, box=box.SIMPLE_HEAD, pad_edge=False)
            part.add_column('', no_wrap=True)
            for i in columns:
                part.add_column(block.heads[i], justify='right', min_width=widths[i])
            for name, cells, place in block.lines:
                inner = name in (PAPER, DIFFERENCE)
                shown = [_styled(cells[i], styles[place[i]]) for i in columns]
                part.add_row(f'  {name}' if inner else name, *shown)
                if name == DIFFERENCE:
                    part.add_section()
            console.print(part)
    spent = Shown(title='Cost', box=box.SIMPLE_HEAD, pad_edge=False)
    spent.add_column('', no_wrap=True)
    for name in COSTS:
        spent.add_column(name, justify='right')
    for name, cells in costs(filled):
        spent.add_row(name, *cells)
    console.print(spent)


def _styled(cell: str, style: str) -> Text:
    mean, _, after = cell.partition('\t')
    return Text.assemble((mean, style), after)


def packed(widths: list[int], room: int, *, gap: int) -> list[list[int]]:
    """Deals columns to parts that fit.

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
