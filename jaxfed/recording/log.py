"""Records the rounds of a run in metrics.jsonl and its trackers."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.config import Config
from jaxfed.internal.files import write_atomic
from jaxfed.methods import Part
from jaxfed.recording import trackers
from jaxfed.recording.run_files import METRICS, warn_of_other_code


class Log(NamedTuple):
    """The open records of a run."""

    metrics: list[dict[str, Any]]  # all entries so far
    record: Callable[[dict[str, Any]], None]
    settle: Callable[[], None]  # waits until all lines are on the disk
    digest: Callable[[], str]  # of all lines
    trackers_failed: dict[str, str]  # tracker -> reason


@contextlib.contextmanager
def open_log(config: Config, parts: list[Part], workdir: Path, rounds: int) -> Iterator[Log]:
    """Open the records of a run that continues after `rounds` rounds; remove later lines."""
    with contextlib.ExitStack() as stack:
        if (workdir / METRICS).exists():
            trackers.clear(workdir)  # they receive all rounds again
        if rounds:
            warn_of_other_code(workdir, config, parts)
        track, failed = stack.enter_context(trackers.follow(config, parts, workdir))
        metrics = rewind(workdir, rounds)
        for entry in metrics:
            track(entry)
        file = stack.enter_context(open_lines(workdir))
        hashed = _hash(_lines(workdir, rounds))

        def record(entry: dict[str, Any]) -> None:
            metrics.append(entry)
            hashed.update(append(file, entry))
            track(entry)

        yield Log(metrics, record, partial(settle, file), hashed.hexdigest, failed)


def rewind(workdir: Path, rounds: int) -> list[dict[str, Any]]:
    """Remove the lines of metrics.jsonl after the first `rounds`; return the remaining entries."""
    entries = read(workdir, rounds)
    write_atomic(workdir / METRICS, b''.join(_lines(workdir, rounds)))
    return entries


def read(workdir: Path, rounds: int, digest: str | None = None) -> list[dict[str, Any]]:
    """Return the entries of the first rounds.

    Args:
      workdir: of the run.
      rounds: their number.
      digest: that a `Log` had for their lines; None if it is not known.

    Raises:
      ValueError: if a line is torn, missing or another one.
    """
    lines = _lines(workdir, rounds)
    try:
        entries = [json.loads(line) for line in lines]
        complete = [entry['round'] for entry in entries] == list(range(1, rounds + 1))
    except (ValueError, KeyError, TypeError):
        complete = False
    if complete and digest in (None, _hash(lines).hexdigest()):
        return entries
    reason = 'has changed in' if complete else 'lacks some of'
    raise ValueError(
        f'{workdir / METRICS} {reason} the first {rounds} rounds: it is damaged; use a copy of it'
    )


def _lines(workdir: Path, rounds: int) -> list[bytes]:
    path = workdir / METRICS
    lines = path.read_bytes().split(b'\n')[:rounds] if path.exists() else []
    return [line + b'\n' for line in lines]


def _hash(lines: Sequence[bytes]) -> Any:
    return hashlib.blake2b(b''.join(lines), digest_size=16)


def open_lines(workdir: Path) -> FileIO:
    """Open metrics.jsonl for `append`."""
    # Unbuffered, so a line is in the file when `append` returns.
    return (workdir / METRICS).open('ab', buffering=0)


def settle(file: FileIO) -> None:
    """Wait until all lines are on the disk."""
    _check_exists(file)  # else a checkpoint would make a new folder, without settings
    os.fsync(file.fileno())


def _check_exists(file: FileIO) -> None:
    if not os.fstat(file.fileno()).st_nlink:
        raise FileNotFoundError(errno.ENOENT, 'removed during the run', file.name)


def append(file: FileIO, entry: dict[str, Any]) -> bytes:
    """Append an entry as one line, completely or not at all; return the line."""
    _check_exists(file)
    line = json.dumps(entry, allow_nan=False).encode() + b'\n'
    before = file.seek(0, os.SEEK_END)
    try:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
    except OSError:
        # A full disk may store a part of the line.
        file.truncate(before)
        raise
    return line
