"""A grid of runs on disk: column x row x seed, each run once, skipped when done, read back."""

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed import methods
from jaxfed.config import Config, settings_that_affect
from jaxfed.internal import console
from jaxfed.recording import run_files
from jaxfed.runs import checks, config_flags
from jaxfed.runs.experiment import Experiment, set_up
from jaxfed.sweeps import runner
from jaxfed.sweeps.training import group

# Flags that a grid sets for each of its cells.
RESERVED = ('method', 'on_divergence', 'seed', 'workdir')


class GridRow(NamedTuple):
    """A line of a table or a curve of a figure: a method as the paper writes it, and its flags."""

    name: str
    flags: tuple[str, ...]


class Cell(NamedTuple):
    """One run of a grid."""

    column: str  # flag file under experiments/, without its suffix: 'fedlmd/cifar10_lda0.05'
    row: str
    variant: tuple[str, ...]  # flags that set it apart from others of its column and row
    seed: int
    config: Config
    folder: Path  # its work directory
    output: Path  # folder of all cells
    measured: bool = True  # whether a run without the measures that it asks for is another one

    @property
    def name(self) -> str:
        """Column, row, variant and seed in one line."""
        return ' '.join([self.column, self.row, *self.variant, f'seed {self.seed}'])


class RecordedCell(NamedTuple):
    """What a finished cell recorded."""

    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def flag_file(column: str) -> Path:
    """The flag file of a column.

    Args:
      column: 'PAPER/NAME'.

    Returns:
      Its path.

    Raises:
      ValueError: if there is none.
    """
    path = Path(__file__).parents[1] / f'{column}.flags'
    if not path.is_file():
        raise ValueError(f'there is no flag file {path} for column {column}.')
    return path


def make_cell(
    column: str,
    row: GridRow,
    seed: int,
    *,
    output: Path,
    flags: Sequence[str] = (),
    variant: Sequence[str] = (),
    base: Sequence[str] | None = None,
    measured: bool = True,
) -> Cell:
    """Make a cell, its settings checked as far as that goes without data.

    Args:
      column: 'PAPER/NAME', of a flag file under experiments/.
      row: the method.
      seed: of everything random.
      output: folder of all cells.
      flags: that hold for the whole grid, as --rounds=20; they win over the column's and the row's.
      variant: flags that set the cell apart from others of its column and row.
      base: flags of the column; None for those in its flag file.
      measured: whether a finished run has to have the measures that the cell asks for.

    Returns:
      The cell.

    Raises:
      ValueError: for settings that do not do.
    """
    for flag in flags:
        if flag.lstrip('-').partition('=')[0] in RESERVED:
            raise ValueError(f'{flag} is set for each run by the grid; leave it out.')
    name = '_'.join([row.name.replace(' ', ''), *(flag.lstrip('-') for flag in variant)])
    folder = output / column / name / f'seed{seed}'
    fixed = (f'--seed={seed}', f'--workdir={folder}', '--on_divergence=record')
    own = [f'--flagfile={flag_file(column)}'] if base is None else base
    given = [*own, *row.flags, *variant, *flags, *fixed]
    try:
        config = config_flags.parse(given)
        checks.check(config)
        methods.build(parts_of(config), switch_round=config.switch_round)
    except ValueError as error:
        raise ValueError(f'{column}, {row.name}: {error}') from error
    return Cell(column, row.name, tuple(variant), seed, config, folder, output, measured)


def equal(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that stand apart in the grid though all that is trained in them is the same.

    Flags for the whole grid may undo what sets its columns or variants apart.

    Args:
      cells: of a grid.

    Returns:
      Groups of at least two such cells of one row and seed.
    """
    found: dict[str, dict[Path, Cell]] = {}
    untrained = settings_that_affect('machine', 'records')
    for cell in cells:
        own = {name: value for name, value in vars(cell.config).items() if name not in untrained}
        found.setdefault(f'{cell.row} {own}', {})[cell.folder] = cell
    return [list(alike.values()) for alike in found.values() if len(alike) > 1]


def parts_of(config: Config) -> list[methods.Part]:
    """The parts of a method, with all their hyper-parameters."""
    return methods.resolve(config.method, config.hyperparameters)


def is_done(cell: Cell) -> bool:
    """Whether a cell has been run to its end, with the measures that it has to have.

    Raises:
      ValueError: if its folder holds a run with other settings.
    """
    return runner.is_done(cell.config, measures='included' if cell.measured else 'any')


def flags_with_effect(flags: Iterable[str]) -> list[str]:
    """Those of the flags that change the accuracy of a run beyond its number of rounds."""
    same = (*settings_that_affect('machine'), 'rounds', 'measure')
    return [flag for flag in flags if flag.lstrip('-').partition('=')[0] not in same]


def check(cells: Iterable[Cell]) -> None:
    """Check folders, settings and data of all cells, before the first is run.

    Args:
      cells: of the grid.

    Raises:
      ValueError: if a folder holds something else, or a setting or data does not do.
      OSError: if data cannot be read.
    """
    left = [cell for cell in cells if not is_done(cell)]
    # Seeds differ in nothing that is checked but in chance.
    kinds = {(cell.column, cell.row, cell.variant): cell for cell in left}
    for cell in kinds.values():
        with tempfile.TemporaryDirectory() as folder:
            try:
                set_up(dataclasses.replace(cell.config, workdir=folder))
            except (ValueError, OSError) as error:
                raise ValueError(f'{cell.column}, {cell.row}: {error}') from error


def run_cells(
    cells: Sequence[Cell], *, together: int = 0, rungs: Sequence[int] = (), quiet: bool = False
) -> dict[str, str]:
    """Run the cells that are not done, those at once that can share a program.

    A cell that was interrupted goes on from its last checkpoint, with the measures it began with,
    which have all that is asked for; cells that were interrupted together go on together. Several
    processes may work on one grid: what another one is at is left to it.

    Args:
      cells: of the grid, checked; all of one output folder.
      together: most cells in a program; 0 for all where there are rungs, and else chooses as
        `jaxfed.sweeps.training.group`.
      rungs: rounds after which the worse half of the cells in a program is given up, as by
        `jaxfed.sweeps.halving`; cells that differ in nothing but their seed stand or fall together.
      quiet: show no progress.

    Returns:
      What could not be run, cell name -> reason.
    """
    left = [cell for cell in cells if not is_done(cell)]
    console.say(f'{len(cells) - len(left)} of {len(cells)} runs are done.', quiet=quiet)
    if not left:
        return {}
    configs, output = [_as_begun(cell) for cell in left], left[0].output
    results = runner.run_groups(
        configs,
        output,
        group(configs, output, most=together or len(left) * bool(rungs)),
        lambda i: experiment_of(left[i]),
        lambda places: name_of([left[i] for i in places]),
        points=[(cell.column, cell.row, cell.variant) for cell in left],
        rungs=rungs,
        quiet=quiet,
    )
    return {
        cell.name: str(result)
        for cell, result in zip(left, results, strict=True)
        if isinstance(result, Exception)
    }


def name_of(cells: Sequence[Cell]) -> str:
    """What cells are, in one line.

    Args:
      cells: of a grid.

    Returns:
      For instance '3 columns FedAvg 2 seeds', or the name of a single one.
    """
    kinds = {
        'columns': [cell.column for cell in cells],
        'methods': [cell.row for cell in cells],
        'settings': [' '.join(cell.variant) for cell in cells],
        'seeds': [f'seed {cell.seed}' for cell in cells],
    }
    words = [
        values[0] if len(set(values)) == 1 else f'{len(set(values))} {kind}'
        for kind, values in kinds.items()
    ]
    return ' '.join(filter(None, words))


def experiment_of(cell: Cell) -> Experiment:
    """Sets a cell up, or what is left of it.

    Args:
      cell: not done.

    Returns:
      The experiment.

    Raises:
      ValueError: as `set_up`, or if the data is not that of the run that was begun.
      OSError: as `set_up`.
    """
    experiment = set_up(_as_begun(cell))
    run_files.check_unfinished(experiment.workdir, experiment.dealt.label_counts)
    return experiment


def _as_begun(cell: Cell) -> Config:
    """The settings of a cell that is not done, with the measures of its run if that was begun."""
    if not (cell.folder / run_files.CONFIG).exists():
        return cell.config
    # `is_done` has refused every other difference, and measures that lack what is asked for.
    other = run_files.differing(cell.folder, cell.config, parts_of(cell.config))
    there, _ = other.get('measure', (cell.config.measure, None))
    return dataclasses.replace(cell.config, measure=there)


def read(cell: Cell) -> RecordedCell:
    """Read what a finished cell recorded.

    Args:
      cell: done.

    Returns:
      The run.

    Raises:
      ValueError: if a file cannot be read.
    """
    try:
        return RecordedCell(
            json.loads((cell.folder / run_files.CONFIG).read_text()),
            json.loads((cell.folder / run_files.SUMMARY).read_text()),
            [json.loads(line) for line in (cell.folder / run_files.METRICS).open()],
        )
    except (OSError, ValueError) as error:
        raise ValueError(f'{cell.folder} cannot be read: {error}.') from error
