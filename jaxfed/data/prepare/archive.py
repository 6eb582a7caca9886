"""Reads files from an archive, or from the folder it was unpacked to.

Nothing is unpacked to disk, so no member can write outside a folder.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from jaxfed.data.errors import explain_errors
from jaxfed.internal.messages import printable

LARGEST = 1 << 30  # bytes of a file; the files of LEAF and TFF have 10 to 20 % of it
IMAGE = 16 << 20  # bytes of an image file
_HEADER = 1 << 20  # bytes of a .tar member that is not a file, such as a header with a long name
_STEP = 1 << 16  # bytes unpacked at once
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Entry(NamedTuple):
    """A file of an archive."""

    name: str
    size: int  # declared bytes; no more are read
    open: Callable[[], IO[bytes]] | None  # None for a link that is not followed


class _Member(tarfile.TarInfo):
    """A member of a .tar file; refuses long headers, which tarfile reads at once."""

    # tarfile says that subclasses may override this; newer versions do not call `frombuf`.
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in tarfile.REGULAR_TYPES and self.size > _HEADER:
            raise ValueError(f'a header of {self.size} bytes')
        return super()._proc_member(tar)  # type: ignore[misc]


def check_checksum(archive: Path, checksum: str | None) -> None:
    """Raises a ValueError if the checksum 'md5:...' or 'sha256:...' of a file differs."""
    if checksum is None or archive.is_dir():
        return
    kind, _, official = checksum.partition(':')
    with _reading(archive), open(archive, 'rb') as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != official:
        raise ValueError(
            f'--archive={archive} has the {kind.upper()} sum {found}, officially {official}: it is '
            'damaged, incomplete or another edition; download it again, or skip this check '
            'with --nochecksum.'
        )


def list_files(archive: Path) -> list[str]:
    """Lists the files of an archive as sorted paths with '/' as separator.

    Hidden files and those of the macOS archiver are omitted. Links in a folder are followed.

    Args:
      archive: a .zip file, a .tar file with any compression, or a folder.

    Raises:
      ValueError: if the archive cannot be read, or has a link that cannot be followed, a duplicate
        file or a file outside its root.
    """
    with _reading(archive):
        entries = [entry for entry in _entries(archive) if _visible(entry.name)]
    link = next((printable(entry.name) for entry in entries if entry.open is None), None)
    if link is not None:
        problem = 'a link: unpack the archive and pass the folder'
        if archive.is_dir():
            problem = 'a broken or circular link, or a special file: remove it'
        raise ValueError(f'--archive={archive} has {link}, {problem}.')
    names = sorted(entry.name for entry in entries)
    for name, following in itertools.pairwise([*names, '']):
        parts = name.split('/')
        if name.startswith('/') or '..' in parts or ':' in parts[0]:
            raise ValueError(
                f'--archive={archive} has a member {name!r} outside its root: download it again.'
            )
        if name == following:
            raise ValueError(
                f'--archive={archive} has the file {printable(name)} twice: download it again.'
            )
    return names


def check_one_copy(archive: Path, what: str, places: Iterable[str]) -> None:
    """Raises a ValueError if `what` is in several folders of an archive; '' is its root."""
    found = sorted(set(places))
    if len(found) > 1:
        raise ValueError(
            f"--archive={archive} has {what} both in '{found[0] or '.'}' and in '{found[1]}': pass "
            'one of the folders, or remove the other.'
        )


def read_files(
    archive: Path, names: Collection[str], *, most: int = LARGEST
) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of files from `list_files`, in the order of the archive.

    Raises:
      ValueError: if the archive is damaged or truncated, or a file has more than `most` bytes.
    """
    wanted = set(names)
    with _reading(archive):
        for entry in _entries(archive):
            if entry.open is None or entry.name not in wanted:
                continue
            if entry.size > most:
                raise ValueError(f'{printable(entry.name)} has more than {most} bytes')
            with entry.open() as file:
                # In steps, because zipfile unpacks everything in a single read.
                data = b''.join(iter(functools.partial(file.read, _STEP), b''))
            yield entry.name, data


def _entries(archive: Path) -> Iterator[_Entry]:
    """Yields the files of an archive; read each one before requesting the next."""
    opened: Any
    if archive.is_dir():
        for path in _walk(archive):
            name = path.relative_to(archive).as_posix()
            opened = functools.partial(open, path, 'rb') if path.is_file() else None
            yield _Entry(name, path.stat().st_size if opened else 0, opened)
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zip_file:
            for entry in zip_file.infolist():
                if entry.compress_type not in _ZIP_METHODS:  # zipfile unpacks the others at once
                    raise ValueError(f'{printable(entry.filename)} is not deflated')
                if not entry.is_dir():
                    link = stat.S_ISLNK(entry.external_attr >> 16)
                    opened = None if link else functools.partial(zip_file.open, entry)
                    yield _Entry(_plain(entry.filename), entry.file_size, opened)
    else:
        # Members are read in file order, because seeking in a compressed file is slow.
        with tarfile.open(archive, tarinfo=_Member) as tar:
            for member in tar:
                if member.isreg() or member.islnk() or member.issym():
                    opened = functools.partial(tar.extractfile, member) if member.isreg() else None
                    yield _Entry(_plain(member.name), member.size, opened)
            # tarfile accepts a file that is truncated or damaged between two members.
            file = cast(IO[bytes], tar.fileobj)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ValueError('it has no end-of-archive block')


def _walk(root: Path) -> Iterator[Path]:
    """Yields the files of a folder, following links, and the circular links."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        paths = [Path(folder, name) for name in folders]
        back = [p for p in paths if p.is_symlink() and any(map(p.samefile, p.absolute().parents))]
        folders[:] = [path.name for path in paths if path not in back]
        yield from (*back, *(Path(folder, name) for name in files))


def _plain(name: str) -> str:
    """Returns a member's name with '/' as separator and without './'."""
    return PurePosixPath(name.replace('\\', '/')).as_posix()


def _visible(name: str) -> bool:
    """Returns whether a file is neither hidden nor written by the macOS archiver."""
    parts = name.split('/')
    return not parts[-1].startswith('.') and '__MACOSX' not in parts


def _reading(archive: Path) -> contextlib.AbstractContextManager[None]:
    """Converts every exception of the libraries that read an archive to a ValueError."""
    # They raise the errors of tarfile, zipfile, zlib and lzma, OSError, EOFError and more.
    return explain_errors(
        f'--archive={archive} cannot be read',
        'it must be a folder, a .zip or a .tar archive; check its permissions, or download it '
        'again if it is damaged',
        keep=MemoryError,
    )
