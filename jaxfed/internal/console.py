"""Lines, warnings and errors in the terminal."""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import ControlType

from jaxfed.internal.messages import printable


class Terminal(Console):
    """A console that drops what a full device or a closed pipe does not take."""

    def __init__(self, **options: Any) -> None:
        # File names may contain rich's markup and emoji codes, so both are off.
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Go on without output; rich would end the process."""
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:
            del self._buffer[:]


TERMINAL = Terminal()
MINUTE = 60.0  # seconds, the longest time without a line if the output is not a terminal


def escape_unknown_characters() -> None:
    """Print characters that the encoding of the output lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')


@contextlib.contextmanager
def status(text: str, *, quiet: bool) -> Iterator[None]:
    """Show the elapsed time while the block runs, then print the seconds it took."""
    if quiet:
        yield
        return
    start = time.perf_counter()
    columns = SpinnerColumn(), TextColumn('{task.description}', markup=False), TimeElapsedColumn()
    with (
        Progress(*columns, console=TERMINAL, transient=True, disable=not can_animate()) as bar,
        minute_lines(quiet=can_animate()) as show,
    ):
        bar.add_task(plain(text), total=None)
        show(f'{text} ...')
        yield
    TERMINAL.print(f'{plain(text)}: {time.perf_counter() - start:.1f} s')


@contextlib.contextmanager
def minute_lines(*, timed: bool = False, quiet: bool) -> Iterator[Callable[..., None]]:
    """Print the newest status at least once a minute while the block runs.

    Args:
      timed: append the elapsed time to every line; repeated lines always have it.
      quiet: print nothing.

    Yields:
      `show(text, now=True)`, which sets the status and prints it at once if `now` is True.
    """
    start = printed = time.perf_counter()
    status, repeated, ended = '', False, threading.Event()
    lock = threading.Lock()  # a line belongs to one status

    def write() -> None:
        nonlocal printed, repeated
        printed = time.perf_counter()
        if status:
            elapsed = f' ({time_in_words(printed - start)})' if timed or repeated else ''
            say(status + elapsed, quiet=quiet)
            repeated = True

    def show(text: str, now: bool = True) -> None:
        nonlocal status, repeated
        with lock:
            status, repeated = text, False
            if now:
                write()

    def repeat() -> None:
        while not ended.wait(printed + MINUTE - time.perf_counter()):
            with lock:
                if time.perf_counter() - printed >= MINUTE:
                    write()

    if quiet:
        yield show
        return
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()


def say(text: str, *, quiet: bool = False) -> None:
    """Print a line unless `quiet`."""
    if not quiet:
        TERMINAL.print(plain(text), soft_wrap=True)


def plain(text: str) -> str:
    """Escape the control characters of a text, except line breaks: names come from files."""
    return '\n'.join(map(printable, text.split('\n')))


def silence() -> None:
    """Print only warnings and errors from now on; every process but the first one does."""
    TERMINAL.quiet = True


def can_animate() -> bool:
    """Return whether the output is a terminal that can redraw a line; TERM=dumb cannot."""
    return TERMINAL.is_terminal and not TERMINAL.is_dumb_terminal


def is_watched() -> bool:
    """Return whether a person sees the output: in a terminal or a notebook."""
    return TERMINAL.is_terminal or TERMINAL.is_jupyter


def time_in_words(seconds: float) -> str:
    """Format seconds as '42 s' below two minutes, else as '1:02:33'."""
    whole = round(seconds)
    if whole < 120:
        return f'{whole} s'
    return f'{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}'


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, '1 round' or '2 rounds'."""
    return f'{number} {noun}' + 's' * (number != 1)


def show_warning(message: str) -> None:
    """Print a one-line warning to standard error."""
    _print_error(f'warning: {message}')


def show_error(message: str) -> None:
    """Print a one-line error to standard error."""
    _print_error(f'error: {message}')


def flush() -> None:
    """Write the rest of the output before the process ends; drop what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # the process may have been started without
                stream.flush()
        except OSError:
            # Else Python's last flush fails, too, and changes the exit status.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_last_words(message: str) -> None:
    """Print an error just before the process ends, at any point of its output."""
    if can_animate():  # a progress bar may be on the line, and the cursor hidden
        TERMINAL.control(
            Control.move_to_column(0),
            Control((ControlType.ERASE_IN_LINE, 2)),
            Control.show_cursor(True),
        )
    show_error(message)


def _print_error(message: str) -> None:
    line = printable(' '.join(message.splitlines()))  # file names may contain control characters
    # A new console: sys.stderr may have been replaced since the import.
    Terminal(stderr=True).print(line, soft_wrap=True)
