"""Folders that appear on disk whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import time
import uuid
from collections.abc import Iterator

_ABANDONED = 24 * 3600  # seconds without a write after which nobody works on a folder any more


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a folder next to another one and puts it in its place once it is complete.

    Whatever goes wrong, what was at `path` stays as it was. Several processes may do the same at
    once: each works in a folder of its own and the last one stays. What a process that was killed
    has left is removed by a later one.

    Args:
      path: of the folder, whether it exists or not.

    Yields:
      An empty folder, which becomes `path` when the block ends without an exception.

    Raises:
      OSError: if the folder cannot be made or put in place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f'.{path.name}.*.incomplete'):
        if time.time() - _last_write(left) > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    folder = path.parent / f'.{path.name}.{uuid.uuid4().hex}.incomplete'
    folder.mkdir()
    try:
        yield folder
        _put(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a folder to a path, whatever is there."""
    replaced = folder.with_suffix('.replaced.incomplete')
    # A folder cannot be renamed onto one that has files: that one steps aside.
    with contextlib.suppress(FileNotFoundError):
        path.rename(replaced)
    try:
        folder.rename(path)
    except OSError:
        # Another process was faster, and its folder is as good; else what was there comes back.
        if not path.exists() and replaced.exists():
            replaced.rename(path)
        if not path.exists():
            raise
    shutil.rmtree(replaced, ignore_errors=True)


def _last_write(folder: pathlib.Path) -> float:
    """Returns when a folder or a file in it was last written to, in seconds; now if it is gone."""
    try:
        return max(os.stat(file).st_mtime for file in (folder, *folder.iterdir()))
    except OSError:
        return time.time()
