"""Locks of files and work directories, which end with the process."""

import contextlib
import errno
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK = '.lock'


@contextlib.contextmanager
def exclusive_lock(workdir: Path) -> Iterator[None]:
    """Lock a work directory until the block or the process ends; ValueError if it is locked."""
    path = workdir / LOCK
    try:
        held = lock_file(path, timeout=0)
    except Timeout as error:
        raise ValueError(
            f'--workdir={workdir}: another process uses it; name another directory{removal(error)}.'
        ) from None
    with held:
        yield


def removal(error: Timeout) -> str:
    """Return ', or remove FILE if none does' for a lock that may be left over, else ''."""
    # Without flock a lock of another host, or one whose holder is unknown, cannot expire.
    return f', or remove {error.lock_file} if none does' * ('cannot probe' in str(error))


def lock_file(path: Path, timeout: float = -1) -> contextlib.AbstractContextManager[Any]:
    """Acquire a lock file, which the end of the block or of the process releases.

    Raises:
      Timeout: if another process holds it for `timeout` seconds; -1 waits forever.
      OSError: if it cannot be written, or the file system has no locks.
    """
    try:
        with warnings.catch_warnings():
            # Then the lock is a file that names its process, which is as good on one host.
            warnings.filterwarnings('ignore', 'flock not supported')
            return FileLock(path).acquire(timeout=timeout)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise OSError(
            f'the file system of {path} has no locks ({error.strerror}); use another one'
        ) from error
