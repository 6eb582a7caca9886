"""Reading of archives and folders, also of damaged and hostile ones."""

import gzip
import hashlib
import os
import tarfile
import zipfile

import numpy as np
import pytest

from jaxfed.data.prepare import RECIPES
from jaxfed.data.prepare.archive import check_checksum, list_files, read_files
from tests import memory
from tests.data.archives import (
    WRITERS,
    assert_refused,
    cinic_files,
    tff_files,
    write_folder,
    write_tar,
    write_zip,
)


def test_checksum(tmp_path):
    archive = write_tar(tmp_path / 'a.tar.gz', cinic_files())
    found = hashlib.md5(archive.read_bytes()).hexdigest()
    message = rf'a\.tar\.gz has the MD5 sum {found}, officially 6ee4d0c996905fe9.*--nochecksum'
    assert_refused(tmp_path, 'cinic10', archive, message, RECIPES['cinic10'].official)
    check_checksum(archive, f'md5:{found}')
    check_checksum(tmp_path, 'md5:of a folder is not checked')
    tff = write_tar(tmp_path / 'fed_emnist.tar.bz2', tff_files(), 'w:bz2')
    official = RECIPES['femnist'].official
    assert_refused(tmp_path, 'femnist', tff, 'SHA256 sum .* officially fe1ed5a502', official)


@pytest.mark.parametrize('kind', ['.tar.gz', '.tar.bz2', '.zip'])
def test_truncated_archive(tmp_path, kind):
    rng = np.random.default_rng(0)
    noise = {f'train/cat/{i}.png': rng.bytes(3000) for i in range(100)}
    archive = WRITERS[kind](tmp_path / f'bad{kind}', noise)
    archive.write_bytes(archive.read_bytes()[:200_000])
    assert_refused(tmp_path, 'cinic10', archive, rf'bad{kind} cannot be read .*damaged')


def test_tar_cut_between_members(tmp_path):
    archive = write_tar(tmp_path / 'bad.tar', cinic_files(), 'w')
    with tarfile.open(archive) as tar:
        last = tar.getmembers()[-1].offset
    whole = archive.read_bytes()
    # Cut there, cut within the next header, and damaged there.
    for data in whole[:last], whole[: last + 300], whole[:last] + b'?' * 2048:
        archive.write_bytes(data)
        assert_refused(
            tmp_path, 'cinic10', archive, r'bad\.tar cannot be read \(it has no end-of-archive'
        )


@pytest.mark.parametrize('kind', [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_a_tar(tmp_path, kind):
    archive = write_tar(tmp_path / 'bad.tar', cinic_files(), 'w')
    with tarfile.open(archive, 'a') as tar:
        link = tarfile.TarInfo('train/cat/9.png')
        link.type, link.linkname = kind, 'train/cat/0.png'
        tar.addfile(link)
    message = r'has train/cat/9\.png, a link: unpack the archive and pass the folder'
    assert_refused(tmp_path, 'cinic10', archive, message)


def test_links_of_a_folder_are_followed(tmp_path):
    folder = write_folder(tmp_path / 'a', cinic_files(per_class=1))
    (folder / 'train').rename(tmp_path / 'elsewhere')
    (folder / 'train').symlink_to(tmp_path / 'elsewhere')
    assert 'train/cat/0.png' in list_files(folder)
    back = folder / 'valid' / 'back'
    for target in tmp_path, 'nowhere', back:
        back.symlink_to(target)
        with pytest.raises(ValueError, match=r'a has valid/back, a broken or circular link'):
            list_files(folder)
        back.unlink()


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / 'a', cinic_files(per_class=1))
    scandir = os.scandir

    def closed(path):
        if os.fspath(path).endswith('train'):
            raise PermissionError(13, 'Permission denied', path)
        return scandir(path)

    monkeypatch.setattr(os, 'scandir', closed)
    with pytest.raises(ValueError, match=r"cannot be read .*denied: '.*/a/train'.*permissions"):
        list_files(folder)


def test_damaged_member_and_other_files(tmp_path):
    archive = write_zip(tmp_path / 'bad.zip', {'a.json': bytes(1000), 'b.json': b'b'})
    damaged = bytearray(archive.read_bytes())
    damaged[40] ^= 255
    archive.write_bytes(damaged)
    assert list_files(archive) == ['a.json', 'b.json']
    with pytest.raises(ValueError, match=r'bad\.zip cannot be read'):
        list(read_files(archive, ['a.json']))
    assert list(read_files(archive, ['b.json'])) == [('b.json', b'b')]
    text = tmp_path / 'text.gz'
    text.write_bytes(gzip.compress(b'no archive'))
    for path, message in (text, 'cannot be read'), (tmp_path / 'none', 'does not exist'):
        assert_refused(tmp_path, 'cinic10', path, rf'archive={path} {message}')


def test_a_file_that_unpacks_to_too_much(tmp_path):
    archive = tmp_path / 'bomb.zip'
    with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as made:
        made.writestr('a.png', bytes(1 << 20))
    assert archive.stat().st_size < 1 << 12
    with pytest.raises(ValueError, match=r'bomb\.zip.*a\.png has more than 1000 bytes'):
        list(read_files(archive, ['a.png'], most=1000))
    ((_, data),) = read_files(archive, ['a.png'], most=1 << 20)
    assert len(data) == 1 << 20


def test_a_file_that_unpacks_to_more_than_it_declares(tmp_path):
    archive = tmp_path / 'bomb.zip'
    with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as made:
        made.writestr('a.png', bytes(1 << 25))
        made.infolist()[0].file_size = 1000  # as the directory at the end says
    with (
        memory.at_most(mib=4),
        pytest.raises(ValueError, match=r'bomb\.zip cannot be read \(Bad CRC-32'),
    ):
        list(read_files(archive, ['a.png']))


def test_a_file_of_a_tar_that_unpacks_to_too_much(tmp_path):
    files = {'a.png': bytes(1 << 25), 'b.png': b'b'}
    archive = write_tar(tmp_path / 'bomb.tar.gz', files)
    assert archive.stat().st_size < 1 << 16
    with memory.at_most(mib=4):
        assert list_files(archive) == ['a.png', 'b.png']
        assert list(read_files(archive, ['b.png'])) == [('b.png', b'b')]
        with pytest.raises(ValueError, match=r'bomb\.tar\.gz.*a\.png has more than 1000 bytes'):
            list(read_files(archive, ['a.png'], most=1000))


@pytest.mark.parametrize('method', [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_that_cannot_be_read_in_steps(tmp_path, method):
    archive = tmp_path / 'bomb.zip'
    with zipfile.ZipFile(archive, 'w', method) as made:
        made.writestr('a.png', bytes(1 << 20))
    with pytest.raises(ValueError, match=r'bomb\.zip cannot be read \(a\.png is not deflated\)'):
        list_files(archive)


def test_a_long_header_of_a_tar(tmp_path):
    archive = tmp_path / 'bomb.tar'
    member = tarfile.TarInfo('a')
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    archive.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 10))
    with pytest.raises(ValueError, match=rf'cannot be read \(a header of {1 << 40} bytes'):
        list_files(archive)


@pytest.mark.parametrize('kind', ['CHRTYPE', 'BLKTYPE', 'FIFOTYPE'])
def test_devices_in_a_tar_are_never_read(tmp_path, kind):
    archive = tmp_path / 'odd.tar'
    with tarfile.open(archive, 'w') as made:
        member = tarfile.TarInfo('train/zero.png')
        member.type, member.devmajor, member.devminor = getattr(tarfile, kind), 1, 5
        made.addfile(member)
    assert list_files(archive) == []
    assert list(read_files(archive, ['train/zero.png'])) == []
