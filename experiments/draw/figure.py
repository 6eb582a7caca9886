"""A figure: panels of runs, and how their numbers are read."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.draw.shapes import Missing, Shape
from experiments.grid import runner
from experiments.grid.command import select
from experiments.grid.published import PaperTable
from experiments.grid.runner import Cell, GridRow, RecordedCell
from jaxfed.config import Config
from jaxfed.metrics.selection import parse_clients
from jaxfed.runs.seeds import sample_cohort


class Series(NamedTuple):
    """Runs that differ only in their seed: a curve, a point of a sweep or a matrix."""

    column: str  # 'PAPER/NAME', of a flag file
    row: GridRow
    variant: tuple[str, ...] = ()  # further flags
    label: str = ''  # in the picture, '' for the row's name
    at: tuple[str, ...] = ()  # position in a sweep, or row and column of a grid

    @property
    def name(self) -> str:
        """The label in the picture."""
        return self.label or self.row.name

    @property
    def column_name(self) -> str:
        """The column without its paper."""
        return Path(self.column).name


def of_table(
    table: PaperTable, column: str, *, rows: Sequence[str] = (), variant: Sequence[str] = ()
) -> tuple[Series, ...]:
    """Make series of the rows of a table's column, with the table's settings.

    Args:
      table: of the paper.
      column: 'PAPER/NAME', of its flag file.
      rows: names of rows; none for all.
      variant: further flags.

    Returns:
      A series for each row.
    """
    (row_flags,) = [found.flags for found in table.columns if found.file == column]
    named = {row.name: row for row in table.rows}
    return tuple(
        Series(column, named[name], (*row_flags.get(name, ()), *variant)) for name in rows or named
    )


class Found(NamedTuple):
    """A series with its finished runs."""

    series: Series
    cells: tuple[Cell, ...]  # one a seed
    runs: tuple[RecordedCell, ...]  # of the finished cells, in their order


def begun(found: Sequence[Found]) -> list[Found]:
    """The series with a finished run."""
    return [one for one in found if one.runs]


class Panel(NamedTuple):
    """A pair of axes."""

    title: str
    series: tuple[Series, ...]
    shape_of: Callable[[str, Sequence[Found]], Shape]  # from the title and the finished runs
    trains: bool = True  # False if the settings determine the picture, without any run


class PaperFigure(NamedTuple):
    """A figure of a paper."""

    title: str
    panels: tuple[Panel, ...]
    across: int = 1  # panels side by side
    one_seed: bool = False  # a mean over seeds is meaningless, as for one client's model
    measured: bool = False  # whether it draws measures of its runs
    notes: tuple[str, ...] = ()  # our choices where the paper specifies nothing


class Planned(NamedTuple):
    """A panel with its cells."""

    panel: Panel
    cells: tuple[tuple[Cell, ...], ...]  # [series][seed]


class FigureCells(NamedTuple):
    """A figure, or a part of it, with its runs."""

    figure: PaperFigure
    panels: tuple[Planned, ...]
    paper_rounds: dict[str, int]  # column -> rounds of its runs in the paper
    changed: str  # flags that differ from the flag file's, '' for none


def plan(
    figure: PaperFigure, seeds: int, *, output: Path, flags: Sequence[str] = ()
) -> tuple[Planned, ...]:
    """Make all cells of a figure.

    Args:
      figure: from the paper's `FIGURES`.
      seeds: 0..seeds-1 of each series; only 0 if the figure draws one seed.
      output: folder of all runs.
      flags: flags of all runs; a hyper-parameter is one of the methods that take it.

    Returns:
      The panels with their cells.

    Raises:
      ValueError: for invalid settings.
    """

    others, hyperparameters = runner.split_flags(flags)

    def cells(series: Series) -> tuple[Cell, ...]:
        return runner.make_cells(
            series.column,
            series.row,
            1 if figure.one_seed else seeds,
            output=output,
            flags=others,
            hyperparameters=hyperparameters,
            variant=series.variant,
            measured=figure.measured,
        )

    planned = tuple(Planned(panel, tuple(map(cells, panel.series))) for panel in figure.panels)
    for cell in cells_of(planned):
        _check_clients(cell.config)
    every = itertools.chain(*(cells_of(planned, trains=trains) for trains in (True, False)))
    runner.check_taken(every, hyperparameters)
    runner.check_varied(
        (
            runner.Varied((series.column, series.row.name), series.name, series.variant, cell)
            for one in planned
            for series, (cell, *_) in zip(one.panel.series, one.cells, strict=True)
        ),
        hyperparameters,
    )
    return planned


def _check_clients(config: Config) -> None:
    """Raise a ValueError if the last round lacks a client whose model the figure shows."""
    if config.confusion_clients and config.eval_every != 1:
        raise ValueError(
            f'--eval_every={config.eval_every} must be 1: the figure shows the global model that '
            'the last round starts from.'
        )
    # These samplings ignore the sizes, which are unknown yet.
    last = sample_cohort(config, np.ones(config.num_clients, int), config.rounds)
    known = config.sampling in ('uniform', 'round_robin', 'fedntd') and not config.over_selection
    absent = {*parse_clients(config.confusion_clients)} - {*last.clients[last.epochs > 0]}
    if known and absent:
        raise ValueError(
            f'--clients_per_round={config.clients_per_round} excludes client {min(absent)}, whose '
            f'model the figure shows, from the last round; --clients_per_round='
            f'{config.num_clients} includes all, --confusion_clients shows another one.'
        )


def cells_of(planned: Iterable[Planned], *, trains: bool = True) -> list[Cell]:
    """The runs of a plan.

    Args:
      planned: from `plan`.
      trains: whether of the panels that need runs, or of the others.

    Returns:
      Each cell once, with its measures if one of the figures needs them.
    """
    panels = [cells for panel, cells in planned if panel.trains == trains]
    found: dict[Path, Cell] = {}
    for cell in (cell for cells in panels for seeds in cells for cell in seeds):
        measured = cell.measured or (cell.folder in found and found[cell.folder].measured)
        found[cell.folder] = cell._replace(measured=measured)
    return list(found.values())


def shapes_of(planned: Iterable[Planned], done: dict[Path, RecordedCell]) -> list[Shape]:
    """Compute the numbers of all panels.

    Args:
      planned: from `plan`.
      done: work directory -> run.

    Returns:
      One shape a panel, `Missing` for a panel without finished runs.

    Raises:
      ValueError: if the data cannot be partitioned, for a picture of the partition.
      OSError: if it cannot be read.
    """
    shapes: list[Shape] = []
    for panel, cells in planned:
        found = [
            Found(series, seeds, tuple(done[c.folder] for c in seeds if c.folder in done))
            for series, seeds in zip(panel.series, cells, strict=True)
        ]
        known = not panel.trains or any(one.runs for one in found)
        shapes.append(panel.shape_of(panel.title, found) if known else Missing(panel.title))
    return shapes


def narrowed(
    figure: PaperFigure, *, columns: Sequence[str] | None, methods: Sequence[str] | None
) -> PaperFigure:
    """Select columns and methods of a figure.

    Args:
      figure: any.
      columns: names of the selected columns, without the paper; None for all.
      methods: names of the selected rows; None for all.

    Returns:
      The figure without the other series, and without empty panels.

    Raises:
      ValueError: for an unknown name, or if nothing is left.
    """
    every = [series for panel in figure.panels for series in panel.series]
    column_names = select('columns', columns, [series.column_name for series in every])
    method_names = select('methods', methods, [series.row.name for series in every])
    panels = []
    for panel in figure.panels:
        kept = [
            series
            for series in panel.series
            if series.column_name in column_names and series.row.name in method_names
        ]
        if kept:
            panels.append(panel._replace(series=tuple(kept)))
    if not panels:
        raise ValueError(
            f'--columns={",".join(columns or ())} and --methods={",".join(methods or ())}: the '
            'figure has none of these methods in these columns; leave one of them out.'
        )
    return figure._replace(panels=tuple(panels))
