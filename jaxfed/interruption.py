"""A request to stop, by Ctrl-C or a scheduler, met at the end of a round."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and did so after a round."""

    def __init__(self, message: str, signal_: int) -> None:
        super().__init__(message)
        self.signal = signal_


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
    # Who started the process may have it ignore one, as nohup does.
    both = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.getsignal(one) for one in both}
    caught = [one for one in both if before[one] != signal.SIG_IGN]

    def restore() -> None:
        for one in caught:
            handler = before[one]
            # None stands for a handler that Python did not install.
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        restore()
        say(f'{signal.Signals(number).name}: stopping after this round; once more stops at once')

    for one in caught:
        signal.signal(one, note)
    try:
        yield lambda: came[0] if came else None
    finally:
        restore()
