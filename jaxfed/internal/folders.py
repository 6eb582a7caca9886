"""Folders that appear on disk whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import time
import uuid
from collections.abc import Iterator

_ABANDONED = 24 * 3600  # seconds without a write after which nobody works on a folder any more
_unfinished: set[pathlib.Path] = set()  # of this process
_ASIDE = '.replaced.incomplete'  # end of the name of what stepped aside, and may have to come back


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a folder next to another one and puts it in its place once it is complete.

    Whatever goes wrong, what was at `path` stays as it was. Several processes may do the same at
    once: each works in a folder of its own and the last one stays. What a process that was killed
    has left is removed by a later one, and what it had moved away from `path` is put back.

    Args:
      path: of the folder, whether it exists or not.

    Yields:
      An empty folder, which becomes `path` when the block ends without an exception.

    Raises:
      OSError: if the folder cannot be made or put in place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _tidy(path)
    folder = path.parent / f'.{path.name}.{uuid.uuid4().hex}.incomplete'
    _unfinished.add(folder)
    try:
        folder.mkdir()
        yield folder
        _put(folder, path)
    finally:
        _remove(folder)
        _unfinished.discard(folder)


def discard_unfinished() -> None:
    """Remove what `replacing` was about to put in place, for a process that ends at once."""
    for folder in _unfinished:
        _remove(folder)


def _tidy(path: pathlib.Path) -> None:
    """Puts back what a killed process had moved away from a path, and removes what it has left."""
    aside = sorted(path.parent.glob(f'.{path.name}.*{_ASIDE}'), key=_renamed)
    if aside and not os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):  # its own process lives, and was faster
            aside.pop().rename(path)
    for left in aside:
        _discard(left)
    for left in path.parent.glob(f'.{path.name}.*.incomplete'):
        if not left.name.endswith(_ASIDE) and time.time() - _last_write(left) > _ABANDONED:
            _remove(left)


def _put(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a folder to a path, whatever is there."""
    for last in False, False, True:
        replaced = path.parent / f'.{path.name}.{uuid.uuid4().hex}{_ASIDE}'
        try:
            # A folder cannot be renamed onto one that has files: that one steps aside.
            with contextlib.suppress(FileNotFoundError):
                path.rename(replaced)
            folder.rename(path)
            return
        except OSError:
            # Another process may have put its own there in between, which then steps aside too.
            if last or not os.path.lexists(path):
                raise
        finally:
            # A Ctrl-C between the two comes here as well.
            if os.path.lexists(path):
                _discard(replaced)
            elif os.path.lexists(replaced):
                replaced.rename(path)


def _discard(replaced: pathlib.Path) -> None:
    """Removes a folder that had stepped aside."""
    with contextlib.suppress(OSError):
        # By another name first: what is half removed is not to be put back.
        name = f'{replaced.name.removesuffix(_ASIDE)}.incomplete'
        _remove(replaced.rename(replaced.with_name(name)))


def _remove(path: pathlib.Path) -> None:
    """Removes a folder or a file as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _renamed(path: pathlib.Path) -> float:
    """Returns when a folder got its name, in seconds, whatever is in it; now if it is gone."""
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return time.time()


def _last_write(path: pathlib.Path) -> float:
    """Returns when a folder or a file in it was last written to, in seconds; now if it is gone."""
    try:
        files = path.iterdir() if path.is_dir() else ()
        return max(os.lstat(file).st_mtime for file in (path, *files))
    except OSError:
        return time.time()
