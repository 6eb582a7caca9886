"""The settings of a search, and the runs of its combinations."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.grid import command, runner
from experiments.grid.runner import Cell, GridRow
from experiments.search.axes import Axis, Range, read_axes
from jaxfed.config import Config
from jaxfed.runs import config_flags
from jaxfed.runs.rounds import Stop
from jaxfed.sweeps.halving import halving as successive_halving
from jaxfed.sweeps.halving import parse_halving

STUDY = 'study.journal'  # file of Optuna's study in the output folder

Combination = tuple[str, ...]  # flags, one for each axis


class OptunaSettings(NamedTuple):
    """The settings of --sampler=optuna."""

    trials: int  # how many combinations that can be run Optuna chooses
    seed: int  # of its choices
    pruner: str  # 'median' or 'none'


class Search(NamedTuple):
    """A search and its runs."""

    method: str
    axes: Mapping[str, Axis]
    seeds: int
    score: str
    validation: float
    place: str  # name of its flag file
    flag_file: tuple[str, ...]  # the flag of the file
    run_flags: tuple[str, ...]  # flags of all runs, which override the grid's
    config: Config  # the settings of all runs, without those of the axes
    output: Path  # folder of all runs
    shown: tuple[str, ...]  # flag file and method, for the command of the winner
    rungs: tuple[int, ...] = ()  # rounds after which the worse half stops
    optuna: OptunaSettings | None = None  # None for every combination of the axes
    chosen: int = 0  # trials of Optuna that can be run
    cells: Mapping[Combination, tuple[Cell, ...]] = {}  # a cell for each seed
    skipped: Mapping[Combination, str] = {}  # why the method refuses it

    @property
    def every(self) -> list[Cell]:
        """All cells."""
        return [cell for seeds in self.cells.values() for cell in seeds]


def make_search(
    *,
    method: str,
    axes: Sequence[str],
    ranges: Sequence[str] = (),
    column: str | None = None,
    flagfile: str | None = None,
    seeds: int = 1,
    score: str = 'best',
    validation: float = 0.1,
    halving: str | None = None,
    optuna: OptunaSettings | None = None,
    output: Path,
    flags_: Sequence[str] = (),
) -> Search:
    """Check the settings of a search, and make the cells of a grid.

    Args:
      method: as for --method.
      axes: the values of --grid.
      ranges: the values of --range, for Optuna only.
      column: 'PAPER/NAME' of a flag file, or
      flagfile: its path, or neither.
      seeds: how many, from 0.
      score: one of `SCORES` or `PERSONAL`.
      validation: the share of the training data that is held out for evaluation.
      halving: rounds after which the worse half stops, as '10,20'; None for none.
      optuna: its settings; None to train every combination.
      output: folder of all runs.
      flags_: flags of all runs.

    Returns:
      The search; Optuna's has no cells yet.

    Raises:
      ValueError: for invalid settings.
    """
    if not 0 < validation < 1:
        raise ValueError(
            f'--validation={validation} must be above 0 and below 1: a search that evaluates on '
            'test data would choose by them.'
        )
    if column and flagfile:
        raise ValueError(f'--column={column} and --flagfile={flagfile}: leave one of them out.')
    read = read_axes(axes, ranges, method)
    # Flags after -- override those of a combination.
    if given := [flag for flag in flags_ if runner.flag_name(flag) == 'flagfile']:
        raise ValueError(f'{given[0]}: --flagfile must be before --; leave it out after --.')
    searched = dict.fromkeys(read, 'is searched')
    command.refuse(flags_, {'validation': 'must be before --', **searched})
    file = str(runner.flag_file(column)) if column else flagfile
    flag_file = (f'--flagfile={file}',) if file else ()
    # Errors are reported once instead of for each combination.
    config = config_flags.parse(
        [*flag_file, f'--method={method}', *flags_, f'--validation={validation}']
    )
    if score == 'personal' and halving:
        raise ValueError(
            f'--score=personal and --halving={halving}: halving compares global models; leave one '
            'of them out.'
        )
    if score == 'personal' and not (config.personal_test and config.local_eval_every):
        raise ValueError(
            '--score=personal needs --personal_test and --local_eval_every, as in -- '
            f'--personal_test=0.2 --local_eval_every={config.rounds}.'
        )
    search = Search(
        method=method,
        axes=read,
        seeds=seeds,
        score=score,
        validation=validation,
        place=column or (Path(flagfile).stem if flagfile else 'flags'),
        flag_file=flag_file,
        run_flags=tuple(flags_),
        config=config,
        output=output,
        shown=(
            *([f'--flagfile=experiments/{column}.flags'] if column else flag_file),
            f'--method={method}',
        ),
        rungs=tuple(parse_halving(halving, config)),
        optuna=optuna,
    )
    if optuna:
        return search
    search = with_combinations(search, grid(read))
    check_some(search)
    return search


def grid(axes: Mapping[str, Axis]) -> list[Combination]:
    """Every combination of the values of axes; the last axis changes fastest."""
    values = [axis for axis in axes.values() if not isinstance(axis, Range)]
    return [flags_of(dict(zip(axes, each, strict=True))) for each in itertools.product(*values)]


def flags_of(values: Mapping[str, str]) -> Combination:
    """The flags of a value for each axis."""
    return tuple(f'--{name}={value}' for name, value in values.items())


def with_combinations(search: Search, combinations: Iterable[Combination]) -> Search:
    """Add the cells of combinations to a search, or why the method refuses them."""
    row = GridRow(search.method, (f'--method={search.method}',))
    cells, skipped = dict(search.cells), dict(search.skipped)
    for combination in combinations:
        if combination in cells or combination in skipped:
            continue
        try:
            cells[combination] = runner.make_cells(
                search.place,
                row,
                search.seeds,
                output=search.output,
                flags=[*search.run_flags, f'--validation={search.validation}'],
                variant=combination,
                base=search.flag_file,
                measured=False,
            )
        except ValueError as error:
            skipped[combination] = str(error).removeprefix(f'{search.place}, {row.name}: ')
    return search._replace(cells=cells, skipped=skipped)


def check_some(search: Search) -> None:
    """Raise a ValueError if the method refuses every combination."""
    if search.skipped and not search.cells:
        reason = next(iter(search.skipped.values()))
        raise ValueError(f'no combination can be run: {reason}')


def halving_of(search: Search) -> Callable[[Sequence[Cell]], Stop]:
    """Cells of a program -> successive halving of their combinations after the rungs."""
    return lambda cells: successive_halving(search.rungs, [cell.variant for cell in cells])
