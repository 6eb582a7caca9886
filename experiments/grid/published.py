"""A paper's table as data: columns, rows, published numbers and how they were measured."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from experiments.grid.runner import GridRow

BASELINE = 'FedAvg'  # the other rows are compared with its accuracy


class Value(NamedTuple):
    """A cell of a paper's table."""

    accuracy: float  # percent
    sd: float | None = None  # of the paper's runs, percent
    speed: float | None = None  # rounds to the target or speed-up; None if absent or not reached
    failed: bool = False  # the paper reports divergence


def rounds_in_words(rounds: int, paper: int) -> str:
    """Rounds that are not the paper's, in words."""
    if rounds > paper:
        return f'{rounds} rounds, not {paper}'
    return f"{rounds} of the paper's {paper} rounds"


class Column(NamedTuple):
    """A column of a paper's table."""

    name: str  # on the command line
    title: str  # in the paper
    file: str  # flag file under experiments/, without its suffix
    group: str = ''  # the part of the table with this column
    flags: Mapping[str, tuple[str, ...]] = {}  # row -> its flags in this column only


class PaperTable(NamedTuple):
    """A paper's table."""

    name: str  # 'fedlmd/3'
    paper: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[GridRow, ...]
    numbers: str  # for each row its name and a cell for each column, see `read_numbers`
    # The reported accuracy, see `scores.SCORES`.
    score: Literal['best', 'final', 'last10', 'moving', 'best_moving']
    speed: Literal['', 'rounds', 'speed-up'] = ''  # the additional quantity of a cell
    target: Literal['', 'flag', 'baseline'] = ''  # accuracy to reach: --target_accuracy, FedAvg's
    seeds: int = 1  # runs of a cell
    notes: tuple[str, ...] = ()


def read_value(text: str) -> Value:
    """Read a cell: an accuracy, then optionally +-sd and /rounds or /speed-up; '/-': not reached.

    Args:
      text: for example '70.49+-0.23/100', '33.02', '65.54+-0.41/-' or '12.71/failed'.

    Returns:
      The value.

    Raises:
      ValueError: if the text has another form.
    """
    match = re.fullmatch(r'([\d.]+)(?:\+-([\d.]+))?(?:/(?:([\d.]+)|-|(failed)))?', text)
    if match is None:
        raise ValueError(f'{text!r} is not a cell of a table.')
    accuracy, sd, speed, failed = match.groups()
    return Value(
        float(accuracy), float(sd) if sd else None, float(speed) if speed else None, bool(failed)
    )


def read_numbers(table: PaperTable) -> dict[tuple[str, str], Value]:
    """Read the published numbers of a table.

    Args:
      table: the table.

    Returns:
      (row, column) -> value.

    Raises:
      ValueError: if the names differ from those of the rows, or a row has too few or many cells.
    """
    words, width = table.numbers.split(), 1 + len(table.columns)
    lines = [words[i : i + width] for i in range(0, len(words), width)]
    if [line[0] for line in lines] != [row.name for row in table.rows]:
        raise ValueError(f'{table.name}: the numbers are not those of its rows.')
    return {
        (row, column.name): read_value(cell)
        for row, *cells in lines
        for column, cell in zip(table.columns, cells, strict=True)
    }
