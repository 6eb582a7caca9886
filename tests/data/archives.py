"""Official archives, made small."""

import io
import json
import struct
import tarfile
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image

from jaxfed.data.prepare import Official, cinic10, prepare

UNCHECKED = Official()


def encoded(pixels, kind='png'):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def wide_png():
    """A PNG of 16 bits a channel, grey with alpha, of which Pillow keeps 8."""
    chunk = b'IHDR' + struct.pack('>IIBBBBB', 32, 32, 16, 4, 0, 0, 0)
    data = b'IDAT' + zlib.compress(bytes(32 * (1 + 4 * 32)))
    chunks = [
        struct.pack('>I', len(c) - 4) + c + struct.pack('>I', zlib.crc32(c))
        for c in (chunk, data, b'IEND')
    ]
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunks)


def plain(side, value, *, grey=False):
    return np.full((side, side) if grey else (side, side, 3), value)


def write_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_tar(path, files, mode='w:gz'):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_zip(path, files):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


WRITERS = {
    '.tar.gz': write_tar,
    '.tar.bz2': lambda path, files: write_tar(path, files, 'w:bz2'),
    '.zip': write_zip,
    '': write_folder,
}


def cinic_files(root='', per_class=2):
    files = {f'{root}README.md': b'text', f'{root}train/._junk.png': b'junk'}
    for s, split in enumerate(('train', 'valid', 'test')):
        for c, name in enumerate(cinic10.CLASSES):
            for i in range(per_class):
                pixels = plain(32, 80 * s + 8 * c + i)
                files[f'{root}{split}/{name}/{i}.png'] = encoded(pixels)
    files[f'{root}train/cat/1.png'] = encoded(plain(32, 200, grey=True))
    return files


def tiny_files(root='tiny-imagenet-200/', classes=('n02', 'n01')):
    files = {f'{root}wnids.txt': '\n'.join(classes).encode(), f'{root}words.txt': b'n01\tfish'}
    lines = []
    for c, wnid in enumerate(classes):
        for i in range(3):
            name = f'{root}train/{wnid}/images/{wnid}_{i}.JPEG'
            files[name] = encoded(plain(64, 100 * c + i, grey=i == 2), 'jpeg')
        files[f'{root}train/{wnid}/{wnid}_boxes.txt'] = b'box'
        files[f'{root}val/images/val_{c}.JPEG'] = encoded(plain(64, 50 + c), 'jpeg')
        lines.append(f'val_{c}.JPEG\t{wnid}\t0\t32\t44\t62\n')
    files[f'{root}val/val_annotations.txt'] = ''.join(lines).encode()
    files[f'{root}test/images/test_0.JPEG'] = encoded(plain(64, 9), 'jpeg')
    return files


def ink(label, number):
    """Bright strokes on dark, whose values are label and number."""
    image = np.zeros((28, 28), np.uint8)
    image[3, 4] = 255
    image[5, :2] = label + 1, number + 1
    return image


def leaf(users, first=0):
    """The content of a LEAF file for {user: labels}."""
    data = {
        user: {
            'x': [(1 - ink(y, first + i).ravel() / 255).tolist() for i, y in enumerate(labels)],
            'y': list(labels),
        }
        for user, labels in users.items()
    }
    counts = [len(labels) for labels in users.values()]
    return {'users': list(users), 'num_samples': counts, 'user_data': data}


def leaf_files(root='data/'):
    return {
        f'{root}train/all_data_0_niid_0_keep_0_train_9.json': leaf(
            {'f1_03': [0, 61], 'f0_12': [3]}
        ),
        f'{root}train/all_data_1_niid_0_keep_0_train_9.json': leaf({'f2_00': [10, 10, 36]}),
        f'{root}test/all_data_0_niid_0_keep_0_test_9.json': leaf({'f1_03': [7], 'f9_99': [5]}),
        f'{root}all_data/all_data_0.json': leaf({'f1_03': [1]}),
    }


def leaf_with(**changes):
    return {**leaf({'a': [1, 2], 'b': [3]}), **changes}


def in_json(files):
    return {name: json.dumps(data).encode() for name, data in files.items()}


def in_hdf5(users):
    buffer = io.BytesIO()
    with h5py.File(buffer, 'w') as file:
        for user, labels in users.items():
            images = np.stack([ink(y, i) for i, y in enumerate(labels)])
            group = file.create_group(f'examples/{user}')
            group['pixels'] = (1 - images / 255).astype(np.float32)
            group['label'] = np.array(labels, np.int32)
    return buffer.getvalue()


def tff_files(root=''):
    return {
        f'{root}fed_emnist_train.h5': in_hdf5({'f1_03': [0, 61], 'f0_12': [3], 'f2_00': [10]}),
        f'{root}fed_emnist_test.h5': in_hdf5({'f1_03': [7], 'f0_12': [5]}),
    }


def changed(files, changes):
    """The files with changes: replaced, added, or removed if the change is None."""
    return {name: data for name, data in {**files, **changes}.items() if data is not None}


def assert_refused(tmp_path, name, archive, message, official=UNCHECKED):
    with pytest.raises(ValueError, match=message):
        prepare(name, archive, tmp_path / 'data', official=official)
    assert not list((tmp_path / 'data').rglob('*'))
