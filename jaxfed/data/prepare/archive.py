"""Files read straight from an archive, or from the folder that it was unpacked to."""

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import pathlib
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from typing import IO, Any, cast


def check_checksum(archive: pathlib.Path, checksum: str | None) -> None:
    """Checks that an archive is the published one, byte for byte; a folder has no checksum.

    Args:
      archive: the file or folder.
      checksum: 'md5:...' or 'sha256:...', None for no check.

    Raises:
      ValueError: if it is another file.
    """
    if checksum is None or archive.is_dir():
        return
    kind, _, official = checksum.partition(':')
    with _reading(archive), open(archive, 'rb') as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != official:
        raise ValueError(
            f'archive={archive} has the {kind.upper()} sum {found}, officially {official}: it is '
            'damaged, incomplete or another edition; download it again, or read it all the same '
            'with --nochecksum.'
        )


def list_files(archive: pathlib.Path) -> list[str]:
    """Lists what is in an archive without unpacking it.

    Args:
      archive: a .zip file, a .tar file with whatever compression, or a folder.

    Returns:
      Sorted paths inside it, with '/' between their parts; hidden files and macOS' own are left
      out.

    Raises:
      ValueError: if it cannot be read, has a file twice or has one outside of itself.
    """
    with _reading(archive):
        names = sorted(name for name, _ in _entries(archive) if _visible(name))
    for name, following in itertools.pairwise([*names, '']):
        if name.startswith('/') or '..' in name.split('/') or ':' in name.split('/')[0]:
            raise ValueError(
                f'archive={archive} has a member {name!r} that leads out of the archive: it is not '
                'the official one and is not read.'
            )
        if name == following:
            raise ValueError(f'archive={archive} has the file {name} twice: download it again.')
    return names


def read_files(archive: pathlib.Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Reads files of an archive one after another, in the archive's own order.

    Args:
      archive: as in `list_files`.
      names: of the files, from `list_files`.

    Yields:
      The name of a file and what is in it.

    Raises:
      ValueError: if the archive is damaged or was cut short.
    """
    wanted = set(names)
    with _reading(archive):
        for name, opened in _entries(archive):
            if name in wanted:
                with opened() as file:
                    data = file.read()
                yield name, data


@contextlib.contextmanager
def unpacked(
    archive: pathlib.Path, names: Collection[str], scratch: pathlib.Path
) -> Iterator[dict[str, pathlib.Path]]:
    """Puts files of an archive on disk, for as long as the block lasts.

    Args:
      archive: as in `list_files`.
      names: of the files, from `list_files`.
      scratch: an existing folder with room for them.

    Yields:
      Where each of them is; in a folder, where it was all the time.

    Raises:
      ValueError: if the archive is damaged or was cut short.
    """
    if archive.is_dir():
        yield {name: archive / name for name in names}
        return
    paths = {name: scratch / f'unpacked-{number}' for number, name in enumerate(names)}
    try:
        with _reading(archive):
            for name, opened in _entries(archive):
                if name in paths:
                    with opened() as file, open(paths[name], 'wb') as copy:
                        shutil.copyfileobj(file, copy, 1 << 20)
        yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def _entries(archive: pathlib.Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yields each file's name and what opens it, which is to be called before the next one."""
    if archive.is_dir():
        for folder, _, files in os.walk(archive):
            for file in files:
                path = pathlib.Path(folder, file)
                opened = cast(Any, functools.partial(open, path, 'rb'))
                yield path.relative_to(archive).as_posix(), opened
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zip_file:
            for entry in zip_file.infolist():
                if not entry.is_dir():
                    opened = cast(Any, functools.partial(zip_file.open, entry))
                    yield _plain(entry.filename), opened
    else:
        # Members are read as they come: in a compressed file there is no quick way back.
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isreg():
                    # Of a regular file it is never None.
                    opened = cast(Any, functools.partial(tar.extractfile, member))
                    yield _plain(member.name), opened


def _plain(name: str) -> str:
    """Returns a member's name with '/' between its parts and without './'."""
    return pathlib.PurePosixPath(name.replace('\\', '/')).as_posix()


def _visible(name: str) -> bool:
    """Tells whether a file is neither hidden nor of macOS' archiver."""
    parts = name.split('/')
    return not parts[-1].startswith('.') and '__MACOSX' not in parts


@contextlib.contextmanager
def _reading(archive: pathlib.Path) -> Iterator[None]:
    """Turns what the libraries raise while reading an archive into one ValueError."""
    try:
        yield
    except Exception as error:  # tarfile's, zipfile's, zlib's, lzma's, OSError, EOFError and more
        if isinstance(error, MemoryError) or getattr(error, 'errno', None) == errno.ENOSPC:
            raise  # which is nothing the archive could help
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f'archive={archive} cannot be read ({reason}): it is damaged, was cut short, or is '
            'neither a .zip nor a .tar archive nor a folder; download it again.'
        ) from error
