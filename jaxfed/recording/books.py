"""Where the rounds of a run go: metrics.jsonl and its trackers."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.config import Config
from jaxfed.methods import Part
from jaxfed.recording import records, trackers


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
        if (workdir / records.METRICS).exists():
            trackers.clear(config, workdir)  # they get all rounds again
        track, untracked = stack.enter_context(trackers.follow(config, parts, workdir))
        metrics = records.rewind(workdir, rounds)
        for entry in metrics:
            track(entry)
        lines = stack.enter_context(records.lines(workdir))

        def record(entry: dict[str, Any]) -> None:
            metrics.append(entry)
            lines.record(entry)
            track(entry)

        yield Book(metrics, record, lines.settle, untracked)
