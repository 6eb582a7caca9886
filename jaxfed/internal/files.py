"""Files that are written whole or not at all, and the folders of this machine."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def check_writable(path: Path, flag: str) -> None:
    """See that a directory can be written to.

    Args:
      path: the directory, which need not exist.
      flag: that names it.

    Raises:
      ValueError: if it is no directory or cannot be written to.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f'{flag}={path} is a file; name a directory.')
    # An absent directory is made later; what matters now is the nearest one that exists.
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f'{flag}={path} cannot be written to; name another directory.')


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + '\n'


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all.

    Args:
      path: the file.
      value: what it holds.
    """
    write_whole(path, _json(value).encode())


def write_all_json(values: Mapping[Path, Any]) -> None:
    """Write JSON files, all or none as far as that goes: they get their names when all are written.

    Args:
      values: file -> what it holds.

    Raises:
      OSError: if one cannot be written; then none is.
    """
    staged: dict[Path, Path] = {}
    try:
        for path, value in values.items():
            staged[path] = _stage(path, _json(value).encode())
        for path, temporary in staged.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Args:
      path: the file.
      content: what it holds.

    Raises:
      OSError: if it cannot be written; what was there before stays.
    """
    temporary = _stage(path, content)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _stage(path: Path, content: bytes) -> Path:
    """Writes what a file is to hold beside it, on the disk."""
    temporary = path.with_name(f'.{path.name}.tmp')
    try:
        with temporary.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a dictionary.

    Args:
      path: the file.

    Returns:
      The dictionary.

    Raises:
      ValueError: naming the file, if it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{path} cannot be read ({error}): it is damaged.') from error
    if not isinstance(value, dict):
        raise ValueError(f'{path} holds no settings or numbers by name: it is damaged.')
    return value


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of packages, of those that are installed.

    Args:
      packages: their names.

    Returns:
      Name -> version.
    """
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@contextlib.contextmanager
def alone(workdir: Path) -> Iterator[None]:
    """Keeps other processes out of a work directory; the lock goes with the process.

    Args:
      workdir: the work directory.

    Yields:
      Nothing.

    Raises:
      ValueError: if another process is at work in it.
    """
    lock = FileLock(workdir / '.lock', timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f'--workdir={workdir}: another process is at work in it; name another directory.'
        ) from None
    try:
        yield
    finally:
        lock.release()


def data_folder(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """Returns the folder of prepared datasets.

    Args:
      data_dir: the folder; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Returns:
      The folder, whether it exists or not.
    """
    root = pathlib.Path(data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets')
    return root.expanduser()


def cache_folder() -> pathlib.Path:
    """Returns where jaxfed keeps what can be made again: $JAXFED_CACHE_DIR or ~/.cache/jaxfed."""
    return pathlib.Path(
        os.environ.get('JAXFED_CACHE_DIR') or pathlib.Path('~/.cache/jaxfed').expanduser()
    )
