"""What a work directory holds, read strictly: JSON of the expected types, or an error naming it."""

import base64
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxfed.config import SEEDS, Config
from jaxfed.recording import run_files

_LARGEST = 512 * 2**20  # bytes of a file, far above what any run leaves
_LARGEST_PICTURE = 16 * 2**20
_MOST_CLASSES = 10_000
_LARGEST_INTEGER = 2**64
_LARGEST_NUMBER = 1e200  # sums and squares of it are still finite
_PNG = b'\x89PNG\r\n\x1a\n'

# Fields with a number for each class, of which a report makes use.
BY_CLASS = ('class_accuracy', 'class_forgetting')
_SHARES = ('test_accuracy', 'local_accuracy', 'personal_accuracy', 'personal_global_accuracy')


class Run(NamedTuple):
    """One work directory."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]  # a round each, ascending
    summary: dict[str, Any] | None  # None for a run that has not ended
    label_counts: np.ndarray | None  # [N, C] integers
    picture: str | None  # of the partition, as data: URI, where there are no label_counts
    warning: str | None  # of what was left out
    forgetting: dict[int, float]  # round -> see `forgetting`

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of everything random, and those of its parts, in the order of `SEEDS`."""
        given = [self.config.get(name) for name in SEEDS]
        return tuple(self.config['seed'] if seed is None else seed for seed in given)

    @property
    def seed(self) -> str:
        """The same in few words, '3' or '3, batch_seed 4'."""
        own = [f'{n} {self.config[n]}' for n in SEEDS[1:] if self.config.get(n) is not None]
        return ', '.join([str(self.config['seed']), *own])

    @property
    def rounds(self) -> int:
        """Number of the last round."""
        return self.metrics[-1]['round'] if self.metrics else 0

    @property
    def diverged(self) -> bool:
        """Whether training ended because a number was not finite."""
        return any(entry.get('failed') for entry in self.metrics)

    @property
    def complete(self) -> bool:
        """Whether it has trained all of its rounds."""
        return not self.diverged and self.rounds >= self.config['rounds']

    @property
    def given_up(self) -> bool:
        """Whether its training was ended early, as one of the worse half of a sweep."""
        return bool((self.summary or {}).get('stopped_early'))

    @property
    def state(self) -> str:
        """Whether it has ended and how, in a few words."""
        if self.diverged:
            return f'diverged in round {self.rounds}'
        if self.complete:
            return 'finished' if self.summary else 'all rounds, no summary'
        if self.given_up:
            return f'given up after {self.rounds} of {self.config["rounds"]} rounds'
        return f'unfinished, {self.rounds} of {self.config["rounds"]} rounds'

    def values(self, field: str) -> dict[int, float]:
        """A scalar of metrics.jsonl.

        Args:
          field: its name.

        Returns:
          Round -> value, of rounds that have one.
        """
        return {
            entry['round']: entry[field] for entry in self.metrics if is_number(entry.get(field))
        }

    def by_class(self, field: str) -> dict[int, list[float]]:
        """A list of metrics.jsonl with a number for each class.

        Args:
          field: out of BY_CLASS.

        Returns:
          Round -> C numbers, of rounds that have them.
        """
        return {e['round']: e[field] for e in self.metrics if e.get(field) is not None}

    def confusion(self) -> np.ndarray | None:
        """The last confusion matrix, [C, C] integers; None where none was recorded."""
        found = [e['confusion'] for e in self.metrics if e.get('confusion') is not None]
        return np.array(found[-1]) if found else None


def read_run(path: Path) -> Run:
    """Read a work directory.

    Args:
      path: of the directory.

    Returns:
      The run. A last line that is not whole, as of a run that is being written or was killed, is
      left out and told in its warning.

    Raises:
      ValueError: naming the file, if it is no work directory or a file is not what jaxfed writes.
    """
    if not str(path).isprintable():  # nor of another encoding than the page's
        raise ValueError(f'{str(path)!r} cannot be shown on a page; rename it.')
    if not path.is_dir():
        raise ValueError(f'{path} is no directory; name work directories of runs.')
    if not (path / run_files.CONFIG).exists():
        raise ValueError(f'{path} holds no run: it has no {run_files.CONFIG}.')
    config = _checked(path / run_files.CONFIG, _read_object, _check_config)
    summary = None
    if (path / run_files.SUMMARY).exists():
        summary = _checked(path / run_files.SUMMARY, _read_object, _check_summary)
    metrics: list[dict[str, Any]] = []
    warning = None
    if (path / run_files.METRICS).exists():
        metrics, warning = _read_metrics(path / run_files.METRICS, ended=summary is not None)
    counts = picture = None
    if (path / run_files.PARTITION).exists():
        counts = _checked(path / run_files.PARTITION, _read_object, _label_counts)
    elif (path / 'partition.png').exists():
        picture = _read_picture(path / 'partition.png')
    run = Run(path, config, metrics, summary, counts, picture, warning, {})
    return run._replace(forgetting=forgetting(run))


def forgetting(run: Run) -> dict[int, float]:
    """Forgetting by round, as recorded, or else from the recorded class accuracies.

    F^T = mean_c (max_{t < T} A_c^t - A_c^T), and 0 in the first round

    Args:
      run: the run.

    Returns:
      Round -> mean over classes of best accuracy so far minus that of now.

    Reference:
      Lee et al., Preservation of Global Knowledge by Not-True Distillation in Federated Learning,
      NeurIPS 2022, section 2.1.
    """
    if recorded := run.values('forgetting'):
        return recorded
    held = run.by_class('class_accuracy')
    if not held:
        return {}
    history = np.array(list(held.values()), float)
    best = np.maximum.accumulate(history)
    means = (best[:-1] - history[1:]).mean(axis=1)
    return dict(zip(held, [0.0, *means.tolist()], strict=True))


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Settings with those that a run of an older version does not tell.

    Args:
      config: of a run.

    Returns:
      All settings.
    """
    made = json.loads(json.dumps(dataclasses.asdict(Config())))
    return {**made, 'method_parts': [], **config}


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number.

    Args:
      value: as `json` reads it.

    Returns:
      True for integers and floats, False for true and false.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(path: Path, read: Callable[[str], Any], check: Callable[[Any], Any]) -> Any:
    """What a file holds, or an error that names the file."""
    try:
        value = read(_text(path))
        return check(value)
    except (ValueError, OSError) as error:
        raise ValueError(f'{path} cannot be read: {_plain(error)}.') from error


def _plain(error: Exception) -> str:
    return ' '.join(str(error).split()).rstrip('.')


def _text(path: Path) -> str:
    return _bytes(path, _LARGEST).decode('utf-8')


def _bytes(path: Path, largest: int) -> bytes:
    if not path.is_file():
        raise ValueError('it is no file')
    if (size := path.stat().st_size) > largest:
        raise ValueError(f'it has {size} bytes, more than {largest}')
    return path.read_bytes()


def _read_object(text: str) -> dict[str, Any]:
    """A JSON object of finite numbers and sound strings."""
    try:
        value = json.loads(text, parse_float=_finite, parse_int=_bounded, parse_constant=_finite)
    except RecursionError:
        raise ValueError('it is nested too deeply') from None
    _need(isinstance(value, dict), 'it is no JSON object')
    text.encode()
    json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates cannot be shown
    return value


def _finite(text: str) -> float:
    value = float(text)
    _need(abs(value) <= _LARGEST_NUMBER, f'{text} is no finite number up to {_LARGEST_NUMBER:g}')
    return value


def _bounded(text: str) -> int:
    _need(len(text) <= 20 and abs(int(text)) <= _LARGEST_INTEGER, f'{text[:20]}... is too large')
    return int(text)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_config(config: dict[str, Any]) -> dict[str, Any]:
    for name in ('method', 'dataset', 'partition'):
        _need(isinstance(config.get(name), str), f'"{name}" is no string')
    for name, least in (('rounds', 1), ('seed', 0), ('num_clients', 1)):
        value = config.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        _need(whole, f'"{name}" is no integer from {least}')
    for name in SEEDS[1:]:
        value = config.get(name)
        whole = value is None or (type(value) is int and value >= 0)
        _need(whole, f'"{name}" is no integer from 0')
    target = config.get('target_accuracy')
    _need(target is None or is_number(target), '"target_accuracy" is no number')
    for name in ('versions', 'device', 'hyperparameters', 'partition_settings'):
        _need(isinstance(config.get(name, {}), dict), f'"{name}" is no object')
    parts = config.get('method_parts', [])
    _need(isinstance(parts, list), '"method_parts" is no list')
    for part in parts:
        fits = isinstance(part, dict) and isinstance(part.get('name'), str)
        fits = fits and isinstance(part.get('hyperparameters'), dict)
        _need(fits, '"method_parts" has one without "name" and "hyperparameters"')
    return config


def _check_summary(summary: dict[str, Any]) -> dict[str, Any]:
    cost = summary.get('cost', {})
    _need(isinstance(cost, dict) and all(map(is_number, cost.values())), '"cost" is no numbers')
    _need(cost.get('parameter_bytes', 1) > 0, '"parameter_bytes" is not above 0')
    early = summary.get('stopped_early', False)
    _need(isinstance(early, bool), '"stopped_early" is neither true nor false')
    return summary


def _label_counts(value: dict[str, Any]) -> np.ndarray:
    counts = value.get('label_counts')
    _need(_is_matrix(counts), '"label_counts" is no matrix of counts')
    return np.array(counts)


def _is_matrix(value: Any) -> bool:
    """Whether it is a list of equally long lists of integers from 0."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and row and len(row) == len(value[0]) for row in value)
        and all(type(n) is int and 0 <= n < 2**53 for row in value for n in row)
    )


def _read_metrics(path: Path, *, ended: bool) -> tuple[list[dict[str, Any]], str | None]:
    """The rounds, and a warning if the last line is not whole, which a run that ended has."""
    try:
        lines = _bytes(path, _LARGEST).split(b'\n')
    except (ValueError, OSError) as error:
        raise ValueError(f'{path} cannot be read: {_plain(error)}.') from error
    if not lines[-1]:
        lines.pop()
        whole = len(lines)
    else:
        whole = len(lines) - 1  # the last one may be cut off
    metrics: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = _read_object(line.decode('utf-8'))
            _check_entry(entry, metrics)
        except ValueError as error:
            if number > whole and not ended:
                return metrics, f'{path}: line {number} is not whole and is left out.'
            raise ValueError(f'{path} cannot be read: line {number}: {_plain(error)}.') from error
        metrics.append(entry)
    return metrics, None


def _check_entry(entry: dict[str, Any], before: list[dict[str, Any]]) -> None:
    round_ = entry.get('round')
    later = type(round_) is int and round_ > (before[-1]['round'] if before else 0)
    _need(later, f'"round" is {round_!r}, no integer above that of the line before')
    _need(isinstance(entry.get('failed', False), bool), '"failed" is neither true nor false')
    for name in (*_SHARES, 'test_loss', 'train_loss', 'seconds'):
        value = entry.get(name)
        _need(value is None or is_number(value), f'"{name}" is no number')
        share = name not in _SHARES or value is None or 0 <= value <= 1
        _need(share, f'"{name}" is {value}, not from 0 to 1')
    for name in BY_CLASS:
        _check_by_class(name, entry.get(name), before)
    confusion = entry.get('confusion')
    square = confusion is None or (_is_matrix(confusion) and len(confusion) == len(confusion[0]))
    _need(square, '"confusion" is no square matrix of counts')


def _check_by_class(name: str, value: Any, before: list[dict[str, Any]]) -> None:
    if value is None:
        return
    numbers = isinstance(value, list) and bool(value) and all(map(is_number, value))
    _need(numbers, f'"{name}" is no list of numbers')
    _need(len(value) <= _MOST_CLASSES, f'"{name}" has more than {_MOST_CLASSES} classes')
    shares = name != 'class_accuracy' or all(0 <= v <= 1 for v in value)
    _need(shares, f'"{name}" has a number that is not from 0 to 1')
    earlier = next((e[name] for e in reversed(before) if e.get(name) is not None), value)
    _need(len(value) == len(earlier), f'"{name}" has {len(value)} classes, not {len(earlier)}')


def _read_picture(path: Path) -> str:
    try:
        data = _bytes(path, _LARGEST_PICTURE)
        _need(data.startswith(_PNG), 'it is no PNG')
    except (ValueError, OSError) as error:
        raise ValueError(f'{path} cannot be read: {_plain(error)}.') from error
    return f'data:image/png;base64,{base64.b64encode(data).decode()}'
