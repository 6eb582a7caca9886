"""A filled table in words."""

import datetime
import itertools
from collections.abc import Mapping
from typing import NamedTuple

from experiments.grid.published import Column, PaperTable, Value
from experiments.grid.runner import GridRow, RecordedCell
from experiments.grid.scores import RowCost, Score, cost_of, places, within

NOTHING = '-'
PAPER, DIFFERENCE = INNER = 'paper', 'difference'  # labels of lines below a method's
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


def costs(filled: Filled) -> list[tuple[str, tuple[str, ...]]]:
    """The cost of each row in words: (row, cells as in `COSTS`)."""
    rows = []
    for row in filled.rows:
        runs = [filled.runs[row.name, column.name].values() for column in filled.columns]
        cost = cost_of(itertools.chain.from_iterable(runs))
        rows.append((row.name, _spoken_cost(cost) if cost else (NOTHING,) * len(COSTS)))
    return rows


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
