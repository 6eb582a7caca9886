"""Official archives, made small: what is prepared is what they hold, and what is wrong is told."""

import gzip
import hashlib
import io
import json
import os
import signal
import struct
import sys
import tarfile
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import tensorflow_datasets as tfds
from absl import flags
from absl.testing import flagsaver
from PIL import Image

from jaxfed.data import load_dataset
from jaxfed.data import prepare as prepare_lib
from jaxfed.data.prepare import RECIPES, Official, cinic10, femnist, prepare
from jaxfed.data.prepare import __main__ as command
from jaxfed.data.prepare.archive import check_checksum, list_files, read_files
from jaxfed.internal import signals

UNCHECKED = Official()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))


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


def cinic_files(root='', each=2):
    files = {f'{root}README.md': b'text', f'{root}train/._junk.png': b'junk'}
    for s, split in enumerate(('train', 'valid', 'test')):
        for c, name in enumerate(cinic10.CLASSES):
            for i in range(each):
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
    """Bright strokes on dark: the value tells label and number."""
    image = np.zeros((28, 28), np.uint8)
    image[3, 4] = 255
    image[5, :2] = label + 1, number + 1
    return image


def leaf(users, first=0):
    """What LEAF writes of {user: labels}."""
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


@pytest.mark.parametrize('kind, root', [('.tar.gz', ''), ('.tar.gz', './CINIC-10/'), ('', 'x/')])
def test_cinic10(tmp_path, kind, root):
    archive = WRITERS[kind](tmp_path / f'archive{kind}', cinic_files(root))
    counts = {'train': 20, 'validation': 20, 'test': 20}
    folder, made = prepare(
        'cinic10', archive, tmp_path / 'data', official=Official(None, counts, balanced=True)
    )
    assert made
    assert folder == tmp_path / 'data' / 'cinic10' / '1.0.0'
    assert [path.name for path in folder.parent.iterdir()] == ['1.0.0']
    dataset = load_dataset('cinic10', data_dir=tmp_path / 'data')
    assert dataset.num_classes == 10
    assert dataset.users is None
    assert dataset.x_train.shape == dataset.x_test.shape == (20, 32, 32, 3)
    value = dataset.x_train[:, 0, 0, 0].astype(int)
    want = 8 * dataset.y_train + np.where(value % 8 == 0, 0, 1)
    np.testing.assert_array_equal(value, np.where(value == 200, 200, want))
    assert (dataset.x_train == dataset.x_train[:, :1, :1, :1]).all()
    np.testing.assert_array_equal(dataset.x_test[:, 9, 9, 2] // 8, 20 + dataset.y_test)
    assert np.bincount(dataset.y_test).tolist() == [2] * 10
    assert dataset.y_train[value == 200].tolist() == [3]
    assert sorted(dataset.y_train.tolist()) != dataset.y_train.tolist()
    builder = tfds.builder_from_directory(folder)
    assert list(builder.info.splits) == ['train', 'validation', 'test']
    assert builder.info.features['label'].names == list(cinic10.CLASSES)
    assert len(builder.as_data_source('validation')) == 20


def test_the_order_is_that_of_no_archive(tmp_path):
    files = cinic_files('CINIC-10/')
    backwards = dict(reversed(files.items()))
    folder = write_folder(tmp_path / 'a', files)
    archive = write_tar(tmp_path / 'a.tar.gz', backwards)
    first, _ = prepare('cinic10', folder, tmp_path / '1', official=UNCHECKED)
    second, _ = prepare('cinic10', archive, tmp_path / '2', official=UNCHECKED)
    a, b = (tfds.builder_from_directory(f).as_data_source('train') for f in (first, second))
    for i in range(20):
        np.testing.assert_array_equal(a[i]['image'], b[i]['image'])


@pytest.mark.parametrize('kind', ['.zip', ''])
def test_tiny_imagenet(tmp_path, kind):
    files = tiny_files()
    archive = WRITERS[kind](tmp_path / f'archive{kind}', files)
    official = Official(None, {'train': 6, 'test': 2}, balanced=True)
    folder, _ = prepare('tiny_imagenet', archive, tmp_path / 'data', official=official)
    dataset = load_dataset('tiny_imagenet', data_dir=tmp_path / 'data')
    assert dataset.num_classes == 2
    assert dataset.x_train.shape == (6, 64, 64, 3)
    # Sorted ids: n01, written second, is class 0.
    by_class = [sorted(dataset.x_train[dataset.y_train == c, 0, 0, 0]) for c in (0, 1)]
    assert by_class == [[100, 101, 102], [0, 1, 2]]
    assert dataset.x_test[dataset.y_test == 0, 0, 0, 0].tolist() == [51]
    # The official JPEG files are kept but for the two that are grey.
    encoded_images = {'image': tfds.decode.SkipDecoding()}
    source = tfds.builder_from_directory(folder).as_data_source('train', decoders=encoded_images)
    images = {example['image'] for example in source}
    assert files['tiny-imagenet-200/train/n02/images/n02_0.JPEG'] in images
    assert sum(image.startswith(b'\x89PNG') for image in images) == 2


def check_femnist(data_dir, *, first_train):
    dataset = load_dataset('femnist', data_dir=data_dir)
    assert dataset.num_classes == 62
    assert dataset.x_train.shape[1:] == (28, 28, 1)
    assert dataset.x_train[:, 3, 4, 0].tolist() == [255] * len(dataset.y_train)
    assert (dataset.x_train[:, 0] == 0).all()
    np.testing.assert_array_equal(dataset.x_train[:, 5, 0, 0], dataset.y_train + 1)
    np.testing.assert_array_equal(dataset.x_test[:, 5, 0, 0], dataset.y_test + 1)
    # Writers are numbered in the order of their names: f0_12, f1_03, f2_00.
    who = sorted(zip(dataset.users.tolist(), dataset.y_train.tolist()))
    assert who == first_train
    return dataset


@pytest.mark.parametrize('kind', ['.zip', '.tar.gz', ''])
def test_femnist_of_leaf(tmp_path, kind):
    archive = WRITERS[kind](tmp_path / f'archive{kind}', in_json(leaf_files()))
    prepare('femnist', archive, tmp_path / 'data')
    dataset = check_femnist(
        tmp_path / 'data', first_train=[(0, 3), (1, 0), (1, 61), (2, 10), (2, 10), (2, 36)]
    )
    assert sorted(dataset.y_test.tolist()) == [5, 7]
    builder = tfds.builder_from_directory(tmp_path / 'data' / 'femnist' / '1.0.0')
    assert {e['user'] for e in builder.as_data_source('test')} == {b'f1_03', b'f9_99'}


@pytest.mark.parametrize('kind', ['.tar.bz2', ''])
def test_femnist_of_tff(tmp_path, kind):
    archive = WRITERS[kind](tmp_path / f'archive{kind}', tff_files())
    official = Official(None, {'train': 4, 'test': 2})
    folder, _ = prepare('femnist', archive, tmp_path / 'data', official=official)
    dataset = check_femnist(tmp_path / 'data', first_train=[(0, 3), (1, 0), (1, 61), (2, 10)])
    assert sorted(dataset.y_test.tolist()) == [5, 7]
    assert not list(folder.glob('unpacked*'))


def test_femnist_without_a_test_part_has_a_tenth_of_each_writer(tmp_path):
    users = {'a': list(range(30)), 'b': [1, 2], 'c': [40]}
    files = in_json({'all_data/all_data_0.json': leaf(users)})
    prepare('femnist', write_zip(tmp_path / 'a.zip', files), tmp_path / '1')
    dataset = load_dataset('femnist', data_dir=tmp_path / '1')
    assert np.bincount(dataset.users).tolist() == [27, 1, 1]
    assert len(dataset.y_test) == 4
    # The same examples whichever file a writer is in.
    files = in_json({f'all_data/{u}.json': leaf({u: y}) for u, y in users.items()})
    prepare('femnist', write_zip(tmp_path / 'b.zip', files), tmp_path / '2')
    again = load_dataset('femnist', data_dir=tmp_path / '2')
    np.testing.assert_array_equal(again.x_test, dataset.x_test)


def refused(tmp_path, name, archive, message, official=UNCHECKED):
    with pytest.raises(ValueError, match=message):
        prepare(name, archive, tmp_path / 'data', official=official)
    assert not list((tmp_path / 'data').rglob('*'))


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'train/cow/0.png': b''}, r'train/cow/0\.png of a class .cow., which is none of airplane'),
        (
            {'test/dog/1.png': None},
            "1 examples of the class 'dog' in the split 'test', officially 2",
        ),
        ({'train/dog/2.png': b''}, "3 examples of the class 'dog' .* officially 2.*--nocounts"),
        ({'test/dog/1.png': b'no image'}, r'test/dog/1\.png cannot .* image \(of no known kind\)'),
        ({'test/dog/1.png': encoded(plain(32, 0))[:60]}, r'test/dog/1\.png cannot be read'),
        (
            {'test/dog/1.png': encoded(plain(31, 0))},
            r'test/dog/1\.png has 31 x 31 pixels .* 32 x 32',
        ),
        ({'../test/dog/9.png': b''}, r"member '../test/dog/9\.png' that leads out of the archive"),
        ({'/etc/dog/9.png': b''}, r"member '/etc/dog/9\.png' that leads out of the archive"),
        ({'./README.md': b''}, r'has the file README\.md twice'),
        ({'old/test/dog/1.png': b''}, r"has CINIC-10 both in '\.' and in 'old'"),
        ({'test/dog/1.PNG': b''}, "3 examples of the class 'dog' in the split 'test'"),
        ({'test/dog/1.png': wide_png()}, r'test/dog/1\.png has more than 8 bits a channel'),
    ],
)
def test_malformed_cinic10(tmp_path, changes, message):
    files = {**cinic_files(), **changes}
    files = {name: data for name, data in files.items() if data is not None}
    archive = write_tar(tmp_path / 'bad.tar', files, 'w')
    counts = {'train': 20, 'validation': 20, 'test': 20}
    refused(tmp_path, 'cinic10', archive, rf'bad\.tar.*{message}', Official(None, counts, True))


def test_split_without_examples(tmp_path):
    files = {name: data for name, data in cinic_files().items() if not name.startswith('test')}
    archive = write_folder(tmp_path / 'bad', files)
    refused(tmp_path, 'cinic10', archive, "no examples in the split 'test'")


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'wnids.txt': None}, 'has 0 files wnids.txt'),
        ({'x/wnids.txt': b'n01'}, 'has 2 files wnids.txt'),
        ({'val/val_annotations.txt': None}, r'no val/val_annotations\.txt'),
        ({'val/val_annotations.txt': b'val_0.JPEG n01\n'}, r"line 1 'val_0\.JPEG n01'"),
        ({'val/val_annotations.txt': b'val_0.JPEG\tn01\n'}, r'val_1\.JPEG has no class'),
        ({'val/images/val_0.JPEG': None}, r'no image val_0\.JPEG'),
        (
            {'train/n03/images/n03_0.JPEG': b''},
            "n03_0.JPEG is of a class 'n03' that is not in wnids",
        ),
        ({'train/n02/images/n02_9.JPEG': b''}, "4 examples of the class 'n02'"),
        ({'train/n02/images/n02_9.jpeg': b''}, "4 examples of the class 'n02'"),
        (
            {'val/val_annotations.txt': b'val_0.JPEG\tn01\nval_1.JPEG\tn01\nval_0.JPEG\tn02\n'},
            r'val_0\.JPEG both of the class n01 and of n02',
        ),
        ({'train/n02/images/n02_0.JPEG': b''}, r'n02_0\.JPEG cannot be read as an image'),
    ],
)
def test_malformed_tiny_imagenet(tmp_path, changes, message):
    files = {**tiny_files(root=''), **changes}
    files = {name: data for name, data in files.items() if data is not None}
    archive = write_zip(tmp_path / 'bad.zip', files)
    official = Official(None, {'train': 6, 'test': 2}, balanced=True)
    refused(tmp_path, 'tiny_imagenet', archive, rf'bad\.zip.*{message}', official)


def leaf_with(**changes):
    return {**leaf({'a': [1, 2], 'b': [3]}), **changes}


GOOD = leaf({'a': [1, 2], 'b': [3]})['user_data']


@pytest.mark.parametrize(
    'shard, message',
    [
        ({'users': ['a', 'b', 'ghost'], 'num_samples': [2, 1, 1]}, "3 writers in users.*'ghost'"),
        ({'users': ['a'], 'num_samples': [2]}, "1 writers in users.*'b' is missing"),
        ({'users': ['a', 'b', 'a']}, "the writer 'a' is twice in users"),
        ({'num_samples': [2, 2]}, "writer 'b' is.*1 images and 1 labels, 2 in num_samples"),
        ({'num_samples': [3]}, '1 in num_samples'),
        ({'users': 3}, 'is not as LEAF writes it'),
        ({'users': [['a'], ['b']]}, r'as LEAF writes it \(TypeError'),
        (
            {'user_data': {**GOOD, 'b': {'x': GOOD['b']['x']}}},
            r"as LEAF writes it \(KeyError: 'y'\)",
        ),
    ],
)
def test_malformed_leaf(tmp_path, shard, message):
    files = in_json({'train/a.json': leaf_with(**shard), 'test/a.json': leaf_with()})
    archive = write_zip(tmp_path / 'bad.zip', files)
    refused(tmp_path, 'femnist', archive, rf'bad\.zip: train/a\.json.*{message}')


X = GOOD['b']['x']


@pytest.mark.parametrize(
    'x, y, message',
    [
        ([[0.5]], [3], r'pixels \(1, 1\), not 784 for each'),
        ([[2] * 784], [3], r'pixels outside of 0\.\.1'),
        ([[float('nan')] * 784], [3], r'pixels outside of 0\.\.1'),
        ([['0.5'] * 784], [3], 'pixels that are no numbers'),
        ([[10**400] * 784], [3], 'pixels that are no numbers|OverflowError'),
        (5, [3], 'TypeError'),
        (None, [3], 'TypeError'),
        (X, None, 'TypeError'),
        (X, [62], r'labels outside of 0\.\.61'),
        (X, [2.5], r'labels outside of 0\.\.61'),
        (X, '3', 'labels that are no list of numbers'),
        (X, [[3]], 'labels that are no list of numbers'),
        (X, ['3'], 'labels that are no list of numbers'),
        (X, [10**400], 'labels that are no list of numbers'),
        (X, [True], 'labels that are no list of numbers'),
        (2 * X, [3, True], 'labels that are no list of numbers'),
    ],
)
def test_malformed_writer_of_leaf(x, y, message):
    counts = [2, len(y) if y else 1]
    shard = leaf_with(num_samples=counts, user_data={**GOOD, 'b': {'x': x, 'y': y}})
    with pytest.raises(ValueError, match=rf"a\.json: the writer 'b' is not as LEAF.*{message}"):
        list(femnist._parse_shard('a.json', json.dumps(shard).encode()))


def test_writers_whose_names_cannot_be_stored(tmp_path):
    files = in_json({'all_data/a.json': leaf({'\ud800': [1, 2]})})
    message = r"all_data/a\.json: the writer '\\ud800' is not as LEAF.*surrogates not allowed"
    refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


@pytest.mark.parametrize(
    'pixels, label, message',
    [
        (np.full((1, 784), b'x'), [3], 'pixels that are no numbers'),
        (np.zeros((1, 28, 28)), [b'3'], 'labels that are no list of numbers'),
        (np.zeros((1, 28, 28)), [1, 2], r'2 labels, but pixels \(1, 28, 28\)'),
        (np.zeros((28, 28)), 3, 'scalar'),
    ],
)
def test_malformed_writer_of_tff(tmp_path, pixels, label, message):
    buffer = io.BytesIO()
    with h5py.File(buffer, 'w') as file:
        file['examples/u/pixels'], file['examples/u/label'] = pixels, label
    files = {**tff_files(), 'fed_emnist_test.h5': buffer.getvalue()}
    message = (
        rf'fed_emnist_test\.h5: the writer .u. is not as TensorFlow Federated writes it.*{message}'
    )
    refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


@pytest.mark.parametrize(
    'files, message',
    [
        ({'all_data/a.json': b'[' * 200_000}, 'as LEAF writes it .RecursionError'),
        ({'train/a.json': b'{"users": ['}, 'has neither fed_emnist_train.h5 and'),
        (
            {'train/a.json': b'{"users": [', 'test/a.json': b'{}'},
            'as LEAF writes it .(JSONDecode|Key)Error',
        ),
        ({'fed_emnist_train.h5': b''}, r'no fed_emnist_test\.h5'),
        ({**tff_files(), 'fed_emnist_test.h5': b'no'}, r'fed_emnist_test\.h5 is not as Tensor'),
        (
            {**tff_files(), 'fed_emnist_test.h5': tff_files()['fed_emnist_test.h5'][:900]},
            'test.h5 is',
        ),
        (
            in_json({f'{s}/{i}.json': leaf_with() for s in ('train', 'test') for i in (0, 1)}),
            'as well',
        ),
        (
            in_json({f'{s}/0.json': leaf_with() for s in ('train', 'test', 'old/train')}),
            "LEAF's train both in 'old/train' and in 'train'",
        ),
        (
            in_json({f'{s}/0.json': leaf_with() for s in ('all_data', 'old/all_data')}),
            "LEAF's all_data both in 'all_data' and in 'old/all_data'",
        ),
        (
            {**tff_files(), **tff_files('old/')},
            r"fed_emnist_t.*\.h5 both in 'fed_emnist_t.*\.h5' and in 'old/fed",
        ),
        (
            in_json({'train/0.JSON': leaf_with(users=3), 'test/0.json': leaf_with()}),
            r'train/0\.JSON is not as LEAF',
        ),
    ],
)
def test_malformed_femnist(tmp_path, files, message):
    refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


def test_hdf5_takes_h5py(tmp_path, monkeypatch):
    archive = write_folder(tmp_path / 'tff', tff_files())
    monkeypatch.setitem(sys.modules, 'h5py', None)
    refused(tmp_path, 'femnist', archive, r"take h5py: pip install 'jaxfed\[femnist\]'")


def test_large_splits_have_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_lib.write, '_SHARD', 4)
    monkeypatch.setattr(prepare_lib.write, '_BLOCK', 3)
    archive = write_folder(tmp_path / 'a', cinic_files(each=2))
    folder, _ = prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert len(list(folder.glob('cinic10-test.array_record-*'))) == 5
    dataset = load_dataset('cinic10', data_dir=tmp_path / 'data')
    np.testing.assert_array_equal(dataset.x_test[:, 0, 0, 0] // 8, 20 + dataset.y_test)


def test_femnist_counts(tmp_path):
    archive = write_folder(tmp_path / 'tff', tff_files())
    for official, message in [
        (Official(None, {'train': 5, 'test': 2}), "4 examples in the split 'train', officially 5"),
        (Official(users=4), r'train\.h5 has 3 writers, officially 4: .*--nocounts'),
    ]:
        refused(tmp_path, 'femnist', archive, message, official)


def test_checksum(tmp_path):
    archive = write_tar(tmp_path / 'a.tar.gz', cinic_files())
    found = hashlib.md5(archive.read_bytes()).hexdigest()
    refused(
        tmp_path,
        'cinic10',
        archive,
        rf'a\.tar\.gz has the MD5 sum {found}, officially 6ee4d0c996905fe9.*--nochecksum',
        RECIPES['cinic10'].official,
    )
    check_checksum(archive, f'md5:{found}')
    check_checksum(tmp_path, 'md5:of a folder is not checked')
    tff = write_tar(tmp_path / 'fed_emnist.tar.bz2', tff_files(), 'w:bz2')
    refused(
        tmp_path, 'femnist', tff, 'SHA256 sum .* officially fe1ed5a502', femnist.FEMNIST.official
    )


@pytest.mark.parametrize('kind', ['.tar.gz', '.tar.bz2', '.zip'])
def test_truncated_archive(tmp_path, kind):
    rng = np.random.default_rng(0)
    noise = {f'train/cat/{i}.png': rng.bytes(3000) for i in range(100)}
    archive = WRITERS[kind](tmp_path / f'bad{kind}', noise)
    archive.write_bytes(archive.read_bytes()[:200_000])
    refused(
        tmp_path, 'cinic10', archive, rf'bad{kind} cannot be read .*cut short.*download it again'
    )


def test_tar_cut_between_members(tmp_path):
    archive = write_tar(tmp_path / 'bad.tar', cinic_files(), 'w')
    with tarfile.open(archive) as tar:
        last = tar.getmembers()[-1].offset
    whole = archive.read_bytes()
    # Cut there, cut within the next header, and damaged there.
    for data in whole[:last], whole[: last + 300], whole[:last] + b'?' * 2048:
        archive.write_bytes(data)
        refused(tmp_path, 'cinic10', archive, r'bad\.tar cannot be read \(it has no end-of-archive')


@pytest.mark.parametrize('kind', [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_a_tar_are_told(tmp_path, kind):
    archive = write_tar(tmp_path / 'bad.tar', cinic_files(), 'w')
    with tarfile.open(archive, 'a') as tar:
        link = tarfile.TarInfo('train/cat/9.png')
        link.type, link.linkname = kind, 'train/cat/0.png'
        tar.addfile(link)
    message = r'member train/cat/9\.png that is a link: unpack the archive and give the folder'
    refused(tmp_path, 'cinic10', archive, message)


def test_links_of_a_folder_are_followed(tmp_path):
    folder = write_folder(tmp_path / 'a', cinic_files(each=1))
    (folder / 'train').rename(tmp_path / 'elsewhere')
    (folder / 'train').symlink_to(tmp_path / 'elsewhere')
    assert 'train/cat/0.png' in list_files(folder)
    back = folder / 'valid' / 'back'
    for target in tmp_path, 'nowhere', back:
        back.symlink_to(target)
        with pytest.raises(
            ValueError, match=r'a has valid/back, a link that leads nowhere or back'
        ):
            list_files(folder)
        back.unlink()


def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / 'a', cinic_files(each=1))
    scandir = os.scandir

    def closed(path):
        if os.fspath(path).endswith('train'):
            raise PermissionError(13, 'Permission denied', path)
        return scandir(path)

    monkeypatch.setattr(os, 'scandir', closed)
    with pytest.raises(ValueError, match=r"cannot be read .*denied: '.*/a/train'.*permissions"):
        list_files(folder)


def test_names_that_are_not_utf8(tmp_path):
    files = cinic_files(each=1)
    files[os.fsdecode(b'train/cat/\xff.png')] = encoded(plain(32, 201))
    prepare('cinic10', write_tar(tmp_path / 'a.tar', files), tmp_path, official=UNCHECKED)
    dataset = load_dataset('cinic10', data_dir=tmp_path)
    assert sorted(dataset.x_train[dataset.y_train == 3, 0, 0, 0]) == [24, 200, 201]


def test_texts_with_a_byte_order_mark(tmp_path):
    files = tiny_files()
    for name in [name for name in files if name.endswith(('wnids.txt', 'annotations.txt'))]:
        files[name] = b'\xef\xbb\xbf' + files[name]
    prepare('tiny_imagenet', write_folder(tmp_path / 'a', files), tmp_path, official=UNCHECKED)


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
        refused(tmp_path, 'cinic10', path, rf'archive={path} {message}')


def test_a_finished_dataset_is_not_made_again_unless_asked(tmp_path):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))
    folder, made = prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert made
    before = (folder / 'dataset_info.json').stat().st_mtime_ns
    assert prepare('cinic10', tmp_path / 'gone', tmp_path / 'data') == (folder, False)
    assert (folder / 'dataset_info.json').stat().st_mtime_ns == before
    # A failure leaves the old one, a success replaces it.
    with pytest.raises(ValueError, match='does not exist'):
        prepare('cinic10', tmp_path / 'gone', tmp_path / 'data', official=UNCHECKED, overwrite=True)
    assert len(load_dataset('cinic10', data_dir=tmp_path / 'data').y_train) == 11
    more = write_folder(tmp_path / 'b', cinic_files(each=2))
    assert prepare('cinic10', more, tmp_path / 'data', official=UNCHECKED, overwrite=True)[1]
    assert len(load_dataset('cinic10', data_dir=tmp_path / 'data').y_train) == 20
    assert [path.name for path in folder.parent.iterdir()] == ['1.0.0']


def test_what_is_no_dataset_stays(tmp_path):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))
    (tmp_path / 'cinic10/1.0.0').mkdir(parents=True)
    (tmp_path / 'cinic10/1.0.0/thesis.txt').write_text('mine')
    with pytest.raises(ValueError, match=r'cinic10/1\.0\.0 is there.* no prepared.*--overwrite'):
        prepare('cinic10', archive, tmp_path, official=UNCHECKED)
    assert (tmp_path / 'cinic10/1.0.0/thesis.txt').read_text() == 'mine'


def test_a_dataset_made_again_is_decoded_again(tmp_path):
    files = cinic_files(each=1)
    swapped = {**files, 'train/dog/0.png': files['train/cat/0.png']}
    swapped['train/cat/0.png'] = files['train/dog/0.png']
    for number, found in enumerate((files, swapped)):
        archive = write_folder(tmp_path / str(number), found)
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED, overwrite=True)
        dataset = load_dataset('cinic10', data_dir=tmp_path / 'data')
        dog = dataset.x_train[dataset.y_train == cinic10.CLASSES.index('dog'), 0, 0, 0]
        assert dog.tolist() == [[40], [24]][number]


def test_data_dir_that_is_no_folder(tmp_path):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))
    (tmp_path / 'file').write_text('no folder')
    with pytest.raises(ValueError, match=r'data_dir=.*/file cannot be written to .* give --data'):
        prepare('cinic10', archive, tmp_path / 'file', official=UNCHECKED)
    with pytest.raises(ValueError, match=r'data_dir=.*/file is no folder: give --data_dir'):
        load_dataset('cinic10', data_dir=tmp_path / 'file')


def test_a_stopped_run_leaves_nothing_in_place(tmp_path, monkeypatch):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_lib.write, '_read_again', stop)
    with pytest.raises(KeyboardInterrupt):
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert not list((tmp_path / 'data').glob('*/*'))


def test_full_disk(tmp_path, monkeypatch):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))

    def close(self):
        raise RuntimeError('write() failed: No space left on device')

    monkeypatch.setattr(tfds.core.SequentialWriter, 'close_all', close)
    with pytest.raises(OSError, match=r'cinic10.*No space left on device'):
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert not list((tmp_path / 'data').glob('*/*'))


def test_incomplete_files_are_noticed(tmp_path, monkeypatch):
    archive = write_folder(tmp_path / 'a', cinic_files(each=1))
    monkeypatch.setattr(
        tfds.core.SequentialWriter, 'close_all', lambda self: None
    )  # as if the last block were lost
    with pytest.raises(OSError, match='cinic10'):
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert not list((tmp_path / 'data').glob('*/*'))


def test_unprepared_datasets_tell_the_command(tmp_path):
    with pytest.raises(ValueError, match=r'python -m jaxfed\.data\.prepare femnist --archive=FILE'):
        load_dataset('femnist', data_dir=tmp_path)
    with pytest.raises(
        ValueError, match=r"'mnist' cannot be prepared: choose from cinic10, femnist"
    ):
        prepare('mnist', tmp_path, tmp_path)
    for archive in None, '':
        with pytest.raises(ValueError, match=r'download it from https://datashare.*--archive=FILE'):
            prepare('cinic10', archive, tmp_path)
    for name in 'cinic10/x', 'cinic10:2.0.0':
        with pytest.raises(
            ValueError, match=r'version 1\.0\.0 alone.*: write --dataset=cinic10\.$'
        ):
            load_dataset(name, data_dir=tmp_path)


@pytest.fixture
def run(capsys):
    # Flags of other commands, which another test may have defined, make room.
    values = flags.FLAGS
    others = {name: values[name] for name in ('archive', 'data_dir') if name in values}
    for name in others:
        delattr(values, name)
    before = set(values)
    command.define_flags()
    values.mark_as_parsed()

    def run(*arguments, **settings):
        with flagsaver.flagsaver(**settings):
            status = command.main(['prepare', *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    yield run
    for name in set(values) - before:
        delattr(values, name)
    for name, flag in others.items():
        values[name] = flag


def test_command_line(tmp_path, run):
    archive = str(write_tar(tmp_path / 'a.tar.gz', cinic_files(each=1)))
    data_dir = str(tmp_path / 'data')
    status, _, error = run('cinic10', archive=archive, data_dir=data_dir)
    assert (status, 'MD5' in error) == (2, True)
    settings = {'archive': archive, 'data_dir': data_dir, 'checksum': False}
    status, _, error = run('cinic10', **settings)
    assert (status, 'officially 9000' in error) == (2, True)
    status, shown, _ = run('cinic10', **settings, counts=False)
    assert status == 0
    assert f'--dataset=cinic10 --data_dir={data_dir}' in shown
    assert 'reading images 31/31' in shown
    status, shown, _ = run('cinic10', **settings)
    assert (status, 'prepared already' in shown) == (0, True)
    for arguments, message in ((), 'none'), (('mnist',), 'choose from'), (('a', 'b'), 'a b'):
        status, _, error = run(*arguments, **settings)
        assert (status, message in error) == (2, True)


def test_interrupted_command(tmp_path, run, monkeypatch, capsys):
    class Ended(BaseException):
        pass

    def end(status):
        raise Ended(status)

    def stop(*_):
        (unfinished,) = (tmp_path / 'data' / 'cinic10').iterdir()
        assert unfinished.name.endswith('.incomplete')
        os.kill(os.getpid(), number)

    monkeypatch.setattr(signals.os, '_exit', end)
    monkeypatch.setattr(prepare_lib, 'write_dataset', stop)
    archive = str(write_folder(tmp_path / 'a', cinic_files(each=1)))
    for number, word in (signal.SIGINT, 'interrupted'), (signal.SIGTERM, 'terminated'):
        with pytest.raises(Ended, match=str(128 + number)):
            run('cinic10', archive=archive, data_dir=str(tmp_path / 'data'), counts=False)
        assert capsys.readouterr().err == (
            f'error: {word}; nothing was prepared, and what was there is as it was.\n'
        )
        assert not list((tmp_path / 'data').rglob('*'))


def test_official_numbers():
    assert {name: recipe.official for name, recipe in RECIPES.items()} == {
        'cinic10': Official(
            'md5:6ee4d0c996905fe93221de577967a372',
            {'train': 90_000, 'validation': 90_000, 'test': 90_000},
            True,
        ),
        'femnist': Official(
            'sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0',
            {'train': 671_585, 'test': 77_483},
            users=3400,
        ),
        'tiny_imagenet': Official(
            'md5:90528d7ca1a48142e341f4ef8d21d0de', {'train': 100_000, 'test': 10_000}, True
        ),
    }
    assert len(femnist.CLASSES) == 62


def test_a_file_that_unpacks_to_too_much_is_told(tmp_path):
    archive = tmp_path / 'bomb.zip'
    with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as made:
        made.writestr('a.png', bytes(1 << 20))
    assert archive.stat().st_size < 1 << 12
    with pytest.raises(ValueError, match=r'bomb\.zip.*a\.png has more than 1000 bytes'):
        list(read_files(archive, ['a.png'], most=1000))
    ((_, data),) = read_files(archive, ['a.png'], most=1 << 20)
    assert len(data) == 1 << 20


def test_an_image_of_another_size_is_not_decoded(monkeypatch):
    from PIL import ImageFile

    from jaxfed.data.images import checked_rgb, png

    data = png(np.zeros((8, 8, 3), np.uint8))
    monkeypatch.setattr(ImageFile.ImageFile, 'load', lambda self: pytest.fail('decoded'))
    with pytest.raises(ValueError, match='where has 8 x 8 pixels instead of 32 x 32'):
        checked_rgb(data, (32, 32), 'where')


@pytest.mark.parametrize('kind', ['CHRTYPE', 'BLKTYPE', 'FIFOTYPE'])
def test_devices_in_a_tar_are_never_read(tmp_path, kind):
    archive = tmp_path / 'odd.tar'
    with tarfile.open(archive, 'w') as made:
        member = tarfile.TarInfo('train/zero.png')
        member.type, member.devmajor, member.devminor = getattr(tarfile, kind), 1, 5
        made.addfile(member)
    assert list_files(archive) == []
    assert list(read_files(archive, ['train/zero.png'])) == []
