"""Datasets: what is read is what was written, and what is malformed is told."""

import json
import os
import shutil
import struct
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jaxfed.config import Config
from jaxfed.data import (
    cache,
    channel_statistics,
    image_folder,
    images,
    load_dataset,
    split_auxiliary,
)
from jaxfed.data import tfds as tfds_source
from jaxfed.engine.devices import make_mesh, replicate
from jaxfed.internal.folders import replacing
from jaxfed.runs.checks import check
from jaxfed.types import Dataset


def arrays(**changes):
    rng = np.random.default_rng(0)
    made = {
        'x_train': rng.integers(0, 256, (12, 4, 5, 3)).astype(np.uint8),
        'y_train': np.arange(12) % 3,
        'x_test': rng.integers(0, 256, (6, 4, 5, 3)).astype(np.uint8),
        'y_test': np.arange(6) % 3,
    }
    return {**made, **changes}


def test_digits():
    dataset = load_dataset('digits')
    assert dataset.num_classes == 10
    assert len(dataset.y_train) + len(dataset.y_test) == 1797
    assert dataset.x_train.shape[1:] == (8, 8, 1)
    assert dataset.x_train.dtype == np.uint8
    assert dataset.x_train.max() == 16
    test_share = np.bincount(dataset.y_test) / np.bincount(dataset.y_train)
    assert (abs(test_share - 0.25) < 0.02).all()
    again = load_dataset('digits')
    np.testing.assert_array_equal(again.y_test, dataset.y_test)


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_npz(tmp_path, dtype):
    want = arrays()
    want['x_train'], want['x_test'] = (want[k].astype(dtype) for k in ('x_train', 'x_test'))
    np.savez(tmp_path / 'mine.npz', **want)
    dataset = load_dataset('npz', npz=tmp_path / 'mine.npz')
    assert (dataset.name, dataset.num_classes) == ('mine', 3)
    for key, array in want.items():
        np.testing.assert_array_equal(getattr(dataset, key), array)
    assert dataset.y_train.dtype == np.int32
    assert dataset.x_train.dtype == dtype


def test_npz_without_channels_gets_one(tmp_path):
    flat = arrays(x_train=np.zeros((12, 4, 5), np.uint8), x_test=np.zeros((6, 4, 5), np.uint8))
    np.savez(tmp_path / 'a.npz', **flat)
    assert load_dataset('npz', npz=tmp_path / 'a.npz').x_train.shape == (12, 4, 5, 1)


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'y_train': np.arange(11) % 3}, '12 images in x_train but 11 labels'),
        ({'y_train': np.arange(12) - 1}, 'labels from -1'),
        ({'y_test': np.arange(6)}, 'label 5 in y_test'),
        (
            {'y_train': np.append(np.arange(11) % 3, 900_000)},
            r'largest label 900000, .* only 4 different labels: number the classes 0\.\.3',
        ),
        ({'y_train': np.arange(12) / 2}, 'dtype float64 in y_train'),
        ({'x_test': np.zeros((6, 4, 4, 3), np.uint8)}, r'\(4, 4, 3\) uint8 in x_test'),
        ({'x_test': np.zeros((6, 4, 5, 3), np.float32)}, 'float32 in x_test'),
        ({'x_train': np.zeros((12, 60), np.uint8)}, r'shape \(12, 60\) in x_train'),
        ({'x_train': np.zeros((12, 4, 5, 3))}, 'dtype float64 in x_train'),
        ({'x_train': np.zeros((0, 4, 5, 3), np.uint8)}, 'shape .* in x_train'),
        ({'x_train': np.full((12, 4, 5, 3), np.nan, np.float32)}, '720 values in x_train'),
        ({'x_train': np.array([{}] * 12)}, 'x_train no plain array'),
    ],
)
def test_malformed_npz(tmp_path, changes, message):
    np.savez(tmp_path / 'bad.npz', **arrays(**changes))
    with pytest.raises(ValueError, match=rf'bad\.npz has .*{message}'):
        load_dataset('npz', npz=tmp_path / 'bad.npz')


def test_npz_that_is_none(tmp_path):
    path = tmp_path / 'bad.npz'
    with pytest.raises(ValueError, match='is not a file'):
        load_dataset('npz', npz=path)
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for content in (b'', b'text', whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r'is not an \.npz archive, or was cut short'):
            load_dataset('npz', npz=path)
    np.savez(path, x_train=arrays()['x_train'])
    with pytest.raises(ValueError, match='has no y_train, x_test, y_test, only x_train'):
        load_dataset('npz', npz=path)
    damaged = bytearray(whole)
    damaged[200] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'bad\.npz'):
        load_dataset('npz', npz=path)


def test_missing_tfds_dataset_tells_how_to_prepare_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jaxfed\[prepare\]'") as error:
        load_dataset('cifar10', data_dir=tmp_path)
    assert "file_format='array_record'" in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_missing_tfds_dataset_is_prepared_where_tensorflow_is(tmp_path, monkeypatch):
    asked = []

    class Builder:
        data_dir = str(tmp_path / 'cifar10' / '3.0.2')

        def download_and_prepare(self):
            raise OSError('no network')

    def builder(name, **settings):
        asked.append((name, settings))
        return Builder()

    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: object())
    monkeypatch.setattr(tfds, 'builder', builder)
    with pytest.raises(ValueError, match=r'could not be prepared .* \(no network\)'):
        load_dataset('cifar10', data_dir=tmp_path)
    assert asked == [('cifar10', {'data_dir': tmp_path, 'file_format': 'array_record'})]


def test_unknown_dataset_names_near_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar1O' is not prepared .* did you mean .*cifar10"):
        load_dataset('cifar1O', data_dir=tmp_path)
    with pytest.raises(ValueError, match='is no name of a dataset'):
        load_dataset('../secrets', data_dir=tmp_path)


def test_tfrecord_dataset_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    folder = tmp_path / 'toy' / '1.0.0'
    folder.mkdir(parents=True)
    (folder / 'dataset_info.json').write_text(json.dumps({'name': 'toy'}))
    with pytest.raises(ValueError, match='is stored as tfrecord'):
        load_dataset('toy', data_dir=tmp_path)


def test_npz_may_lack_a_class(tmp_path):
    want = arrays(y_train=np.arange(12) % 3 * 2, y_test=np.arange(6) % 2)
    np.savez(tmp_path / 'a.npz', **want)
    assert load_dataset('npz', npz=tmp_path / 'a.npz').num_classes == 5


@pytest.mark.parametrize('content', ['{"name": ', '[]', '{"fileFormat": "array_record"}'])
def test_damaged_description_is_told(tmp_path, monkeypatch, content):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    folder = tmp_path / 'toy' / '1.0.0'
    folder.mkdir(parents=True)
    (folder / 'dataset_info.json').write_text(content)
    with pytest.raises(ValueError, match=r"'toy' .*1\.0\.0/dataset_info\.json.*prepare .* again"):
        load_dataset('toy', data_dir=tmp_path)


@pytest.mark.parametrize('fails_at', [0, 2000])
def test_damaged_records_are_told(fails_at):
    class Source:
        def __len__(self):
            return 3000

        def __getitems__(self, positions):
            if positions.start == fails_at:
                raise RuntimeError('chunk hash mismatch')
            return [{'image': np.zeros((2, 2, 1), np.uint8), 'label': 0} for _ in positions]

    class Builder:
        def as_data_source(self, split):
            return Source()

    with pytest.raises(ValueError, match=r'/d/\*-train.array_record\* .*hash mismatch.*prepare'):
        tfds_source._decode_split('toy', Path('/d'), Builder(), 'train', cache._to_memory)


real = pytest.mark.skipif('JAXFED_DATA_DIR' not in os.environ, reason='JAXFED_DATA_DIR is not set')


@real
def test_real_mnist_and_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    data_dir = os.environ['JAXFED_DATA_DIR']
    first = load_dataset('mnist', data_dir=data_dir)
    assert first.x_train.shape == (60000, 28, 28, 1)
    assert first.x_test.shape == (10000, 28, 28, 1)
    assert np.bincount(first.y_train)[:3].tolist() == [5923, 6742, 5958]
    mean, std = channel_statistics(first.x_train)
    assert np.allclose((mean / 255, std / 255), ([0.1307], [0.3081]), atol=1e-4)

    def no_decoding(*_):
        raise AssertionError('decoded again')

    monkeypatch.setattr(tfds_source, '_decode', no_decoding)
    again = load_dataset('mnist', data_dir=data_dir)
    np.testing.assert_array_equal(again.x_train, first.x_train)
    assert again.num_classes == 10


def write_tfds(folder, features, splits):
    """Writes {split: examples} in the layout of TFDS, images as PNG."""
    folder.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(
        name=folder.relative_to(folder.parents[1]).parts[0],
        version=tfds.core.Version(folder.name),
        data_dir=str(folder),
        module_name='',
    )
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, 1000, file_format='array_record')
    writer.initialize_splits(list(splits))
    for split, examples in splits.items():
        coded = [{**e, 'image': images.png(e['image'].squeeze())} for e in examples]
        writer.add_examples({split: coded})
    writer.close_all()


def labelled(image_shape, labels, **features):
    """Examples with random images, and the images."""
    x = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), *image_shape))
    x = x.astype(np.uint8)
    columns = {'label': labels, **features}
    return [
        {'image': image, **{name: column[i] for name, column in columns.items()}}
        for i, image in enumerate(x)
    ], x


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


def test_cifar100(tmp_path, cached):
    features = {
        'coarse_label': tfds.features.ClassLabel(num_classes=20),
        'id': tfds.features.Text(),
        'image': tfds.features.Image(shape=(32, 32, 3)),
        'label': tfds.features.ClassLabel(num_classes=100),
    }
    train, x_train = labelled(
        (32, 32, 3), [99, 0, 7], coarse_label=[19, 0, 3], id=['train_0', 'train_1', 'train_2']
    )
    test, x_test = labelled((32, 32, 3), [5, 6], coarse_label=[1, 1], id=['test_0', 'test_1'])
    write_tfds(tmp_path / 'cifar100' / '3.0.2', features, {'train': train, 'test': test})
    for _ in 'decoded', 'cached':
        dataset = load_dataset('cifar100', data_dir=tmp_path)
        assert (dataset.name, dataset.num_classes, dataset.users) == ('cifar100', 100, None)
        np.testing.assert_array_equal(dataset.x_train, x_train)
        np.testing.assert_array_equal(dataset.x_test, x_test)
        assert dataset.y_train.tolist() == [99, 0, 7]
        assert dataset.y_train.dtype == dataset.y_test.dtype == np.int32


GREY = {'image': tfds.features.Image(shape=(28, 28, 1))}


@pytest.mark.parametrize(
    'name, stored_classes, stored, classes, labels, turned',
    [
        ('fashion_mnist', 10, [9, 0, 3], 10, [9, 0, 3], False),
        ('emnist/balanced', 47, [46, 0, 3], 47, [46, 0, 3], True),
        ('emnist/letters', 37, [26, 1, 3], 26, [25, 0, 2], True),
    ],
)
def test_grey_sets(tmp_path, cached, name, stored_classes, stored, classes, labels, turned):
    features = {**GREY, 'label': tfds.features.ClassLabel(num_classes=stored_classes)}
    train, x = labelled((28, 28, 1), stored)
    test, _ = labelled((28, 28, 1), stored[:2])
    write_tfds(tmp_path / name / '3.1.0', features, {'train': train, 'test': test})
    dataset = load_dataset(name, data_dir=tmp_path)
    assert dataset.num_classes == classes
    assert dataset.y_train.tolist() == labels
    assert dataset.y_test.tolist() == labels[:2]
    np.testing.assert_array_equal(dataset.x_train, x.swapaxes(1, 2) if turned else x)


def test_labels_outside_of_the_classes(tmp_path, cached):
    features = {**GREY, 'label': tfds.features.ClassLabel(num_classes=37)}
    train, _ = labelled((28, 28, 1), [27, 1])
    write_tfds(tmp_path / 'emnist/letters/3.1.0', features, {'train': train, 'test': train})
    with pytest.raises(ValueError, match=r'labels from 0 to 26 in the split .train.*26 classes'):
        load_dataset('emnist/letters', data_dir=tmp_path)
    assert not list(cached.glob('*'))


@pytest.mark.parametrize(
    'feature, users, want',
    [
        (tfds.features.ClassLabel(num_classes=9), [8, 2, 8, 4], [2, 0, 2, 1]),
        (tfds.features.Scalar(np.int64), [500, -3, 500, 7], [2, 0, 2, 1]),
        (tfds.features.Text(), ['f10', 'f2', 'é', 'f10'], [0, 1, 2, 0]),
        (tfds.features.Scalar(np.float32), [0.5, 0.5, 1, 2], None),
    ],
)
def test_users(tmp_path, cached, caplog, feature, users, want):
    features = {**GREY, 'label': tfds.features.ClassLabel(num_classes=2), 'user': feature}
    train, _ = labelled((28, 28, 1), [0, 1, 1, 0], user=users)
    test, _ = labelled((28, 28, 1), [0], user=[users[1]])
    write_tfds(tmp_path / 'mine' / '1.0.0', features, {'train': train, 'test': test})
    for _ in 'decoded', 'cached':
        dataset = load_dataset('mine', data_dir=tmp_path)
        if want is None:
            assert dataset.users is None
            assert "feature 'user' of type Scalar" in caplog.text
        else:
            assert dataset.users.dtype == np.int32
            assert dataset.users.tolist() == want


def stored(store, **changes):
    """A dataset as a decoder makes it, in blocks of 5 images."""
    made = {**arrays(), **changes}
    x = [
        store(name, iter(np.array_split(made[name], 3)), len(made[name]))
        for name in ('x_train', 'x_test')
    ]
    labels = [made[name].astype(np.int32) for name in ('y_train', 'y_test')]
    users = made.get('users')
    return Dataset('toy', x[0], labels[0], x[1], labels[1], 3, users)


def not_again(store):
    raise AssertionError('decoded again')


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_cache(cached, dtype):
    x = {name: arrays()[name].astype(dtype) for name in ('x_train', 'x_test')}
    users = np.arange(12, dtype=np.int32) % 4
    cache.decoded('toy', lambda store: stored(store, **x, users=users))
    dataset = cache.decoded('toy', not_again)
    for name, array in {**arrays(), **x, 'users': users}.items():
        np.testing.assert_array_equal(getattr(dataset, name), array)
    assert (dataset.name, dataset.num_classes) == ('toy', 3)
    assert dataset.x_train.dtype == dtype
    assert isinstance(dataset.x_train.base, np.memmap)
    assert [path.name for path in cached.iterdir()] == ['toy']
    assert sorted(path.name for path in (cached / 'toy').iterdir()) == [
        'dataset.json', 'users.npy', 'x_test.npy', 'x_train.npy', 'y_test.npy', 'y_train.npy',
    ]  # fmt: skip
    # What training does with the images works on those of a file, too.
    with pytest.raises(ValueError, match='read-only'):
        dataset.x_train[0] = 0
    np.testing.assert_array_equal(dataset.x_train[users == 1], x['x_train'][users == 1])
    for got, want in zip(channel_statistics(dataset.x_train), channel_statistics(x['x_train'])):
        np.testing.assert_array_equal(got, want)
    mesh = make_mesh('all', most=4)
    (placed,) = replicate((dataset.x_train,), mesh)
    np.testing.assert_array_equal(placed, x['x_train'])
    np.testing.assert_array_equal(jax.device_put(dataset.x_train), x['x_train'])


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def rewrite(**changes):
    def damage(path):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


@pytest.mark.parametrize(
    'file, damage',
    [
        ('x_train.npy', cut),
        ('x_test.npy', cut),
        ('y_train.npy', cut),
        ('y_test.npy', Path.unlink),
        ('x_train.npy', Path.unlink),
        ('dataset.json', Path.unlink),
        ('dataset.json', cut),
        ('dataset.json', lambda path: path.write_text('[]')),
        ('dataset.json', rewrite(num_classes=2)),
        ('dataset.json', rewrite(num_classes='3')),
        ('dataset.json', rewrite(arrays={})),
        ('x_test.npy', lambda path: np.save(path, np.zeros((6, 4, 5, 1), np.uint8))),
        ('y_test.npy', lambda path: np.save(path, np.arange(5, dtype=np.int32))),
        ('y_test.npy', lambda path: np.save(path, np.zeros(6))),
    ],
)
def test_damaged_cache_is_made_again(cached, caplog, file, damage):
    cache.decoded('toy', stored)
    damage(cached / 'toy' / file)
    dataset = cache.decoded('toy', stored)
    assert 'is damaged and made again' in caplog.text
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])
    np.testing.assert_array_equal(cache.decoded('toy', not_again).y_test, arrays()['y_test'])
    assert [path.name for path in cached.iterdir()] == ['toy']


def test_failed_decoding_leaves_no_cache(cached):
    def fail(store):
        stored(store)
        raise ValueError('truncated image')

    with pytest.raises(ValueError, match='truncated image'):
        cache.decoded('toy', fail)
    assert list(cached.iterdir()) == []


def test_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / 'file').write_text('no folder')
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'file'))
    dataset = cache.decoded('toy', stored)
    assert 'cannot be written' in caplog.text
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])


def test_full_disk(cached, caplog, monkeypatch):
    def write(file, *_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(cache, '_write_header', write)
    dataset = cache.decoded('toy', stored)
    assert 'No space left on device' in caplog.text
    np.testing.assert_array_equal(dataset.x_test, arrays()['x_test'])
    assert list(cached.iterdir()) == []


def test_folders_are_replaced_as_a_whole(tmp_path):
    path = tmp_path / 'made'
    for text in 'first', 'second':
        with replacing(path) as folder:
            (folder / 'file').write_text(text)
            assert folder.parent == tmp_path
        assert (path / 'file').read_text() == text
    with pytest.raises(KeyboardInterrupt), replacing(path) as folder:
        (folder / 'other').write_text('third')
        raise KeyboardInterrupt
    assert [p.name for p in path.iterdir()] == ['file']
    # Two at once: the one that ends last stays, and nothing else does.
    with replacing(path) as slow:
        (slow / 'file').write_text('slow')
        with replacing(path) as fast:
            (fast / 'file').write_text('fast')
    assert (path / 'file').read_text() == 'slow'
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name, age in ('old', 3 * 24 * 3600), ('new', 60):
        left = tmp_path / f'.made.{name}.incomplete'
        left.mkdir()
        (left / 'file').write_text('half')
        for path in left / 'file', left:
            os.utime(path, (time.time() - age,) * 2)
    (tmp_path / '.made.file.incomplete').write_text('no folder')
    os.utime(tmp_path / '.made.file.incomplete', (1, 1))
    with replacing(tmp_path / 'made'):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ['.made.new.incomplete', 'made']


def test_what_a_killed_process_had_moved_away_comes_back(tmp_path):
    for text in 'old', 'newest':
        left = tmp_path / f'.made.{text}.replaced.incomplete'
        left.mkdir()
        (left / 'file').write_text(text)
        os.utime(left / 'file', (1, 1))
        os.utime(left, (1, 1))
        time.sleep(0.02)
    with pytest.raises(ValueError, match='wrong'), replacing(tmp_path / 'made'):
        raise ValueError('wrong')
    assert [p.name for p in tmp_path.iterdir()] == ['made']
    assert (tmp_path / 'made' / 'file').read_text() == 'newest'


@pytest.mark.parametrize('moment', [0, 1, 2])
def test_interrupted_replacement_loses_nothing(tmp_path, monkeypatch, moment):
    path = tmp_path / 'made'
    path.mkdir()
    (path / 'file').write_text('old')
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == moment + 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, 'rename', interrupted)
    with pytest.raises(KeyboardInterrupt), replacing(path) as folder:
        (folder / 'file').write_text('new')
    assert (path / 'file').read_text() == ('new' if moment == 2 else 'old')
    with replacing(path) as folder:
        (folder / 'file').write_text('again')
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def test_another_process_in_between(tmp_path, monkeypatch):
    path = tmp_path / 'made'
    rename, calls = Path.rename, []

    def late(self, target):
        calls.append(target)
        if target == path and len(calls) == 2:
            path.mkdir()
            (path / 'file').write_text('theirs')
        return rename(self, target)

    monkeypatch.setattr(Path, 'rename', late)
    with replacing(path) as folder:
        (folder / 'file').write_text('ours')
    assert (path / 'file').read_text() == 'ours'
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def write_images(root, files, mode='RGB', size=(5, 4)):
    rng = np.random.default_rng(0)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0]) if mode == 'L' else (size[1], size[0], len(mode))
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(root / name)
    return root


FILES = ('train/b/1.png', 'train/b/2.bmp', 'train/a/x.webp', 'train/c/y.jpeg', 'test/b/3.png')


@pytest.mark.parametrize('test', ['test', 'val'])
def test_image_folder(tmp_path, cached, test):
    root = write_images(tmp_path / 'my images', [name.replace('test', test) for name in FILES])
    (root / 'train/a/.DS_Store').write_text('hidden')
    dataset = load_dataset('image_folder', path=root)
    assert (dataset.name, dataset.num_classes) == ('my images', 3)
    assert dataset.x_train.shape == (4, 4, 5, 3)
    assert dataset.y_train.tolist() == [0, 1, 1, 2]
    assert dataset.y_test.tolist() == [1]
    for i, name in enumerate(['a/x.webp', 'b/1.png', 'b/2.bmp', 'c/y.jpeg']):
        with Image.open(root / 'train' / name) as image:
            np.testing.assert_array_equal(dataset.x_train[i], np.asarray(image))
    assert isinstance(dataset.x_train.base, np.memmap)


def test_image_folder_of_grey_images(tmp_path, cached):
    root = write_images(tmp_path / 'grey', FILES[:2] + FILES[4:], mode='L')
    assert load_dataset('image_folder', path=root).x_train.shape == (2, 4, 5, 1)
    write_images(root, ['train/b/coloured.png'], mode='RGBA')
    dataset = load_dataset('image_folder', path=root)
    assert dataset.x_train.shape == (3, 4, 5, 3)
    assert (dataset.x_train[0] == dataset.x_train[0, ..., :1]).all()


def test_image_folder_is_decoded_once_until_it_changes(tmp_path, cached, monkeypatch, caplog):
    root = write_images(tmp_path / 'x', FILES)
    first = load_dataset('image_folder', path=root)
    blocks = image_folder._blocks
    monkeypatch.setattr(image_folder, '_blocks', not_again)
    np.testing.assert_array_equal(load_dataset('image_folder', path=root).x_train, first.x_train)
    monkeypatch.setattr(image_folder, '_blocks', blocks)
    os.utime(root / FILES[0], (1, 1))
    load_dataset('image_folder', path=root)
    (root / FILES[0]).rename(root / 'train/b/0.png')
    (root / 'train/a/notes.txt').write_text('no image')
    (root / 'train/__MACOSX').mkdir()
    monkeypatch.chdir(tmp_path)
    load_dataset('image_folder', path='x/../x/')
    load_dataset('image_folder', path=root)
    assert len(list(cached.iterdir())) == 3
    assert '1 files are no images and left out, such as' in caplog.text


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda root: shutil.rmtree(root), 'there is no .*train'),
        (lambda root: shutil.rmtree(root / 'test'), 'there is no .*test'),
        (
            lambda root: write_images(root, ['test/d/1.png']),
            "class 'd' in .*test but not in",
        ),
        (lambda root: (root / 'train/d').mkdir(), 'train/d has no images .* class .d. there'),
        (lambda root: (root / 'test/c').mkdir(), 'test/c has no images'),
        (lambda root: shutil.rmtree(root / 'test/b'), 'test has no folders in it'),
        (
            lambda root: cut_half(root / 'train/b/1.png'),
            r'train/b/1\.png cannot be read as an',
        ),
        (lambda root: cut_half(root / 'train/c/y.jpeg'), r'train/c/y\.jpeg cannot be read as an'),
        (lambda root: (root / 'test/b/3.png').write_text('no'), r'test/b/3\.png cannot be read as'),
        (
            lambda root: write_images(root, ['test/b/4.png'], size=(4, 5)),
            r'test/b/4\.png has 4 x 5 pixels, but .*train/a/x\.webp has 5 x 4',
        ),
        (
            lambda root: Image.new('I;16', (5, 4)).save(root / 'train/b/4.png'),
            r'train/b/4\.png has more than 8 bits a channel',
        ),
        (
            lambda root: (root / 'train/b/4.tiff').write_bytes(wide_tiff()),
            r'train/b/4\.tiff has more than 8 bits a channel',
        ),
        (
            lambda root: (root / 'train/b/4.png').symlink_to('nowhere'),
            r'train/b/4\.png is a link that leads nowhere',
        ),
        (
            lambda root: (root / 'train/d').symlink_to('nowhere'),
            'train/d is a link that leads nowhere',
        ),
        (lambda root: (root / 'train/b/more').mkdir(), 'train/b/more is a folder, but images lie'),
        (
            lambda root: (root / 'test/b/3.png').write_text('no'),
            r'image \(of no known kind\): it is damaged',
        ),
    ],
)
def test_malformed_image_folder(tmp_path, cached, change, message):
    root = write_images(tmp_path / 'bad', FILES, size=(5, 4))
    change(root)
    with pytest.raises(ValueError, match=message):
        load_dataset('image_folder', path=root)
    assert not cached.exists() or not list(cached.iterdir())


def wide_tiff():
    """A TIFF of 5 x 4 pixels, three planes of 16 bits, of which Pillow keeps 8."""
    fields = [(256, 5), (257, 4), (258, 16), (259, 1), (262, 2), (277, 3), (284, 2)]
    places = [(273, 0), (279, 40)]  # of the planes, and their sizes
    data, entries = bytes(120), b''
    end = 8 + 2 + 12 * 9 + 4
    for tag, value in sorted(fields + places):
        values = {258: [16] * 3, 273: [end, end + 40, end + 80], 279: [40] * 3}.get(tag, [value])
        packed = struct.pack(f'<{len(values)}H', *values)
        if len(packed) > 4:
            packed, data = struct.pack('<I', end + len(data)), data + packed
        entries += struct.pack('<HHI4s', tag, 3, len(values), packed)
    return b'II*\0' + struct.pack('<IH', 8, 9) + entries + bytes(4) + data


def test_file_names_that_are_not_utf8(tmp_path, cached):
    root = write_images(tmp_path / 'x', FILES)
    folder = os.fsdecode(b'train/\xe9')
    (root / 'train/b').rename(root / folder)
    (root / 'test/b').rename(root / os.fsdecode(b'test/\xe9'))
    (root / folder / '1.png').rename(root / folder / os.fsdecode(b'\xff.png'))
    for _ in 'decoded', 'cached':
        dataset = load_dataset('image_folder', path=root)
        assert dataset.y_train.tolist() == [0, 1, 2, 2]


def cut_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_path_and_image_folder_go_together(tmp_path):
    for name, path in ('image_folder', None), ('digits', tmp_path):
        with pytest.raises(ValueError, match='--dataset=image_folder and --path=DIR go together'):
            load_dataset(name, path=path)
        with pytest.raises(ValueError, match=rf'--dataset={name} and --path=.*both'):
            check(Config(dataset=name, path=None if path is None else str(path)))
    check(Config(dataset='image_folder', path=str(tmp_path)))


def test_uniform_label_noise_takes_a_rate():
    with pytest.raises(ValueError, match=r'--label_noise_form=uniform .*but --label_noise=0\.0'):
        check(Config(label_noise_form='uniform'))
    check(Config(label_noise_form='uniform', label_noise=0.1))


def test_auxiliary_split():
    labels = np.repeat(np.arange(4), (10, 20, 30, 40))
    auxiliary, rest = split_auxiliary(labels, per_class=5, num_classes=4, seed=0)
    assert np.bincount(labels[auxiliary]).tolist() == [5, 5, 5, 5]
    assert np.array_equal(np.sort(np.concatenate([auxiliary, rest])), np.arange(100))
    none, all_ = split_auxiliary(labels, per_class=0, num_classes=4, seed=0)
    assert (len(none), len(all_)) == (0, 100)
    with pytest.raises(ValueError, match=r'per_class=10 .* class 0, which has 10'):
        split_auxiliary(labels, per_class=10, num_classes=4, seed=0)


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_channel_statistics(dtype):
    x = np.random.default_rng(0).integers(0, 256, (2500, 3, 3, 2)).astype(dtype)
    x[..., 1] = 7
    mean, std = channel_statistics(x)
    want = x.astype(np.float64).reshape(-1, 2)
    np.testing.assert_allclose(mean, want.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, [want[:, 0].std(), 1], rtol=1e-6)
