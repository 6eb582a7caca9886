"""The numbers of a benchmark: every method on every data set and skew, over the seeds."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmark.suite import Place
from experiments.grid import runner
from experiments.grid.runner import Cell, RecordedCell
from experiments.grid.scores import accuracy
from jaxfed.config import DEFAULTS, FIELDS, MAPPINGS
from jaxfed.metrics.intervals import Interval, Paired, holm, mean_interval, paired

BASELINE = 'fedavg'
LEVEL = 0.05  # of the adjusted tests
MIB = 2**20
# Name -> what is measured, of a run.
COLUMNS = {
    'final': 'accuracy after the last round',
    'moving': 'exponential moving average after the last round, weight 0.6 on the past',
    'best': 'best accuracy over the evaluated rounds',
    'quarter': 'accuracy after a quarter of the rounds',
    'half': 'accuracy after half of the rounds',
    'worst class': 'accuracy of the worst class after the last round',
    'forgetting': 'mean over classes of the best earlier accuracy minus the last one',
}
COSTS = {
    'MiB a client': 'sent and received by a client in a round',
    'passes': 'forward passes in a local step beside that of the local model',
    'MiB of memory': 'of the program on a device, divided by its experiments',
    's a run': 'share of the time of the program',
}


class Row(NamedTuple):
    """A method on a data set with a skew."""

    place: Place
    trial: tuple[str, ...]  # the chosen flags
    trials: dict[tuple[str, ...], float | None]  # flags -> percent on held-out data
    runs: dict[int, RecordedCell]  # seed -> finished run
    asked: int  # seeds
    command: str

    @property
    def complete(self) -> bool:
        """Whether all seeds are finished and none diverged."""
        return len(self.values('final')) == self.asked

    @property
    def failed(self) -> int:
        """Runs that diverged."""
        return sum(run.summary['failed'] for run in self.runs.values())

    def values(self, column: str) -> dict[int, float]:
        """Seed -> percent, of the runs that did not diverge."""
        found = {
            seed: measure(run, column)
            for seed, run in self.runs.items()
            if not run.summary['failed']
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def interval(self, column: str) -> Interval | None:
        """Mean and interval over the seeds."""
        return mean_interval(list(self.values(column).values()))


class Verdict(NamedTuple):
    """A method compared with FedAvg on the same data set and skew."""

    paired: Paired | None
    p: float | None  # adjusted for the methods of the table
    rank: int | None  # by mean, from 1; None if it is not complete

    @property
    def sign(self) -> int:
        """1 or -1 if it is better or worse than FedAvg beyond chance, else 0."""
        if self.paired is None or self.p is None or self.p >= LEVEL:
            return 0
        return 1 if self.paired.difference.mean > 0 else -1


def measure(run: RecordedCell, column: str) -> float | None:
    """A number of `COLUMNS` in percent, None if the run did not record it."""
    entries = [entry for entry in run.metrics if entry.get('test_accuracy') is not None]
    if column in ('final', 'moving', 'best'):
        return accuracy(run, column)
    if column in ('quarter', 'half'):
        last = run.config['rounds'] / {'quarter': 4, 'half': 2}[column]
        seen = [entry['test_accuracy'] for entry in entries if entry['round'] <= last]
        return 100 * seen[-1] if seen else None
    if column == 'worst class':
        return 100 * min(entries[-1]['class_accuracy']) if entries else None
    values = [e['forgetting'] for e in run.metrics if e.get('forgetting') is not None]
    return 100 * values[-1] if values else None


def cost(run: RecordedCell) -> dict[str, float]:
    """The numbers of `COSTS` of a run."""
    costs, summary = run.summary['cost'], run.summary
    return {
        'MiB a client': (costs['upload_bytes'] + costs['download_bytes']) / MIB,
        'passes': costs['forward_passes'],
        'MiB of memory': summary['memory_bytes'] / MIB / summary['experiments'],
        's a run': summary['seconds_total'],
    }


def read_rows(
    tests: Mapping[Place, Sequence[Cell]], tuning: Mapping[Place, Sequence[Cell]]
) -> list[Row]:
    """Read the finished runs of a benchmark.

    Args:
      tests: the runs of the chosen trials, from `chosen_cells`.
      tuning: the runs of all trials, of the same places.

    Returns:
      A row for each place.

    Raises:
      ValueError: if a run cannot be read.
    """
    rows = []
    for place, cells in tests.items():
        trials: dict[tuple[str, ...], float | None] = {}
        for cell in tuning[place]:
            run = runner.read(cell)
            trials[cell.variant] = None if run.summary['failed'] else accuracy(run, 'final')
        runs = {cell.seed: runner.read(cell) for cell in cells if runner.is_done(cell)}
        rows.append(Row(place, cells[0].variant, trials, runs, len(cells), command_of(cells)))
    return rows


def command_of(cells: Sequence[Cell]) -> str:
    """The command that trains the seeds of a method."""
    config = cells[0].config
    skipped = (*MAPPINGS, 'seed', 'workdir', 'on_divergence', 'data_dir')
    words = ['python', '-m', 'jaxfed']
    for name in FIELDS:
        value = getattr(config, name)
        if name not in skipped and value != DEFAULTS[name]:
            words.append(f'--{name}={value}')
    words += [f'--{name}={value}' for name, value in config.hyperparameters.items()]
    return shlex.join([*words, f'--seeds={len(cells)}'])


def verdicts(rows: Sequence[Row]) -> dict[Place, Verdict]:
    """Compare the methods of every data set and skew with FedAvg."""
    found: dict[Place, Verdict] = {}
    for table in tables(rows).values():
        baseline = next((row for row in table if row.place.method == BASELINE), None)
        results = [
            None
            if baseline is None or row is baseline or not row.complete
            else paired(row.values('final'), baseline.values('final'))
            for row in table
        ]
        adjusted = holm([result.p_value if result else None for result in results])
        means = {row.place: _mean(row) for row in table if row.complete}
        order = sorted(means.values(), reverse=True)
        for row, result, p in zip(table, results, adjusted, strict=True):
            rank = 1 + order.index(means[row.place]) if row.complete else None
            found[row.place] = Verdict(result, p, rank)
    return found


def _mean(row: Row) -> float:
    interval = row.interval('final')
    return -1.0 if interval is None else interval.mean


def tables(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """(data set, skew) -> its rows, best first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.place.dataset, row.place.skew), []).append(row)
    return {key: sorted(table, key=_mean, reverse=True) for key, table in found.items()}


def matrix(rows: Sequence[Row]) -> tuple[list[str], np.ndarray]:
    """Methods that are complete everywhere, and their mean final accuracies [blocks, methods]."""
    by_table = tables(rows)
    methods = list(dict.fromkeys(row.place.method for row in rows))
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


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each run, numbers unrounded."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(['dataset', 'skew', 'method', 'trial', 'seed', 'diverged', *COLUMNS, *COSTS])
    for row in rows:
        for seed, run in sorted(row.runs.items()):
            numbers: list[Any] = [row.values(column).get(seed, '') for column in COLUMNS]
            costs = cost(run).values()
            diverged = int(bool(run.summary['failed']))
            writer.writerow([*row.place, ' '.join(row.trial), seed, diverged, *numbers, *costs])
    return file.getvalue()
