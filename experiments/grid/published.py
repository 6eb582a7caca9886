"""A paper's table as data: its columns, its rows, its numbers and how they were measured."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from experiments.grid.runner import GridRow

BASELINE = 'FedAvg'  # whose accuracy the others are to reach


class Value(NamedTuple):
    """A cell of a paper's table."""

    accuracy: float  # percent
    sd: float | None = None  # of the paper's runs, percent
    speed: float | None = None  # rounds to the target or speed-up; None if not told or not reached
    failed: bool = False  # the paper says that it did not converge


class Column(NamedTuple):
    """A column of a paper's table."""

    name: str  # as on the command line
    title: str  # as in the paper
    file: str  # flag file under experiments/, without its suffix
    group: str = ''  # part of the table that it stands in
    flags: Mapping[str, tuple[str, ...]] = {}  # row -> flags of it that hold in this column only


class PaperTable(NamedTuple):
    """A paper's table."""

    name: str  # 'fedlmd/3'
    paper: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[GridRow, ...]
    numbers: str  # a line for each row, as for `read_numbers`
    score: Literal['best', 'final']  # accuracy over the rounds that is told
    speed: Literal['', 'rounds', 'speed-up'] = ''  # what is told besides
    target: Literal['', 'flag', 'baseline'] = ''  # accuracy to reach: --target_accuracy, FedAvg's
    seeds: int = 1  # runs of a cell
    notes: tuple[str, ...] = ()


def read_value(text: str) -> Value:
    """Reads a cell: accuracy, then if told +-sd and /rounds or /speed-up; '/-' is not reached.

    Args:
      text: as '70.49+-0.23/100', '33.02', '65.54+-0.41/-' or '12.71/failed'.

    Returns:
      The value.

    Raises:
      ValueError: if it is none.
    """
    match = re.fullmatch(r'([\d.]+)(?:\+-([\d.]+))?(?:/([\d.]+|-|failed))?', text)
    if match is None:
        raise ValueError(f'{text!r} is no cell of a table.')
    accuracy, sd, speed = match.groups()
    told = speed not in (None, '-', 'failed')
    return Value(
        float(accuracy),
        None if sd is None else float(sd),
        float(speed) if told else None,
        speed == 'failed',
    )


def read_numbers(table: PaperTable) -> dict[tuple[str, str], Value]:
    """The published numbers of a table.

    Args:
      table: the table.

    Returns:
      (row, column) -> value.

    Raises:
      ValueError: if the lines are not those of its rows, or a line has not a cell a column.
    """
    found = {}
    lines = [line.split() for line in table.numbers.strip().splitlines()]
    if [line[0] for line in lines] != [row.name for row in table.rows]:
        raise ValueError(f'{table.name}: the numbers are not those of its rows.')
    for row, *cells in lines:
        for column, cell in zip(table.columns, cells, strict=True):
            found[row, column.name] = read_value(cell)
    return found
