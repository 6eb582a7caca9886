"""The finished runs of a benchmark: read from work directories, kept in one CSV file."""

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.grid import runner
from experiments.grid.runner import Cell, RecordedCell
from experiments.grid.scores import accuracy
from jaxfed.config import Config, settings_that_affect
from jaxfed.internal.csv_text import csv_text, read_cell

MIB = 2**20
# Name -> what is measured, of a run.
COLUMNS = {
    'final': 'accuracy after the last round',
    'moving': 'exponential moving average over the evaluated rounds, weight 0.6 on the past',
    'best': 'best accuracy over the evaluated rounds',
    'quarter': 'accuracy in the last evaluated round of the first quarter',
    'half': 'accuracy in the last evaluated round of the first half',
    'worst class': 'accuracy of the worst class after the last round',
    'forgetting': 'mean over classes of the best accuracy in an earlier evaluated round minus the '
    'last one',
}
COSTS = {
    'MiB a client': 'sent and received by a client in a round',
    'passes': 'forward passes in a local step beside that of the local model; penalties and the '
    "server's work are not counted",
    'data passes': 'over the data of a client in a round, beside training',
    'MiB of memory': 'of the program on a device, divided by its experiments',
    's a run': 'share of the time of the program',
}


class Key(NamedTuple):
    """What was run."""

    stage: str  # 'tuning' on held-out training data, or 'runs' on the test data
    dataset: str
    skew: str
    method: str
    trial: str  # flags
    seed: int


class Record(NamedTuple):
    """A finished run."""

    settings: str  # digest of the settings that affect the numbers
    diverged: bool
    machine: str
    versions: str
    numbers: dict[str, float]  # of COLUMNS, in percent, and COSTS; those that were recorded


def key_of(cell: Cell) -> Key:
    """The key of a cell."""
    dataset, skew = cell.column.split('/')
    return Key(cell.output.name, dataset, skew, cell.row, ' '.join(cell.variant), cell.seed)


def digest(config: Config) -> str:
    """A digest of the settings that affect the numbers and differ from their defaults."""
    skipped = settings_that_affect('machine', 'records')
    default = vars(Config())
    chosen = {
        name: value
        for name, value in vars(config).items()
        if name not in skipped and value != default[name]
    }
    text = json.dumps(chosen, sort_keys=True, default=dict)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def finished(cells: Iterable[Cell], known: Mapping[Key, Record]) -> dict[Key, Record]:
    """The finished cells, from the CSV file or else from their work directories.

    Raises:
      ValueError: if a run has other settings, cannot be read, or judges a trial by test data.
    """
    found = {}
    for cell in cells:
        key = key_of(cell)
        if key in known:
            if known[key].settings != digest(cell.config):
                raise ValueError(
                    f'benchmark.csv holds a run with other settings ({cell.name}): use the same '
                    'suite and flags, or name another folder with --output.'
                )
            found[key] = known[key]
        elif runner.is_done(cell):
            found[key] = record_of(cell, runner.read(cell))
    return found


def record_of(cell: Cell, run: RecordedCell) -> Record:
    """The numbers of a finished run."""
    judged_on = run.summary['evaluated_on']
    if (judged_on == 'validation') != (cell.output.name == 'tuning'):
        raise ValueError(f'{cell.folder} was evaluated on {judged_on} data; move it away.')
    device, versions = run.config['device'], run.config['versions']
    diverged = bool(run.summary['failed'])
    scores = {} if diverged else {name: measure(run, name) for name in COLUMNS}
    recorded = {name: value for name, value in (scores | cost(run)).items() if value is not None}
    numbers = {name: float(f'{value:.6g}') for name, value in recorded.items()}  # as in the file
    machine = f'{device["count"]} {device["kind"]}'
    if device['platform'] == 'cpu':
        machine = f'{device.get("processor", "CPU")}, {device["cpu_cores"]} cores'
    packages = ' '.join(f'{name} {version}' for name, version in versions.items())
    return Record(digest(cell.config), diverged, machine, packages, numbers)


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
        'data passes': costs['data_passes'],
        'MiB of memory': summary['memory_bytes'] / MIB / summary['experiments'],
        's a run': summary['seconds_total'],
    }


def as_csv(records: Mapping[Key, Record]) -> str:
    """A line for each run."""
    names = [*COLUMNS, *COSTS]
    lines: list[list[Any]] = [[*Key._fields, *Record._fields[:-1], *names]]
    for key, record in sorted(records.items()):
        cells = [record.numbers.get(name, '') for name in names]
        lines.append([*key, *record[:-1], *cells])
    return csv_text(lines)


def read_csv(path: Path) -> dict[Key, Record]:
    """Read the file of `as_csv`; nothing if there is none.

    Raises:
      ValueError: if the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        with path.open(newline='') as file:
            lines = csv.DictReader(file, strict=True)
            rows = [_parse(line) for line in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f'{path} cannot be read ({error}); move it away.') from error
    found = dict(rows)
    for key, record in rows:
        if found[key] != record:
            raise ValueError(f'{path} has two lines of {", ".join(map(str, key))}; delete one.')
    return found


def _parse(read: Mapping[Any, Any]) -> tuple[Key, Record]:
    wanted = {*Key._fields, *Record._fields[:-1], *COLUMNS, *COSTS}
    if missing := wanted - {name for name, cell in read.items() if isinstance(cell, str)}:
        raise ValueError(f'a line lacks {", ".join(sorted(missing))}')
    line = {name: read_cell(read[name]) for name in wanted}
    if line['diverged'] not in ('True', 'False'):
        raise ValueError(f'diverged is {line["diverged"]}')
    numbers = {name: float(line[name]) for name in [*COLUMNS, *COSTS] if line[name]}
    diverged = line['diverged'] == 'True'
    for name in [*COSTS, *([] if diverged else ['final'])]:
        if name not in numbers:
            raise ValueError(f'{name} is empty')
    for name, number in numbers.items():
        low = -100 if name == 'forgetting' else 0  # negative where the last accuracy is the best
        high = 100 if name in COLUMNS else math.inf
        if not (math.isfinite(number) and low <= number <= high):
            raise ValueError(f'{name} is {number}')
    record = Record(line['settings'], diverged, line['machine'], line['versions'], numbers)
    seed = int(line['seed'])
    key = Key(line['stage'], line['dataset'], line['skew'], line['method'], line['trial'], seed)
    return key, record
