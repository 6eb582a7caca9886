"""A grid of runs on disk, column x row x seed: trained once, skipped if finished, and read."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxfed import methods
from jaxfed.config import FIELDS, MAPPINGS, Config, settings_that_affect
from jaxfed.internal import console
from jaxfed.internal.files import read_json
from jaxfed.recording import log, run_files
from jaxfed.runs import checks, config_flags
from jaxfed.runs.experiment import Experiment, method_of, parts_of, set_up
from jaxfed.runs.rounds import Stop, never
from jaxfed.sweeps import runner
from jaxfed.sweeps.claims import RunsElsewhere, finish_programs
from jaxfed.sweeps.halving import warn_of_lone_settings
from jaxfed.sweeps.training import group

# The grid sets these flags for each cell.
RESERVED = ('method', 'on_divergence', 'seed', 'workdir')


class GridRow(NamedTuple):
    """A row of a table or a curve of a figure: the paper's name of a method, and its flags."""

    name: str
    flags: tuple[str, ...]


class Cell(NamedTuple):
    """One run of a grid."""

    column: str  # flag file under experiments/, without its suffix: 'fedlmd/cifar10_lda0.05'
    row: str
    variant: tuple[str, ...]  # flags that differ from other cells of this column and row
    seed: int
    config: Config
    folder: Path  # its work directory
    output: Path  # folder of all cells
    measured: bool = True  # whether a finished run must have recorded all measures

    @property
    def name(self) -> str:
        """Column, row, variant and seed on one line."""
        return ' '.join([self.column, self.row, *self.variant, f'seed {self.seed}'])


class RecordedCell(NamedTuple):
    """The records of a finished cell."""

    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def flag_name(flag: str) -> str:
    """The name in --NAME=VALUE."""
    return flag.lstrip('-').partition('=')[0]


def flag_file(column: str) -> Path:
    """The flag file of a column 'PAPER/NAME'; a ValueError if there is none."""
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
    hyperparameters: Mapping[str, Any] = MappingProxyType({}),
    variant: Sequence[str] = (),
    base: Sequence[str] | None = None,
    measured: bool = True,
) -> Cell:
    """Make a cell and check its settings, except for rules that need the data.

    Args:
      column: 'PAPER/NAME', of a flag file under experiments/.
      row: the method.
      seed: of all randomness.
      output: folder of all cells.
      flags: flags of the whole grid, such as --rounds=20; they override the column's and the row's.
      hyperparameters: of the whole grid, for the methods that take them; they override, too.
      variant: flags that differ from other cells of this column and row.
      base: flags of the column; None for those in its flag file.
      measured: whether a finished run must have recorded all measures of the cell.

    Returns:
      The cell.

    Raises:
      ValueError: for invalid settings.
    """
    name = '_'.join([row.name.replace(' ', ''), *(flag.lstrip('-') for flag in variant)])
    folder = output / column / name / f'seed{seed}'
    fixed = (f'--seed={seed}', f'--workdir={folder}', '--on_divergence=record')
    base = [f'--flagfile={flag_file(column)}'] if base is None else base
    try:
        config = config_flags.parse([*base, *row.flags, *variant, *flags, *fixed])
        config = _with_taken(config, hyperparameters)
        checks.check(config)
        method_of(config)
    except ValueError as error:
        raise ValueError(f'{column}, {row.name}: {error}') from error
    return Cell(column, row.name, tuple(variant), seed, config, folder, output, measured)


def split_flags(flags: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The flags of a grid without hyper-parameters, and these, name -> value; also of files."""
    values, known = config_flags.read_flags(flags), config_flags.hyperparameter_flags()
    others = [f'--{name}={value}' for name, value in values.items() if name not in known]
    return others, {name: value for name, value in values.items() if name in known}


def check_taken(cells: Iterable[Cell], hyperparameters: Mapping[str, Any]) -> None:
    """Raise a ValueError for a hyper-parameter of a grid that the method of no cell takes."""
    cells = list(cells)
    taken = {name for cell in cells for name in cell.config.hyperparameters}
    for name, value in hyperparameters.items():
        if name not in taken:
            rows = ', '.join(dict.fromkeys(cell.row for cell in cells))
            raise ValueError(
                f'--{name}={value}: no selected method takes it ({rows}); select one that does, '
                'or leave it out after --.'
            )


class Varied(NamedTuple):
    """A cell and the flags by which it may differ from others of a problem and a method."""

    key: tuple[str, str]  # column and row
    name: str  # in messages
    flags: Sequence[str]
    cell: Cell


def check_varied(varied: Iterable[Varied], hyperparameters: Mapping[str, Any]) -> None:
    """Raise a ValueError for a hyper-parameter in which cells of one column and row differ."""
    varied = list(varied)
    for name, value in hyperparameters.items():
        key, flags = name.rpartition('.')[2], dict[tuple[str, str], list[str]]()
        for one in varied:
            if name not in one.cell.config.hyperparameters:
                continue
            own = [flag for flag in one.flags if flag_name(flag).rpartition('.')[2] == key]
            if flags.setdefault(one.key, own) != own:
                raise ValueError(
                    f'--{name}={value}: the cells of {one.name} differ in it; leave it out '
                    'after --.'
                )


def _with_taken(config: Config, hyperparameters: Mapping[str, Any]) -> Config:
    """Set the hyper-parameters that the method takes, NAME or METHOD.NAME."""
    parts, found = methods.resolve(config.method, {}), dict(config.hyperparameters)
    for name, value in hyperparameters.items():
        part, _, key = name.rpartition('.')
        if any(key in values and part in ('', known) for known, values, _ in parts):
            found.pop(key, None)  # METHOD.NAME and NAME together would be two values
            found[name] = value
    return dataclasses.replace(config, hyperparameters=found)


def with_seed(cell: Cell, seed: int) -> Cell:
    """The same run with another seed; parsing its flags again takes 10 ms."""
    folder = cell.folder.with_name(f'seed{seed}')
    config = dataclasses.replace(cell.config, seed=seed, workdir=str(folder))
    return cell._replace(seed=seed, folder=folder, config=config)


def make_cells(column: str, row: GridRow, seeds: int, **keywords: Any) -> tuple[Cell, ...]:
    """The runs of seeds 0 to seeds - 1; arguments and errors as of `make_cell`."""
    first = make_cell(column, row, 0, **keywords)
    return tuple(with_seed(first, seed) for seed in range(seeds))


def trained(cell: Cell) -> str:
    """The row of a cell and the settings with which it trains, as a text."""
    untrained = settings_that_affect('machine', 'records')
    settings = {key: value for key, value in vars(cell.config).items() if key not in untrained}
    return f'{cell.row} {settings}'


def equal(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group cells of one row and seed that train with the same settings.

    Flags of the whole grid can remove the differences between columns or variants.

    Returns:
      The groups of at least two cells.
    """
    found: dict[str, dict[Path, Cell]] = {}
    for cell in cells:
        found.setdefault(trained(cell), {})[cell.folder] = cell
    return [list(group.values()) for group in found.values() if len(group) > 1]


def is_done(cell: Cell) -> bool:
    """Whether a cell is finished, with all measures that it must have.

    Raises:
      ValueError: if its folder holds a run with other settings.
    """
    return runner.is_done(cell.config, measures='included' if cell.measured else 'any')


def changed_flags(
    flags: Sequence[str], plain: Iterable[Cell], cells: Iterable[Cell], *, score: str = ''
) -> list[str]:
    """The flags of a grid that change how its cells train or are evaluated, except --rounds.

    Args:
      flags: of the whole grid, each with its value as --NAME=VALUE.
      plain: the cells without these flags; read only if there are flags.
      cells: the same cells with them.
      score: a setting of records on which the numbers depend, too.
    """
    if not flags:  # without parsing `plain`
        return []
    same = {*settings_that_affect('machine', 'records'), 'rounds', 'workdir'} - {score}
    changed = set()
    for before, after in zip(plain, cells, strict=True):
        for name in FIELDS:
            old, new = getattr(before.config, name), getattr(after.config, name)
            if name in MAPPINGS:
                changed |= {key for key in {**old, **new} if old.get(key) != new.get(key)}
            elif old != new and name not in same:
                changed.add(name)
    return [flag for flag in flags if changed & config_flags.read_flags([flag]).keys()]


def check(cells: Iterable[Cell]) -> None:
    """Check folders, settings and data of all cells, before the first run.

    Raises:
      ValueError: if a folder holds another run, settings or data are invalid, or data cannot be
        read.
      OSError: if a folder's records cannot be read.
    """
    left = [cell for cell in cells if not is_done(cell)]
    # The checks do not depend on the seed, except for random outcomes.
    kinds = {(cell.column, cell.row, cell.variant): cell for cell in left}
    for cell in kinds.values():
        with tempfile.TemporaryDirectory() as folder:
            try:
                set_up(dataclasses.replace(cell.config, workdir=folder))
            except (ValueError, OSError) as error:
                raise ValueError(f'{cell.column}, {cell.row}: {error}') from error


def run_cells(
    cells: Sequence[Cell],
    *,
    together: int = 0,
    stop_of: Callable[[Sequence[Cell]], Stop] = lambda cells: never,
    halves: bool = False,
    quiet: bool = False,
) -> dict[str, str]:
    """Train the unfinished cells; cells that can share a program train together.

    An interrupted cell resumes from its last checkpoint with its original measures, which include
    the requested ones if it is `measured`; cells that were interrupted together resume together.
    Several processes may work on one grid: each skips the cells of the others.

    Args:
      cells: of the grid, checked; all of one output folder.
      together: the largest number of cells in a program; 0 for what
        `jaxfed.sweeps.training.program_size` chooses.
      stop_of: cells of a program -> which of them stop early.
      halves: whether `stop_of` compares variants, so that all seeds of one are in one program.
      quiet: show no progress.

    Returns:
      The failed cells, name -> reason; cells that another process is running have not failed.

    Raises:
      ValueError: if the data has changed since cells were finished.
    """
    if cells:
        finish_programs(cells[0].output)
    done, left = list[Cell](), list[Cell]()
    for cell in cells:
        (done if is_done(cell) else left).append(cell)
    console.say(f'{len(done)} of {len(cells)} runs are done.', quiet=quiet)
    if not left:
        return {}
    check_same_data(done, left)
    configs, output = [_as_begun(cell) for cell in left], left[0].output
    settings = [cell.variant for cell in left] if halves else []
    groups = group(configs, output, most=together, settings=settings)
    if halves:
        warn_of_lone_settings(groups, settings)
    results = runner.run_groups(
        configs,
        output,
        groups,
        lambda i: experiment_of(left[i]),
        lambda places: name_of([left[i] for i in places]),
        settings=settings,
        stop_of=lambda places: stop_of([left[i] for i in places]),
        quiet=quiet,
    )
    return {
        cell.name: str(result)
        for cell, result in zip(left, results, strict=True)
        if isinstance(result, Exception) and not isinstance(result, RunsElsewhere)
    }


def check_same_data(done: Iterable[Cell], left: Iterable[Cell]) -> None:
    """Raise a ValueError if data that cells will read has changed since others were finished."""
    sources = {runner.source_of(cell.config) for cell in left}
    if sources:
        configs = (cell.config for cell in done)
        runner.check_same_data(one for one in configs if runner.source_of(one) in sources)


def name_of(cells: Sequence[Cell]) -> str:
    """Describe cells, such as '3 columns FedAvg 2 seeds', or the name of a single cell."""
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
    """Set up an unfinished cell.

    Raises:
      ValueError: as `set_up`, or if the interrupted run had other data.
      OSError: as `set_up`.
    """
    experiment = set_up(_as_begun(cell))
    dealt = experiment.dealt
    # The images are compared when it trains.
    run_files.check_unfinished(experiment.workdir, dealt.label_counts, {'digest': dealt.digest})
    return experiment


def _as_begun(cell: Cell) -> Config:
    """The settings of an unfinished cell, with the measures of the interrupted run if any."""
    if not (cell.folder / run_files.CONFIG).exists():
        return cell.config
    # `is_done` has refused every other difference, and of a cell that is `measured` those that lack
    # a requested measure.
    other = run_files.differing(cell.folder, cell.config, parts_of(cell.config))
    measure, _ = other.get('measure', (cell.config.measure, None))
    return dataclasses.replace(cell.config, measure=measure)


def read(cell: Cell) -> RecordedCell:
    """Read the records of a finished cell; a ValueError if a file cannot be read."""
    try:
        summary = run_files.read_summary(cell.folder / run_files.SUMMARY)
        config = read_json(cell.folder / run_files.CONFIG)
        return RecordedCell(config, summary, log.read(cell.folder, summary['rounds']))
    except OSError as error:
        raise ValueError(f'{cell.folder} cannot be read: {error}.') from error


def read_done(cells: Iterable[Cell]) -> dict[Path, RecordedCell]:
    """The records of the finished cells, folder -> records."""
    return {cell.folder: read(cell) for cell in cells if is_done(cell)}
