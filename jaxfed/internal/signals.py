"""A request to stop, by Ctrl-C or a scheduler: met at the end of a round, or where it comes."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and did so after a round."""

    def __init__(self, message: str, signal_: int) -> None:
        super().__init__(message)
        self.signal = signal_


@contextlib.contextmanager
def ending(leave: Callable[[str], None]) -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the process, with the exit statuses 130 and 143.

    They end it where they come, as kill -9 does. An exception instead may be lost in one of JAX's
    callbacks, and where it cuts off a compilation, the interpreter often crashes on its way out.
    Outside the main thread, where Python allows no handlers, this does nothing.

    Args:
      leave: called before, with 'interrupted' or 'terminated'.

    Yields:
      Nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        try:
            leave('terminated' if number == signal.SIGTERM else 'interrupted')
        finally:
            os._exit(128 + number)

    before = _handlers()
    _handle(dict.fromkeys(before, end))
    try:
        yield
    finally:
        _handle(before)


@contextlib.contextmanager
def stopping(say: Callable[[str], None]) -> Iterator[Callable[[], int | None]]:
    """Takes note of SIGINT and SIGTERM instead of ending the process; the second one ends it.

    Outside the main thread, where Python allows no handlers, it does nothing.

    Args:
      say: told, in words, that the request was noted.

    Yields:
      A function that gives the signal that came, None if none did.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        _handle(before)
        say(f'{signal.Signals(number).name}: stopping after this round; once more stops at once')

    before = _handlers()
    _handle(dict.fromkeys(before, note))
    try:
        yield lambda: came[0] if came else None
    finally:
        _handle(before)


def _handlers() -> dict[signal.Signals, Any]:
    """How SIGINT and SIGTERM are handled now, without those that are ignored."""
    now = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    # Who started the process may have it ignore one, as nohup does.
    return {one: handler for one, handler in now.items() if handler != signal.SIG_IGN}


def _handle(handlers: dict[signal.Signals, Any]) -> None:
    for one, handler in handlers.items():
        # None stands for a handler that Python did not install.
        signal.signal(one, signal.SIG_DFL if handler is None else handler)
