"""What several processes do in one folder of experiments: each trains or finishes its own."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import Timeout

from jaxfed.internal import console
from jaxfed.internal.locks import lock_file, removal
from jaxfed.recording.run_files import CLAIMS
from jaxfed.sweeps.training import finish_program, has_shared_checkpoints, lock_of, unwritten

_TURN = 20.0  # seconds of waiting for a lock before its holder is asked for
_TURNS = 9  # a slow disk may take minutes


class RunsElsewhere(ValueError):
    """Another process trains the experiment."""


def finish_programs(folder: Path) -> None:
    """Write the summaries that processes had yet to write when they ended.

    Args:
      folder: the parent of the work directories.

    Raises:
      ValueError: if a record of such a program is damaged.
      OSError: if a summary cannot be written.
    """
    if unwritten(folder):
        with wait_for_lock(folder / CLAIMS):
            for path in unwritten(folder):
                finish_program(path, folder)


@contextlib.contextmanager
def claim(workdirs: Mapping[int, Path], folder: Path) -> Iterator[dict[int, Exception]]:
    """Lock work directories, and finish their programs that others have trained; yield the errors.

    Raises:
      ValueError: if the lock of `folder` seems to be left over.
    """
    failed: dict[int, Exception] = {}
    with contextlib.ExitStack() as locks:
        # Only one process at a time takes locks; else two processes could share out a group.
        with contextlib.ExitStack() as turn:
            with contextlib.suppress(OSError):  # every work directory raises it again
                folder.mkdir(parents=True, exist_ok=True)
                turn.enter_context(wait_for_lock(folder / CLAIMS))
            for i, workdir in workdirs.items():
                try:
                    workdir.parent.mkdir(parents=True, exist_ok=True)
                    locks.enter_context(lock_file(lock_of(workdir), timeout=0))
                except Timeout as error:
                    text = 'another process is running it'
                    if advice := removal(error):  # or the lock is left over
                        failed[i] = ValueError(f'{text}: wait{advice}.')
                    else:
                        failed[i] = RunsElsewhere(f'{text}.')
                except OSError as error:
                    failed[i] = error
            try:
                for path in unwritten(folder):
                    finish_program(path, folder)
            except (ValueError, OSError) as error:
                failed |= {i: error for i, w in workdirs.items() if has_shared_checkpoints(w)}
        yield failed


def wait_for_lock(path: Path) -> contextlib.AbstractContextManager[Any]:
    """Acquire a lock that every process holds for a short time.

    Raises:
      ValueError: if the lock seems to be left over.
    """
    turns = 0
    while True:
        try:
            return lock_file(path, timeout=_TURN)
        except Timeout as error:
            advice = removal(error)
        turns += 1
        if turns == 1:
            console.show_warning(f'waiting for another process, which holds {path}.')
        if turns >= _TURNS and advice:
            raise ValueError(f'another process holds {path}: wait for it{advice}.')
