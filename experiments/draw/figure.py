"""What a figure is: panels of runs, and how their numbers are read off."""

import itertools
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.draw.shapes import Missing, Shape
from experiments.grid.published import PaperTable
from experiments.grid.runner import Cell, GridRow, RecordedCell, flags_with_effect, make_cell
from jaxfed.metrics.measures import parse_clients
from jaxfed.runs.seeds import sample_cohort


class Series(NamedTuple):
    """Runs that differ in nothing but their seed: a curve, a point of a sweep or a matrix."""

    column: str  # 'PAPER/NAME', of a flag file
    row: GridRow
    variant: tuple[str, ...] = ()  # further flags
    label: str = ''  # in the picture, '' for the row's name
    at: tuple[str, ...] = ()  # where in a sweep, or row and column of a grid

    @property
    def name(self) -> str:
        """What it is called in the picture."""
        return self.label or self.row.name


def of_table(
    table: PaperTable, column: str, *, rows: Sequence[str] = (), variant: Sequence[str] = ()
) -> tuple[Series, ...]:
    """Rows of a column of a table as series.

    Args:
      table: of the paper.
      column: 'PAPER/NAME', of its flag file.
      rows: names of rows; none for all.
      variant: further flags.

    Returns:
      A series for each row, with the table's settings.
    """
    (of_rows,) = [found.flags for found in table.columns if found.file == column]
    named = {row.name: row for row in table.rows}
    return tuple(
        Series(column, named[name], (*of_rows.get(name, ()), *variant)) for name in rows or named
    )


class Found(NamedTuple):
    """What there is of a series."""

    series: Series
    cells: tuple[Cell, ...]  # one a seed
    runs: tuple[RecordedCell, ...]  # of the cells that are done, in their order
    folders: tuple[Path, ...]  # of these runs


class Panel(NamedTuple):
    """A pair of axes."""

    title: str
    series: tuple[Series, ...]
    take: Callable[[str, Sequence[Found]], Shape]  # from the title and what there is
    trains: bool = True  # False if settings tell all that is drawn, without any run


class PaperFigure(NamedTuple):
    """A figure of a paper."""

    title: str
    panels: tuple[Panel, ...]
    across: int = 1  # panels side by side
    one_seed: bool = False  # a mean over seeds would mean nothing, as of one client's model
    measured: bool = False  # draws what only the measures of its runs record
    notes: tuple[str, ...] = ()  # what the paper leaves open, and what was chosen


class Planned(NamedTuple):
    """A panel with its cells."""

    panel: Panel
    cells: tuple[tuple[Cell, ...], ...]  # [series][seed]


class FigureCells(NamedTuple):
    """A figure, or a part of it, with its runs."""

    figure: PaperFigure
    panels: tuple[Planned, ...]
    paper_rounds: dict[str, int]  # column -> rounds of its runs in the paper
    changed: str  # flags that are not the paper's, '' for none


def plan(
    figure: PaperFigure, seeds: int, *, output: Path, flags: Sequence[str] = ()
) -> tuple[Planned, ...]:
    """Make all cells of a figure.

    Args:
      figure: from the paper's `FIGURES`.
      seeds: 0..seeds-1 of each series; one where the figure has only one.
      output: folder of all runs.
      flags: that hold for all of them.

    Returns:
      The panels with their cells.

    Raises:
      ValueError: for settings that do not do.
    """
    numbers = range(1 if figure.one_seed else seeds)
    planned = tuple(
        Planned(
            panel,
            tuple(
                tuple(
                    make_cell(
                        s.column,
                        s.row,
                        i,
                        output=output,
                        flags=flags,
                        variant=s.variant,
                        measured=figure.measured,
                    )
                    for i in numbers
                )
                for s in panel.series
            ),
        )
        for panel in figure.panels
    )
    for config in (cell.config for cell in cells_of(planned)):
        if config.confusion_clients and config.eval_every != 1:
            raise ValueError(
                f'--eval_every={config.eval_every} must be 1: the figure shows the global model '
                'that a local one starts from.'
            )
        # Sizes have no say in who is sampled here, and are not known yet.
        last = sample_cohort(config, np.ones(config.num_clients, int), config.rounds)
        arrived = last.clients[last.epochs > 0]
        told = config.sampling in ('uniform', 'round_robin') and not config.over_selection
        absent = {*parse_clients(config.confusion_clients)} - {*arrived}
        if told and absent:
            raise ValueError(
                f'--clients_per_round={config.clients_per_round} leaves client {min(absent)}, '
                f'whose model the figure shows, out of the last round; --clients_per_round='
                f'{config.num_clients} lets all take part, --confusion_clients shows another one.'
            )
    return planned


def cells_of(planned: Iterable[Planned], *, trains: bool = True) -> list[Cell]:
    """The runs of a plan.

    Args:
      planned: from `plan`.
      trains: of the panels that are drawn from runs, or of those that need none.

    Returns:
      Each once, with its measures if one of the figures needs them.
    """
    panels = [p.cells for p in planned if p.panel.trains == trains]
    every = itertools.chain.from_iterable(itertools.chain.from_iterable(panels))
    found: dict[Path, Cell] = {}
    for cell in every:
        held = found.get(cell.folder, cell)
        found[cell.folder] = held._replace(measured=held.measured or cell.measured)
    return list(found.values())


def shapes_of(planned: Iterable[Planned], done: dict[Path, RecordedCell]) -> list[Shape]:
    """The numbers of all panels.

    Args:
      planned: from `plan`.
      done: work directory -> run.

    Returns:
      One shape a panel, `Missing` where no run is done.

    Raises:
      ValueError: if data that tells the clients' shares cannot be dealt.
      OSError: if it cannot be read.
    """
    shapes: list[Shape] = []
    for panel, cells in planned:
        found = []
        for series, of_seeds in zip(panel.series, cells, strict=True):
            folders = tuple(cell.folder for cell in of_seeds if cell.folder in done)
            found.append(Found(series, of_seeds, tuple(done[f] for f in folders), folders))
        known = not panel.trains or any(one.runs for one in found)
        shapes.append(panel.take(panel.title, found) if known else Missing(panel.title))
    return shapes


def changed(flags: Sequence[str]) -> str:
    """The flags among those for all runs that change what is trained, besides --rounds.

    Args:
      flags: as on the command line.

    Returns:
      A line, '' for none.
    """
    return shlex.join(flags_with_effect(flags))


def narrowed(
    figure: PaperFigure, *, columns: Sequence[str] | None, methods: Sequence[str] | None
) -> PaperFigure:
    """Leave out what is not asked for.

    Args:
      figure: any.
      columns: names of columns to keep, without the paper; None for all.
      methods: names of rows to keep; None for all.

    Returns:
      The figure without the other series, and without the panels that have none left.

    Raises:
      ValueError: for a name that the figure does not have, or if nothing is left.
    """

    def kept(series: Series) -> bool:
        names = {'columns': Path(series.column).name, 'methods': series.row.name}
        return all(names[flag].lower() in chosen for flag, chosen in wanted.items())

    every = [series for panel in figure.panels for series in panel.series]
    held = {
        'columns': dict.fromkeys(Path(series.column).name for series in every),
        'methods': dict.fromkeys(series.row.name for series in every),
    }
    wanted = {}
    for flag, names in (('columns', columns), ('methods', methods)):
        if names is not None:
            wanted[flag] = {name.lower() for name in names}
            unknown = wanted[flag] - {name.lower() for name in held[flag]}
            if unknown or not names:
                raise ValueError(
                    f'--{flag}={",".join(names)} must name some of {", ".join(held[flag])}.'
                )
    panels = [
        panel._replace(series=tuple(filter(kept, panel.series)))
        for panel in figure.panels
        if any(map(kept, panel.series))
    ]
    if not panels:
        raise ValueError(
            f'--columns={",".join(columns or ())} and --methods={",".join(methods or ())}: the '
            'figure has none of these methods in these columns; leave one of them out.'
        )
    return figure._replace(panels=tuple(panels))
