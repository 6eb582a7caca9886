"""The plan of a benchmark: the time and memory of its unfinished runs, before any training."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from experiments.benchmark.work import Work, unfinished
from experiments.grid.runner import Cell
from jaxfed.internal import console
from jaxfed.runs.dry_run import estimate, time_round
from jaxfed.runs.experiment import make_experiment, total_steps
from jaxfed.runs.memory import memory_errors, size_in_words
from jaxfed.runs.prepare import prepare


class Planned(NamedTuple):
    """The unfinished runs of a method on a data set that have as many rounds."""

    dataset: str
    method: str
    rounds: int
    runs: int
    seconds: float  # of one run, from one round of the first
    compile_seconds: float  # of the programs of all skews and stages
    memory: float  # bytes on a device, of one run


def plan(work: Work) -> list[Planned]:
    """Time one round of every method on every data set; writes nothing.

    Args:
      work: the benchmark.

    Returns:
      An entry for each data set, method and number of rounds with unfinished runs.

    Raises:
      ValueError: for invalid settings or data.
      OSError: if data cannot be read.
    """
    left: dict[tuple[str, str, int], list[Cell]] = {}
    programs: dict[tuple[str, str, int], set[tuple[str, bool]]] = {}
    suite, tests = work.suite, work.tests
    for place, trials in work.trials.items():
        # The runs of a trial that is not chosen yet cost what the first trial costs.
        seeds = unfinished(tests[place], work) if place in tests else [trials[0]] * suite.seeds
        for tunes, cells in ((True, unfinished(trials, work)), (False, seeds)):
            for cell in cells:
                key = place.dataset, place.method, cell.config.rounds
                left.setdefault(key, []).append(cell)
                # Held-out data makes another program.
                programs.setdefault(key, set()).add((place.skew, tunes))
    with console.status('timing one round of each', quiet=False):
        return [_time(*key, cells, len(programs[key])) for key, cells in left.items()]


def in_words(planned: Sequence[Planned]) -> str:
    """A table and a summary of a plan, as text."""
    if not planned:
        return 'nothing is left to train.'
    head = f'{"data set":12} {"method":16} {"rounds":>6} {"runs":>5} {"s a run":>8}'
    lines = [f'{head} {"hours":>6} {"memory":>9}']
    for one in planned:
        lines.append(
            f'{one.dataset:12} {one.method:16} {one.rounds:6} {one.runs:5} {one.seconds:8.3g} '
            f'{one.runs * one.seconds / 3600:6.2f} {size_in_words(one.memory):>9}'
        )
    runs = sum(one.runs for one in planned)
    seconds = sum(one.runs * one.seconds for one in planned)
    compiling = sum(one.compile_seconds for one in planned)
    lines.append(
        f'{console.counted(runs, "run")} to train, about {console.time_in_words(seconds)} and '
        f'{console.time_in_words(compiling)} of compilation; memory is that of one '
        'experiment of a program'
    )
    return '\n'.join(lines)


def _time(dataset: str, method: str, rounds: int, cells: Sequence[Cell], programs: int) -> Planned:
    cell = cells[0]
    try:
        experiment = make_experiment(dataclasses.replace(cell.config, workdir=None))
        prepared = prepare([experiment])
        with memory_errors(experiment, prepared.mesh, prepared.lanes):
            timed = time_round(experiment, prepared)
    except ValueError as error:
        raise ValueError(f'{dataset}, {method}: {error}') from error
    seconds = estimate(cell.config, timed, total_steps(experiment, rounds))
    compiling = programs * prepared.compile_seconds
    return Planned(dataset, method, rounds, len(cells), seconds, compiling, prepared.needed)
