"""Folders that appear on disk complete or not at all."""

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_ATTEMPTS = 10  # of putting a folder in place while other processes do the same
_ABANDONED = 24 * 3600  # seconds after which an unfinished folder counts as abandoned
_UNFINISHED = '.incomplete'  # suffix of a folder that is being written or removed
_ASIDE = '.replaced'  # suffix of an old folder until the new one is in place
_unfinished: set[Path] = set()  # of this process


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty folder, which replaces `path` if the block ends without an exception.

    If the block or the replacement fails, `path` and its parent stay unchanged. Several processes
    may replace the same path at once: each fills another folder, and the last one remains. If a
    process is killed, the next one restores `path` and removes the abandoned folders.

    Raises:
      OSError: if the folder cannot be made or put in place.
    """
    new_parent = not path.parent.exists()
    _tidy(path)
    folder = _sibling(path, _UNFINISHED)
    _unfinished.add(folder)
    try:
        folder.mkdir(parents=True)
        yield folder
        _put(folder, path)
    finally:
        _remove(folder)
        _unfinished.discard(folder)
        if new_parent:
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # if it is empty


def discard_unfinished() -> None:
    """Removes the unfinished folders of this process before it ends at once."""
    for folder in _unfinished:
        _remove(folder)


def _put(folder: Path, path: Path) -> None:
    """Renames a folder to `path` and replaces what is there."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            # A folder cannot replace one that has files, so the old one moves aside.
            with contextlib.suppress(FileNotFoundError):
                path.rename(_sibling(path, _ASIDE))
            folder.rename(path)
            return
        except OSError as error:
            # Another process has put its folder there; the next attempt moves it aside.
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST) or os.path.lexists(path)
            if attempt == _ATTEMPTS or not taken:
                raise
        finally:
            _tidy(path)  # also after a Ctrl-C between the two


def _tidy(path: Path) -> None:
    """Restores `path` if it was moved aside and not replaced, and removes abandoned folders."""
    aside = sorted(path.parent.glob(f'.{path.name}.*{_ASIDE}'))  # the newest is last
    if aside and not os.path.lexists(path):
        with contextlib.suppress(OSError):  # another process was faster
            aside.pop().rename(path)
    for replaced in aside:
        with contextlib.suppress(OSError):
            # Renamed first, because a half-removed folder must not be restored.
            _remove(replaced.rename(replaced.with_suffix(_UNFINISHED)))
    for folder in path.parent.glob(f'.{path.name}.*{_UNFINISHED}'):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.lstat().st_mtime > _ABANDONED:
                _remove(folder)


def _sibling(path: Path, end: str) -> Path:
    """Returns a new hidden name next to `path`; later names sort after earlier ones."""
    return path.with_name(f'.{path.name}.{time.time_ns()}-{uuid.uuid4().hex}{end}')


def _remove(path: Path) -> None:
    """Removes a folder or a file as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()  # rmtree removes no file and no link
