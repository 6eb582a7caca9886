"""Where the rounds of a run go: metrics.jsonl and its trackers."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.config import Config
from jaxfed.internal.files import write_atomic
from jaxfed.methods import Part
from jaxfed.recording import run_files, trackers
from jaxfed.recording.run_files import METRICS


class Book(NamedTuple):
    """The records of a run, open to be written to."""

    metrics: list[dict[str, Any]]  # all entries so far
    record: Callable[[dict[str, Any]], None]
    settle: Callable[[], None]  # returns when all lines are on the disk
    untracked: dict[str, str]  # trackers that failed, and why


@contextlib.contextmanager
def open_book(config: Config, parts: list[Part], workdir: Path, rounds: int) -> Iterator[Book]:
    """Opens the records of a run that has some rounds already.

    Args:
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      workdir: the work directory.
      rounds: that stay; what is recorded of later ones is cut off.

    Yields:
      The book.
    """
    with contextlib.ExitStack() as stack:
        if (workdir / run_files.METRICS).exists():
            trackers.clear(config, workdir)  # they get all rounds again
        track, untracked = stack.enter_context(trackers.follow(config, parts, workdir))
        metrics = rewind(workdir, rounds)
        for entry in metrics:
            track(entry)
        appended = stack.enter_context(lines(workdir))

        def record(entry: dict[str, Any]) -> None:
            metrics.append(entry)
            appended.record(entry)
            track(entry)

        yield Book(metrics, record, appended.settle, untracked)


def rewind(workdir: Path, rounds: int) -> list[dict[str, Any]]:
    """Cut metrics.jsonl off after a round, for a run that goes on from there.

    Args:
      workdir: the work directory.
      rounds: that stay; 0 for none.

    Returns:
      Their entries.

    Raises:
      ValueError: if the file lacks one of them.
    """
    path = workdir / METRICS
    held = path.read_bytes().split(b'\n')[:rounds] if path.exists() else []
    try:
        entries = [json.loads(line) for line in held]
        whole = [entry['round'] for entry in entries] == list(range(1, rounds + 1))
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(
            f'{path} lacks some of the first {rounds} rounds, after which the checkpoint was '
            f'written; begin anew in another directory, or move {workdir} away.'
        )
    write_atomic(path, b''.join(line + b'\n' for line in held))
    return entries


class Lines(NamedTuple):
    """An open metrics.jsonl."""

    record: Callable[[dict[str, Any]], None]  # appends an entry as one line, whole or not at all
    settle: Callable[[], None]  # returns when all lines are on the disk


@contextlib.contextmanager
def lines(workdir: Path) -> Iterator[Lines]:
    """Open metrics.jsonl to append to it.

    Args:
      workdir: the work directory.

    Yields:
      What appends to it.
    """
    with (workdir / METRICS).open('ab', buffering=0) as file:

        def record(entry: dict[str, Any]) -> None:
            line = json.dumps(entry, allow_nan=False).encode() + b'\n'
            before = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
            except OSError:
                # A full disk takes part of a line.
                file.truncate(before)
                raise

        yield Lines(record, lambda: os.fsync(file.fileno()))
