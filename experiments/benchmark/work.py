"""A benchmark on disk: what is finished, and training the rest."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from experiments.benchmark.records import Key, Record, finished, key_of, read_csv
from experiments.benchmark.suite import Place, Suite, choose, places, test_cells, tuning_cells
from experiments.grid import runner, training
from experiments.grid.runner import Cell
from jaxfed.internal import console

CSV = 'benchmark.csv'


class Work(NamedTuple):
    """A suite on disk."""

    suite: Suite
    output: Path  # folder of all runs
    flags: Sequence[str]  # of all runs
    trials: Mapping[Place, Sequence[Cell]]
    finished: dict[Key, Record]

    @property
    def tests(self) -> dict[Place, list[Cell]]:
        """The test runs of the places whose trials are all finished."""
        chosen = {
            place: choose(self.suite, place, cells, self.finished)
            for place, cells in self.trials.items()
        }
        return {
            place: test_cells(self.suite, place, trial, self.output, self.flags)
            for place, trial in chosen.items()
            if trial is not None
        }

    def at(self, dataset: str, skew: str) -> Self:
        """The part of one table."""
        here = [place for place in self.trials if place[:2] == (dataset, skew)]
        return self._replace(trials={place: self.trials[place] for place in here})


def begin(suite: Suite, output: Path, run_flags: Sequence[str]) -> Work:
    """Read what is finished; errors as of `records.finished`."""
    trials = {place: tuning_cells(suite, place, output, run_flags) for place in places(suite)}
    return look(Work(suite, output, run_flags, trials, {}))


def look(work: Work) -> Work:
    """Add the runs in the CSV file or in work directories that are finished now."""
    work = work._replace(finished=read_csv(work.output / CSV) | work.finished)
    work = work._replace(finished=work.finished | finished(flat(work.trials), work.finished))
    return work._replace(finished=work.finished | finished(flat(work.tests), work.finished))


def flat(cells: Mapping[Place, Sequence[Cell]]) -> list[Cell]:
    """The cells of all places."""
    return [cell for group in cells.values() for cell in group]


def unfinished(cells: Iterable[Cell], work: Work) -> list[Cell]:
    """The cells that have to be trained."""
    return [cell for cell in cells if key_of(cell) not in work.finished]


def tables(work: Work) -> dict[tuple[str, str], Work]:
    """The parts of a benchmark: (data set, skew) -> its table."""
    return {place[:2]: work.at(*place[:2]) for place in work.trials}


def check(work: Work) -> None:
    """Check a run of every unfinished table.

    Raises:
      ValueError: for settings that the data does not allow.
      OSError: if data cannot be read.
    """
    # Whether a partition fits the data depends on the table: an error comes before all training.
    every = [*flat(work.trials), *flat(work.tests)]
    done = (cell for cell in every if key_of(cell) in work.finished)
    left = [unfinished([*flat(p.trials), *flat(p.tests)], p) for p in tables(work).values()]
    runner.check_same_data(done, itertools.chain(*left))
    runner.check(cells[0] for cells in left if cells)


def train(work: Work, *, together: int) -> tuple[Work, int]:
    """Tune and test the methods of one table after another.

    Returns:
      What is finished, and the number of failed runs.
    """
    failed = 0
    for (dataset, skew), part in tables(work).items():
        for stage in ('tuning', 'tests'):
            cells = unfinished(flat(part.trials if stage == 'tuning' else part.tests), part)
            if cells:
                console.say(f'{dataset}, {skew}, {stage}:')
                failed += len(training.train(cells, work.output, together=together))
                part = look(part)
    return look(work), failed
