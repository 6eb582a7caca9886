"""What a person sees during and after training."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import ControlType

from jaxfed.internal.type_checks import printable

_RECENT = 10  # rounds whose mean time says how long the others take
# What is printed may hold names of files, in which brackets and colons are themselves.
TERMINAL = Console(highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def status(text: str, *, quiet: bool) -> Iterator[None]:
    """Say what is going on while it goes on.

    Args:
      text: in a word or two.
      quiet: say nothing.

    Yields:
      Nothing.
    """
    if quiet:
        yield
        return
    began = time.perf_counter()
    with TERMINAL.status(text):
        yield
    TERMINAL.print(f'{text}: {time.perf_counter() - began:.1f} s')


def say(text: str, *, quiet: bool) -> None:
    """Print a line.

    Args:
      text: the line.
      quiet: print nothing.
    """
    if not quiet:
        TERMINAL.print(text, soft_wrap=True)


@contextlib.contextmanager
def progress(rounds: int, *, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the progress over rounds.

    On a terminal as a bar; elsewhere, as in a log file, as about ten lines.

    Args:
      rounds: in all.
      quiet: show nothing.

    Yields:
      A function that takes the metrics of each round done.
    """
    columns = (
        TextColumn('round {task.completed:>4.0f}/{task.total:.0f}'),
        BarColumn(bar_width=14),
        TextColumn('{task.description}'),
    )
    bar = Progress(*columns, console=TERMINAL, disable=quiet or not _moves())
    in_lines = not quiet and not _moves()
    every = max(rounds // 10, 1)
    seconds: deque[float] = deque(maxlen=_RECENT)
    with bar:
        task = bar.add_task('', total=rounds)
        accuracy = '      -'

        def report(entry: dict[str, Any]) -> None:
            nonlocal accuracy
            if entry['test_accuracy'] is not None:
                accuracy = f'{entry["test_accuracy"]:7.2%}'
            loss = entry['train_loss']
            lost = 'failed' if entry.get('failed') else '-'
            done = entry['round']
            seconds.append(entry['seconds'])
            left = time_in_words(sum(seconds) / len(seconds) * (rounds - done))
            text = (
                f'accuracy {accuracy}  loss {lost if loss is None else f"{loss:7.4f}":>7}  '
                f'{left} left'
            )
            bar.update(task, completed=done, description=text)
            if in_lines and (done % every == 0 or done == rounds or entry.get('failed')):
                TERMINAL.print(f'round {done:>4}/{rounds}  {text}', soft_wrap=True)

        yield report


def silence() -> None:
    """Print nothing from here on but errors, as a process that others speak for."""
    TERMINAL.quiet = True


def _moves() -> bool:
    """Whether the output is a terminal that can go back on a line, as TERM=dumb cannot."""
    return TERMINAL.is_terminal and not TERMINAL.is_dumb_terminal


def time_in_words(seconds: float) -> str:
    """A time as a person reads it, '42 s' or '1:02:33'.

    Args:
      seconds: the time.

    Returns:
      Seconds below two minutes, else hours, minutes and seconds.
    """
    whole = round(seconds)
    if whole < 120:
        return f'{whole} s'
    return f'{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}'


@contextlib.contextmanager
def grid_progress(
    runs: int, rounds: int, *, quiet: bool
) -> Iterator[tuple[Callable[..., None], Callable[[dict[str, Any]], None]]]:
    """Show the progress over many runs.

    On a terminal as a bar over all their rounds; elsewhere as a line for each run or group of runs
    in one program, and about ten for the rounds of a group.

    Args:
      runs: how many.
      rounds: of all of them together.
      quiet: show nothing.

    Yields:
      A function that takes the name of what begins, its rounds in all and how many runs it is, one
      if it is not told; and one that takes the metrics of each of their rounds.
    """
    columns = (
        TextColumn('{task.fields[name]}'),
        BarColumn(bar_width=12),
        TextColumn('{task.percentage:>3.0f}%'),
        TimeElapsedColumn(),
        TextColumn('+'),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=TERMINAL, disable=quiet or not _moves())
    in_lines = not quiet and not _moves()
    begun, began, of_run, done, group, best = 0, time.perf_counter(), 0, 0, 1, 0.0
    with bar:
        task = bar.add_task('', total=rounds, name='')

        def begin(name: str, rounds_in_all: int, together: int = 1) -> None:
            nonlocal begun, of_run, done, group, best
            # What a run that ended early, or that another process is at, has left out.
            bar.update(task, advance=of_run - done)
            first = begun + 1
            begun, of_run, done, group, best = begun + together, rounds_in_all, 0, together, 0.0
            text = f'{first}/{runs}' if together == 1 else f'{first}-{begun}/{runs}'
            bar.update(task, name=f'{text} {name}')
            if in_lines:
                TERMINAL.print(
                    f'{text} {name} ({time_in_words(time.perf_counter() - began)})', soft_wrap=True
                )

        def report(entry: dict[str, Any]) -> None:
            nonlocal done, best
            before, done = done, done + 1
            bar.update(task, advance=1)
            best = max(best, entry['test_accuracy'] or 0.0)
            if in_lines and group > 1 and 10 * done // of_run > 10 * before // of_run:
                TERMINAL.print(
                    f'  round {entry["round"]}, {100 * done // of_run} %: best accuracy '
                    f'{best:.2%} ({time_in_words(time.perf_counter() - began)})',
                    soft_wrap=True,
                )

        yield begin, report


def show_warning(message: str) -> None:
    """Print to standard error what is not as it could be.

    Args:
      message: what it is and what would do.
    """
    _errors().print(f'warning: {_in_a_line(message)}', soft_wrap=True)


def show_error(message: str) -> None:
    """Print an error to standard error, in words, without a traceback.

    Args:
      message: what is wrong and what would do.
    """
    _errors().print(f'error: {_in_a_line(message)}', soft_wrap=True)


def show_last_words(message: str) -> None:
    """Print an error where the process is ended in the middle of anything.

    Args:
      message: what is left.
    """
    if _moves():  # A bar may be on the line, and the cursor hidden.
        TERMINAL.control(
            Control.move_to_column(0),
            Control((ControlType.ERASE_IN_LINE, 2)),
            Control.show_cursor(True),
        )
    show_error(message)


def _in_a_line(message: str) -> str:
    """A message without line breaks and control characters, which names of files may hold."""
    return printable(' '.join(message.splitlines()))


def _errors() -> Console:
    return Console(stderr=True, highlight=False, markup=False, emoji=False)
