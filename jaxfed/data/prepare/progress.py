"""What a person sees while a dataset is prepared."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_console = Console(highlight=False)
_T = TypeVar('_T')


def track(items: Iterable[_T], text: str, total: int, *, quiet: bool) -> Iterator[_T]:
    """Shows how far the work on items has come.

    On a terminal as a bar; elsewhere, as in a log file, as about ten lines.

    Args:
      items: to be worked on.
      text: what is done to them.
      total: how many there are.
      quiet: show nothing.

    Yields:
      The items.
    """
    columns = (
        TextColumn('{task.description}'),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn('left'),
    )
    in_lines = not quiet and not _console.is_terminal
    every = max(total // 10, 1)
    began = time.perf_counter()
    with Progress(*columns, console=_console, disable=quiet or not _console.is_terminal) as bar:
        task = bar.add_task(text, total=total)
        for done, item in enumerate(items, 1):
            yield item
            bar.update(task, completed=done)
            if in_lines and (done % every == 0 or done == total):
                left = (time.perf_counter() - began) / done * (total - done)
                _console.print(f'{text} {done}/{total}  {left:.0f} s left')


def say(text: str) -> None:
    """Prints a line.

    Args:
      text: of the line.
    """
    _console.print(text, markup=False, soft_wrap=True)
