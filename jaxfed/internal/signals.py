"""Requests to stop, by Ctrl-C or a scheduler: end the process at once, or after a round."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal stopped training after a round."""

    def __init__(self, message: str, signal_: int) -> None:
        super().__init__(message)
        self.signal = signal_


@contextlib.contextmanager
def ending(leave: Callable[[str], None]) -> Iterator[None]:
    """Makes SIGINT and SIGTERM end the process at once, with the exit statuses 130 and 143.

    JAX's callbacks may lose an exception, and an exception during a compilation often crashes the
    interpreter at exit. This does nothing outside the main thread, where Python allows no handlers.

    Args:
      leave: called with 'interrupted' or 'terminated' before the process ends.
    """

    def end(number: int, frame: FrameType | None) -> None:
        try:
            leave('terminated' if number == signal.SIGTERM else 'interrupted')
        finally:
            os._exit(128 + number)

    previous = _handlers()
    _install(dict.fromkeys(previous, end))
    try:
        yield
    finally:
        _install(previous)


@contextlib.contextmanager
def stopping(say: Callable[[str], None]) -> Iterator[Callable[[], int | None]]:
    """Records SIGINT and SIGTERM instead of ending the process; the second signal ends it.

    Outside the main thread, where Python allows no handlers, this records nothing.

    Args:
      say: called with a line about the recorded signal.

    Yields:
      A function that returns the recorded signal, or None.
    """
    received: list[int] = []
    previous = _handlers()

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        _install(previous)
        name = signal.Signals(number).name
        say(f'{name}: stopping after this round; a second signal stops at once')

    _install(dict.fromkeys(previous, record))
    try:
        yield lambda: received[0] if received else None
    finally:
        _install(previous)


def _handlers() -> dict[signal.Signals, Any]:
    """Returns the replaceable handlers of SIGINT and SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # The parent process may have made this one ignore a signal, as nohup does.
    return {number: h for number, h in handlers.items() if h != signal.SIG_IGN}


def _install(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        # getsignal returns None for a handler that Python did not install.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
