"""Reads and validates work directories; each error names the file."""

import base64
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config import PART_SEEDS, SEEDS
from jaxfed.metrics import forgetting as forgetting_of
from jaxfed.metrics import mean_of_last, moving_average, rounds_to_target
from jaxfed.metrics.curves import Curve
from jaxfed.metrics.selection import fields_by_class
from jaxfed.recording import run_files

# Settings that the report needs in config.json.
_STRINGS = ('method', 'dataset', 'partition')
_INTEGERS = {'rounds': 1, 'seed': 0, 'num_clients': 1}  # setting -> smallest value

# Fields of metrics.jsonl: shares, and other numbers.
_SHARES = (
    'test_accuracy',
    'local_accuracy',
    'personal_accuracy',
    'personal_global_accuracy',
    'personal_worst_tenth',
)
_NUMBERS = ('test_loss', 'train_loss', 'seconds')

_MAX_BYTES = 512 * 2**20  # of a file; files of real runs are far smaller
_MAX_PNG_BYTES = 16 * 2**20
_MAX_CLASSES = 10_000
_MAX_INTEGER = 2**64
_MAX_NUMBER = 1e200  # so that sums and squares are finite


class RecordedRun(NamedTuple):
    """The contents of a work directory."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]  # one entry a round, ascending
    summary: dict[str, Any] | None  # None if the run has not ended
    label_counts: np.ndarray | None  # [N, C] integers
    partition_png: str | None  # a data: URI, if there are no label_counts
    warning: str | None  # about a skipped line
    forgetting: dict[int, float]  # round -> forgetting
    test_counts: np.ndarray | None = None  # [C] integers; earlier versions recorded none
    digests: Mapping[str, str] = {}  # 'digest' of the clients, 'data_digest', 'init_digest'

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds in use, in the order of `SEEDS`."""
        seeds = [self.config.get(name) for name in SEEDS]
        return tuple(self.config['seed'] if seed is None else seed for seed in seeds)

    @property
    def seed(self) -> str:
        """The seeds in config.json, as '3' or '3, batch_seed 4'."""
        parts = [name for name in PART_SEEDS if self.config.get(name) is not None]
        return ', '.join([str(self.config['seed']), *(f'{n} {self.config[n]}' for n in parts)])

    @property
    def rounds(self) -> int:
        """The number of the last round."""
        return self.metrics[-1]['round'] if self.metrics else 0

    @property
    def diverged(self) -> bool:
        """Whether training stopped because a number was not finite."""
        return any(entry.get('failed') for entry in self.metrics)

    @property
    def shared(self) -> bool:
        """Whether other runs shared its program, so that its times are shares of theirs."""
        return (self.total('experiments') or 1) > 1

    @property
    def complete(self) -> bool:
        """Whether all rounds were trained."""
        return not self.diverged and self.rounds >= self.config['rounds']

    @property
    def state(self) -> str:
        """The state of the run in a few words."""
        if self.diverged:
            return f'diverged in round {self.rounds}'
        if self.complete:
            return 'finished' if self.summary else 'all rounds, no summary'
        if (self.summary or {}).get('stopped_early'):
            return f'stopped early, {self.rounds} of {self.config["rounds"]} rounds'
        return f'unfinished, {self.rounds} of {self.config["rounds"]} rounds'

    def values(self, field: str) -> dict[int, float]:
        """Return round -> value of a numeric field of metrics.jsonl."""
        return {e['round']: e[field] for e in self.metrics if is_number(e.get(field))}

    def class_accuracy(self) -> dict[int, list[float]]:
        """Return round -> accuracy of each class."""
        name = 'class_accuracy'
        return {e['round']: e[name] for e in self.metrics if e.get(name) is not None}

    def confusion(self) -> np.ndarray | None:
        """Return the last confusion matrix, [C, C] integers."""
        found = [e['confusion'] for e in self.metrics if e.get('confusion') is not None]
        return np.array(found[-1]) if found else None

    def total(self, field: str) -> float | None:
        """Return a number of summary.json."""
        value = (self.summary or {}).get(field)
        return value if is_number(value) else None

    def seconds(self) -> float | None:
        """Return the time of the run; for an unfinished run, the sum over its rounds."""
        seconds = self.values('seconds').values()
        total = self.total('seconds_total')
        return total if total is not None else (sum(seconds) if seconds else None)

    def final_accuracy(self) -> float | None:
        """Return the last test accuracy, in 0..1."""
        return next(reversed(self.values('test_accuracy').values()), None)

    def best_round(self) -> int | None:
        """Return the first round with the highest test accuracy."""
        accuracy = self.values('test_accuracy')
        return max(accuracy, key=accuracy.__getitem__, default=None)

    def best_accuracy(self) -> float | None:
        """Return the highest test accuracy, in 0..1."""
        return max(self.values('test_accuracy').values(), default=None)

    def last10_accuracy(self) -> float | None:
        """Return the mean test accuracy of the last ten rounds, in 0..1."""
        return mean_of_last(self._curve())

    def moving_accuracy(self) -> float | None:
        """Return the last moving average of the test accuracy, in 0..1."""
        return next(reversed(self._moving()), None)

    def best_moving_accuracy(self) -> float | None:
        """Return the highest moving average of the test accuracy, in 0..1."""
        return max(self._moving(), default=None)

    def _moving(self) -> list[float]:
        return moving_average(list(self.values('test_accuracy').values()))

    def personal_accuracy(self) -> float | None:
        """Return the last personal accuracy, in 0..1; None without --personal_test."""
        return next(reversed(self.values('personal_accuracy').values()), None)

    def final_forgetting(self) -> float | None:
        """Return the last forgetting."""
        return next(reversed(self.forgetting.values()), None)

    def rounds_to(self, target: float) -> int | None:
        """Return the first round with an accuracy of at least `target`."""
        return rounds_to_target(self._curve(), target)

    def _curve(self) -> Curve:
        rounds, accuracy = [e['round'] for e in self.metrics], self.values('test_accuracy')
        return rounds, [accuracy.get(round_) for round_ in rounds]


def read_run(path: Path) -> RecordedRun:
    """Read a work directory.

    An incomplete last line of metrics.jsonl, as in a running or killed run, is skipped with a
    warning.

    Raises:
      ValueError: if it is not a work directory, or a file is damaged.
    """
    if not str(path).isprintable():  # a path in another encoding is not printable either
        raise ValueError(f'{str(path)!r} cannot be shown on a page; rename it.')
    if not path.is_dir():
        raise ValueError(f'{path} is not a directory; name runs, sweeps or folders of them.')
    if not (path / run_files.CONFIG).exists():
        raise ValueError(
            f'{path} contains no run: neither it nor a folder in it has a {run_files.CONFIG}.'
        )
    config = _read_object(path / run_files.CONFIG, _check_config)
    summary = _read_object(path / run_files.SUMMARY, _check_summary)
    metrics, warning = _read_metrics(path / run_files.METRICS, ended=summary is not None)
    partition = _read_object(path / run_files.PARTITION, _partition)
    counts, tested, digests = partition or (None, None, {})
    png = _read_png(path / run_files.PARTITION_MAP) if counts is None else None
    run = RecordedRun(path, config, metrics, summary, counts, png, warning, {}, tested, digests)
    return run._replace(forgetting=forgetting(run))


def forgetting(run: RecordedRun) -> dict[int, float]:
    """Return round -> forgetting, recorded or computed from the class accuracies."""
    if recorded := run.values('forgetting'):
        return recorded
    accuracy = run.class_accuracy()
    if not accuracy:
        return {}
    history, counts = np.array(list(accuracy.values()), float), run.test_counts
    if counts is not None and len(counts) == history.shape[1]:
        history = history[:, counts > 0]
    return {
        round_: float(forgetting_of(history[:evaluated]))
        for evaluated, round_ in enumerate(accuracy, 1)
    }


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return type(value) in (int, float)


def _is_integer(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_matrix(value: Any) -> bool:
    """Whether it is a list of equally long lists of integers from 0."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and row and len(row) == len(value[0]) for row in value)
        and all(_is_integer(n, 0) and n < 2**53 for row in value for n in row)
    )


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


@contextlib.contextmanager
def _naming(path: Path, place: str = '') -> Iterator[None]:
    """Add the path, and the place in the file, to errors."""
    try:
        yield
    except (ValueError, OSError) as error:
        reason = ' '.join(str(error).split()).rstrip('.')
        raise ValueError(f'{path} cannot be read: {place}{reason}.') from error


def _read_bytes(path: Path, largest: int = _MAX_BYTES) -> bytes:
    _need(path.is_file(), 'it is not a file')
    size = path.stat().st_size
    _need(size <= largest, f'it has {size} bytes, more than {largest}')
    return path.read_bytes()


def _read_object(path: Path, check: Callable[[dict[str, Any]], Any]) -> Any:
    """Read and check a JSON object; None if there is no file."""
    if not path.exists():
        return None
    with _naming(path):
        return check(_parse(_read_bytes(path)))


def _parse(data: bytes) -> dict[str, Any]:
    """Parse a JSON object of finite numbers and valid strings."""
    try:
        value = json.loads(
            data.decode('utf-8'), parse_float=_finite, parse_int=_bounded, parse_constant=_finite
        )
    except RecursionError:
        raise ValueError('it is nested too deeply') from None
    _need(isinstance(value, dict), 'it is not a JSON object')
    json.dumps(value, ensure_ascii=False).encode()  # raises for half of a pair of surrogates
    return value


def _finite(text: str) -> float:
    value = float(text)
    _need(abs(value) <= _MAX_NUMBER, f'{text} is not a finite number up to {_MAX_NUMBER:g}')
    return value


def _bounded(text: str) -> int:
    _need(len(text) <= 20 and abs(int(text)) <= _MAX_INTEGER, f'{text[:20]}... is too large')
    return int(text)


def _check_config(config: dict[str, Any]) -> dict[str, Any]:
    for name in _STRINGS:
        _need(isinstance(config.get(name), str), f'"{name}" is not a string')
    for name, least in _INTEGERS.items():
        _need(_is_integer(config.get(name), least), f'"{name}" is not an integer from {least}')
    for name in PART_SEEDS:
        seed = config.get(name)
        _need(seed is None or _is_integer(seed, 0), f'"{name}" is not an integer from 0')
    target = config.get('target_accuracy')
    _need(target is None or is_number(target), '"target_accuracy" is not a number')
    for name in ('versions', 'device', 'hyperparameters', 'partition_settings'):
        _need(isinstance(config.get(name, {}), dict), f'"{name}" is not an object')
    parts = config.get('method_parts', [])
    _need(isinstance(parts, list), '"method_parts" is not a list')
    for part in parts:
        fits = isinstance(part, dict) and isinstance(part.get('name'), str)
        fits = fits and isinstance(part.get('hyperparameters'), dict)
        _need(fits, '"method_parts" has one without "name" and "hyperparameters"')
    return config


def _check_summary(summary: dict[str, Any]) -> dict[str, Any]:
    cost = summary.get('cost', {})
    numbers = isinstance(cost, dict) and all(map(is_number, cost.values()))
    _need(numbers, '"cost" is not an object of numbers')
    _need(cost.get('parameter_bytes', 1) > 0, '"parameter_bytes" is not above 0')
    early = summary.get('stopped_early', False)
    _need(isinstance(early, bool), '"stopped_early" is neither true nor false')
    return summary


def _partition(value: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None, dict[str, str]]:
    """The training examples by client and class; the test examples and digests if recorded."""
    counts, tested = value.get('label_counts'), value.get('test_counts')
    _need(_is_matrix(counts), '"label_counts" is not a matrix of counts')
    digests: dict[str, str] = {
        name: value[name] for name in ('digest', 'data_digest', 'init_digest') if name in value
    }
    texts = all(isinstance(digest, str) for digest in digests.values())
    _need(texts, 'a digest is not a string')
    matrix = np.array(counts)
    if tested is None:
        return matrix, None, digests
    fits = _is_matrix([tested]) and len(tested) == matrix.shape[1]
    _need(fits, '"test_counts" is not a count for each class')
    return matrix, np.array(tested), digests


def _read_metrics(path: Path, *, ended: bool) -> tuple[list[dict[str, Any]], str | None]:
    """Return the entries, and a warning if the last line of an unfinished run is incomplete."""
    if not path.exists():
        return [], None
    with _naming(path):
        *lines, last = _read_bytes(path).split(b'\n')
    metrics: list[dict[str, Any]] = []
    for number, line in enumerate([*lines, last] if last else lines, 1):
        try:
            with _naming(path, f'line {number}: '):
                entry = _parse(line)
                _check_entry(entry, metrics)
        except ValueError:
            if number > len(lines) and not ended:
                return metrics, f'{path}: line {number} is incomplete; the report skips it.'
            raise
        metrics.append(entry)
    return metrics, None


def _check_entry(entry: dict[str, Any], before: list[dict[str, Any]]) -> None:
    round_ = entry.get('round')
    later = _is_integer(round_, before[-1]['round'] + 1 if before else 1)
    _need(later, f'"round" is {round_!r}, no integer above that of the line before')
    _need(isinstance(entry.get('failed', False), bool), '"failed" is neither true nor false')
    for name in (*_SHARES, *_NUMBERS):
        value = entry.get(name)
        _need(value is None or is_number(value), f'"{name}" is not a number')
        share = name not in _SHARES or value is None or 0 <= value <= 1
        _need(share, f'"{name}" is {value}, not from 0 to 1')
    for name in fields_by_class():
        if entry.get(name) is not None:
            _check_by_class(name, entry[name], before)
    confusion = entry.get('confusion')
    square = confusion is None or (_is_matrix(confusion) and len(confusion) == len(confusion[0]))
    _need(square, '"confusion" is not a square matrix of counts')


def _check_by_class(name: str, values: Any, before: list[dict[str, Any]]) -> None:
    accuracies = name == 'class_accuracy'
    numbers = isinstance(values, list) and bool(values)
    # Another measure may be undefined for a class.
    numbers = numbers and all(is_number(v) or (v is None and not accuracies) for v in values)
    _need(numbers, f'"{name}" is not a list of numbers')
    _need(len(values) <= _MAX_CLASSES, f'"{name}" has more than {_MAX_CLASSES} classes')
    shares = not accuracies or all(0 <= value <= 1 for value in values)
    _need(shares, f'"{name}" has a number that is not from 0 to 1')
    earlier = next((e[name] for e in reversed(before) if e.get(name) is not None), values)
    _need(len(values) == len(earlier), f'"{name}" has {len(values)} classes, not {len(earlier)}')


def _read_png(path: Path) -> str | None:
    """Read a PNG file as a data: URI; None if there is no file."""
    if not path.exists():
        return None
    with _naming(path):
        data = _read_bytes(path, _MAX_PNG_BYTES)
        _need(data.startswith(b'\x89PNG\r\n\x1a\n'), 'it is not a PNG')
    return f'data:image/png;base64,{base64.b64encode(data).decode()}'
