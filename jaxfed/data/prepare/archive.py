"""Files read straight from an archive, or from the folder that it was unpacked to."""

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import pathlib
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO, Any, NamedTuple, cast

from jaxfed.internal.type_checks import printable

LARGEST = 1 << 30  # bytes of a file; those of LEAF and TFF have one to two tenths of it
IMAGE = 16 << 20  # of an image file
_LONGEST = 1 << 20  # of what a .tar file tells of a member in a header of its own
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


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
      out. In a folder, links are followed.

    Raises:
      ValueError: if it cannot be read, has a link that cannot be followed, has a file twice or has
        one outside of itself.
    """
    with _reading(archive):
        entries = [entry for entry in _entries(archive) if _visible(entry.name)]
    links = [entry.name for entry in entries if entry.open is None]
    if links and archive.is_dir():
        raise ValueError(
            f'archive={archive} has {printable(links[0])}, a link that leads nowhere or back to '
            'where it is, or no file: mend or remove it.'
        )
    if links:
        raise ValueError(
            f'archive={archive} has a member {printable(links[0])} that is a link: unpack the '
            'archive and give the folder.'
        )
    names = sorted(entry.name for entry in entries)
    for name, following in itertools.pairwise([*names, '']):
        if name.startswith('/') or '..' in name.split('/') or ':' in name.split('/')[0]:
            raise ValueError(
                f'archive={archive} has a member {name!r} that leads out of the archive: it is not '
                'the official one and is not read.'
            )
        if name == following:
            raise ValueError(
                f'archive={archive} has the file {printable(name)} twice: download it again.'
            )
    return names


def check_one_copy(archive: pathlib.Path, what: str, places: Iterable[str]) -> None:
    """Checks that an archive has only one copy of what is read from it.

    Args:
      archive: as in `list_files`.
      what: there may be copies of.
      places: each file's folder, or the file itself where there is to be one; '' is the root.

    Raises:
      ValueError: if they are not all the same.
    """
    found = sorted(set(places))
    if len(found) > 1:
        raise ValueError(
            f"archive={archive} has {what} both in '{found[0] or '.'}' and in '{found[1]}': give "
            'the folder of one of them, or an archive without the other.'
        )


def read_files(
    archive: pathlib.Path, names: Collection[str], *, most: int = LARGEST
) -> Iterator[tuple[str, bytes]]:
    """Reads files of an archive one after another, in the archive's own order.

    Args:
      archive: as in `list_files`.
      names: of the files, from `list_files`.
      most: bytes that a file may have; a few of an archive can be packed from very many.

    Yields:
      The name of a file and what is in it.

    Raises:
      ValueError: if the archive is damaged or was cut short, or a file is too large.
    """
    wanted = set(names)
    with _reading(archive):
        for entry in _entries(archive):
            if entry.open and entry.name in wanted:
                _check_size(entry, most)
                with entry.open() as file:
                    data = file.read()
                yield entry.name, data


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
      ValueError: if the archive is damaged or was cut short, or a file is too large.
    """
    if archive.is_dir():
        yield {name: archive / name for name in names}
        return
    paths = {name: scratch / f'unpacked-{number}' for number, name in enumerate(names)}
    try:
        with _reading(archive):
            for entry in _entries(archive):
                if entry.open and entry.name in paths:
                    _check_size(entry, LARGEST)
                    with entry.open() as file, open(paths[entry.name], 'wb') as copy:
                        shutil.copyfileobj(file, copy, 1 << 20)
        yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


class _Member(tarfile.TarInfo):
    """A member of a .tar file, whose headers are not longer than names are."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> '_Member':
        made = super().frombuf(buf, encoding, errors)
        # What tarfile reads at once, as large as it says it is.
        if made.type in _HEADERS and made.size > _LONGEST:
            raise ValueError(f'a header of {made.size} bytes')
        return made


class _Entry(NamedTuple):
    """A file of an archive."""

    name: str
    size: int  # bytes that it says it has, and no more of which are read
    open: Callable[[], IO[bytes]] | None  # None for a link that cannot be followed


def _check_size(entry: _Entry, most: int) -> None:
    """Raises a ValueError for a file that is too large, without unpacking it."""
    if entry.size > most:
        raise ValueError(f'{printable(entry.name)} has more than {most} bytes')


def _entries(archive: pathlib.Path) -> Iterator[_Entry]:
    """Yields the files; what opens one is to be called before the next one is asked for."""
    opened: Any
    if archive.is_dir():
        for path in _walk(archive):
            name = path.relative_to(archive).as_posix()
            size = path.stat().st_size if path.is_file() else 0
            opened = functools.partial(open, path, 'rb') if path.is_file() else None
            yield _Entry(name, size, opened)
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zip_file:
            for entry in zip_file.infolist():
                if not entry.is_dir():
                    link = stat.S_ISLNK(entry.external_attr >> 16)
                    opened = None if link else functools.partial(zip_file.open, entry)
                    yield _Entry(_plain(entry.filename), entry.file_size, opened)
    else:
        # Members are read as they come: in a compressed file there is no quick way back.
        with tarfile.open(archive, tarinfo=_Member) as tar:
            for member in tar:
                if member.isreg() or member.islnk() or member.issym():
                    opened = functools.partial(tar.extractfile, member) if member.isreg() else None
                    yield _Entry(_plain(member.name), member.size, opened)
            # tarfile takes a file that was cut between two members, or damaged there, for whole.
            file = cast(IO[bytes], tar.fileobj)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError('it has no end-of-archive block')


def _walk(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the files of a folder, also by links, and the links to a folder that they are in."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        for name in list(folders):
            path = pathlib.Path(folder, name)
            if path.is_symlink() and any(map(path.samefile, path.absolute().parents)):
                folders.remove(name)
                files.append(name)
        yield from (pathlib.Path(folder, name) for name in files)


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
        if isinstance(error, PermissionError):
            raise ValueError(
                f'archive={archive} cannot be read ({reason}): check permissions.'
            ) from error
        raise ValueError(
            f'archive={archive} cannot be read ({reason}): it is damaged, was cut short, or is '
            'neither a .zip nor a .tar archive nor a folder; download it again.'
        ) from error
