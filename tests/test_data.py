"""Datasets: what is read is what was written, and what is malformed is told."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from jaxfed.data import channel_statistics, load_dataset, split_auxiliary
from jaxfed.data import tfds as tfds_source


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
    import tensorflow_datasets as tfds

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
        tfds_source._decode_split('toy', Path('/d'), Builder(), 'train', 10)


real = pytest.mark.skipif('JAXFED_DATA_DIR' not in os.environ, reason='JAXFED_DATA_DIR is not set')


@real
def test_real_mnist_and_its_cache(tmp_path, monkeypatch, caplog):
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

    decode = tfds_source._decode
    monkeypatch.setattr(tfds_source, '_decode', no_decoding)
    again = load_dataset('mnist', data_dir=data_dir)
    np.testing.assert_array_equal(again.x_train, first.x_train)
    assert again.num_classes == 10
    # A cache file that was cut short is made again.
    (cached,) = Path(tmp_path).iterdir()
    cached.write_bytes(cached.read_bytes()[:100_000])
    monkeypatch.setattr(tfds_source, '_decode', decode)
    with caplog.at_level(logging.WARNING):
        repaired = load_dataset('mnist', data_dir=data_dir)
    assert 'is damaged and made again' in caplog.text
    np.testing.assert_array_equal(repaired.y_test, first.y_test)


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
