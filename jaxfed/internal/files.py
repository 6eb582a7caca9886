"""Atomic writes, JSON files, and the folders of this machine."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Failures to read a file that may be intact: of the disk, the network or the limits of a process.
PASSING = {
    errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM, errno.ESTALE,
    errno.ETIMEDOUT,
}  # fmt: skip


def check_writable(path: Path, flag: str) -> None:
    """Raise a ValueError that names the flag unless a directory is writable or can be created."""
    if path.exists() and not path.is_dir():
        raise ValueError(f'{flag}={path} is a file; name a directory.')
    # The caller creates a missing directory in the nearest one that exists.
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f'{flag}={path} cannot be written to; name another directory.')


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an exception."""
    temporary = path.with_name(f'.{path.name}.tmp')
    temporary.unlink(missing_ok=True)  # a link there would lead the write to another file
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file completely; if that raises an OSError, the old file is unchanged."""
    with atomic_path(path) as temporary, temporary.open('xb') as file:
        file.write(content.encode() if isinstance(content, str) else content)


def json_text(value: Any) -> str:
    """Format a value as indented JSON; NaN and infinity raise a ValueError."""
    return json.dumps(value, indent=2, allow_nan=False) + '\n'


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, json_text(value))


def _sync(path: Path) -> None:
    with path.open('rb+') as file:  # Windows syncs writable files only
        os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
      ValueError: if it is damaged or missing.
      OSError: if it cannot be read now, but may be intact.
    """
    advice = f'use a copy of it, or move {path.parent} away.'
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        raise ValueError(f'{path} cannot be read ({error}): it is damaged; {advice}') from error
    if not isinstance(value, dict):
        raise ValueError(f'{path} is not a JSON object: it is damaged; {advice}')
    return value


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of prepared datasets: data_dir, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    folder = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
    return Path(folder).expanduser()


def cache_folder(name: str) -> Path:
    """Return a folder in the cache, $JAXFED_CACHE_DIR or ~/.cache/jaxfed, after making the cache.

    Raises:
      OSError: if the cache cannot be made, or another user may have written to the folder. Windows
        has neither owner nor mode, so this is not checked there.
    """
    root = Path(os.environ.get('JAXFED_CACHE_DIR') or '~/.cache/jaxfed').expanduser()
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    folder = root / name
    if os.name == 'posix':
        content = [folder, *folder.iterdir()] if folder.exists() else []
        # Others cannot reach what is in a folder without search permission, whatever its mode is.
        shared = _check_private(root).st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        for path in content:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                _check_private(path, writable=not shared)
    return folder


def _check_private(path: Path, *, writable: bool = False) -> os.stat_result:
    """Raise a PermissionError if a path belongs to another user, or others can write to it.

    Args:
      path: of a file or folder.
      writable: whether its mode may allow others to write.
    """
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        problem = 'belongs to another user; remove it'
    elif not writable and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = 'can be written by other users; remove it, or use chmod -R go-w if you trust it'
    else:
        return status
    raise PermissionError(f'{path} {problem}, or set JAXFED_CACHE_DIR to a folder of your own')
