"""The numbers of a benchmark: every method on every data set and skew, over the seeds."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.benchmark.records import Key, Record, key_of
from experiments.benchmark.suite import BASELINE, Place, Suite
from experiments.grid.runner import Cell
from jaxfed.config import DEFAULTS, FIELDS, MAPPINGS
from jaxfed.internal.include import include_again
from jaxfed.metrics.intervals import Interval, Paired, holm, mean_interval, paired

LEVEL = 0.05  # of the adjusted tests


class Trial(NamedTuple):
    """A finished run of tuning."""

    record: Record
    command: str

    @property
    def percent(self) -> float | None:
        """The accuracy on held-out data; None if it diverged."""
        return self.record.numbers.get('final')


class Row(NamedTuple):
    """A method on a data set with a skew."""

    place: Place
    trial: tuple[str, ...]  # the chosen flags
    trials: dict[tuple[str, ...], Trial]  # by flags
    runs: dict[int, Record]  # seed -> finished run
    asked: int  # seeds
    rounds: int
    eval_every: int
    command: str

    @property
    def complete(self) -> bool:
        """Whether all seeds are finished and none diverged."""
        return len(self.values('final')) == self.asked

    @property
    def failed(self) -> int:
        """Runs that diverged."""
        return sum(run.diverged for run in self.runs.values())

    def values(self, column: str) -> dict[int, float]:
        """Seed -> percent, of the runs that did not diverge."""
        return {
            seed: run.numbers[column]
            for seed, run in self.runs.items()
            if column in run.numbers and not run.diverged
        }

    def interval(self, column: str) -> Interval | None:
        """Mean and interval over the seeds."""
        return mean_interval(list(self.values(column).values()))


class Verdict(NamedTuple):
    """A method compared with FedAvg on the same data set and skew."""

    paired: Paired | None
    p: float | None  # adjusted for the methods of the suite
    rank: int | None  # by mean final accuracy, from 1; None if it is not complete

    @property
    def compared(self) -> bool:
        """Whether both have two seeds or more; with equal differences there is no p."""
        return self.paired is not None and self.paired.difference.seeds > 1

    @property
    def sign(self) -> int:
        """1 or -1 if it is above or below FedAvg beyond chance, else 0."""
        if self.paired is None or self.p is None or self.p >= LEVEL:
            return 0
        return 1 if self.paired.difference.mean > 0 else -1


def make_rows(
    tests: Mapping[Place, Sequence[Cell]],
    tuning: Mapping[Place, Sequence[Cell]],
    finished: Mapping[Key, Record],
) -> list[Row]:
    """Collect the finished runs of each place.

    Args:
      tests: the runs of the chosen trials, those of `Work.tests`.
      tuning: the runs of all trials, of the same places.
      finished: all finished runs.

    Returns:
      A row for each place.
    """
    rows = []
    for place, cells in tests.items():
        trials = {
            cell.variant: Trial(finished[key_of(cell)], command_of([cell]))
            for cell in tuning[place]
        }
        runs = {cell.seed: finished[key_of(cell)] for cell in cells if key_of(cell) in finished}
        rows.append(
            Row(
                place,
                cells[0].variant,
                trials,
                runs,
                len(cells),
                cells[0].config.rounds,
                cells[0].config.eval_every,
                command_of(cells),
            )
        )
    return rows


def command_of(cells: Sequence[Cell]) -> str:
    """The command that trains the seeds of a method."""
    config = cells[0].config
    skipped = (*MAPPINGS, 'seed', 'workdir', 'on_divergence', 'data_dir')
    words = ['python', '-m', 'jaxfed', *include_again()]
    for name in FIELDS:
        value = getattr(config, name)
        if name not in skipped and value != DEFAULTS[name]:
            words.append(f'--{name}={value}')
    for name, value in {**config.hyperparameters, **config.partition_settings}.items():
        words.append(f'--{name}={value}')
    return shlex.join([*words, f'--seeds={len(cells)}'])


def verdicts(suite: Suite, rows: Sequence[Row], column: str = 'final') -> dict[Place, Verdict]:
    """Compare the methods of every data set and skew with FedAvg, by one of `records.COLUMNS`.

    The p-values are adjusted for all other methods of the suite, also those that are not finished,
    diverged or were not selected: they must not change when more runs are finished.
    """
    found: dict[Place, Verdict] = {}
    for table in tables(rows).values():
        means = {row.place: _mean(row) for row in table if row.complete}
        order = sorted(means.values(), reverse=True)
        for row, pair in zip(table, _compared(suite, table, column), strict=True):
            rank = 1 + order.index(means[row.place]) if row.complete else None
            found[row.place] = Verdict(*pair, rank)
    return found


def _compared(
    suite: Suite, table: Sequence[Row], column: str
) -> list[tuple[Paired | None, float | None]]:
    """The difference of each row of a table from FedAvg, and its adjusted p-value."""
    others = {*suite.trials, *suite.left_out.get('trials', ())} - {BASELINE}
    baseline = next((row for row in table if row.place.method == BASELINE), None)
    results = [
        None
        if baseline is None or not baseline.complete or row is baseline or not row.complete
        else paired(row.values(column), baseline.values(column))
        for row in table
    ]
    return list(zip(results, holm(results, len(others)), strict=True))


def largest_rates(rows: Sequence[Row]) -> tuple[int, int]:
    """Rows whose chosen trial has the largest of several learning rates, and all such rows."""
    largest = several = 0
    for row in rows:
        rates = [rate for rate in map(learning_rate, row.trials) if rate is not None]
        if len(set(rates)) > 1:
            several += 1
            largest += learning_rate(row.trial) == max(rates)
    return largest, several


def learning_rate(trial: Sequence[str]) -> float | None:
    """The learning rate among the flags of a trial; None if it has that of the suite."""
    name = '--learning_rate='
    found = [float(flag.removeprefix(name)) for flag in trial if flag.startswith(name)]
    return found[-1] if found else None


def _mean(row: Row) -> float:
    """The mean final accuracy, to a thousandth of a point: equal means share a rank."""
    interval = row.interval('final')
    return -1.0 if interval is None else round(interval.mean, 3)


def tables(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """(data set, skew) -> its rows, best first; after them those that are not complete."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.place.dataset, row.place.skew), []).append(row)
    return {
        key: sorted(table, key=lambda row: (row.complete, _mean(row)), reverse=True)
        for key, table in found.items()
    }


def matrix(rows: Sequence[Row]) -> tuple[list[str], np.ndarray]:
    """Methods that are complete in every finished table, and their mean accuracies there.

    Returns:
      The methods, and [blocks, methods] final accuracies.
    """
    methods = list(dict.fromkeys(row.place.method for row in rows))
    by_table = {
        key: table
        for key, table in tables(rows).items()
        if len(table) == len(methods) and all(len(row.runs) == row.asked for row in table)
    }
    complete = [
        method
        for method in methods
        if all(
            any(row.place.method == method and row.complete for row in table)
            for table in by_table.values()
        )
    ]
    means = [
        [_mean(next(row for row in table if row.place.method == method)) for method in complete]
        for table in by_table.values()
    ]
    return complete, np.array(means)
