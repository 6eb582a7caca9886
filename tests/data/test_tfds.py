"""Datasets of TensorFlow Datasets, written by the tests or real ones."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxfed.data import cache, channel_statistics, images, load_dataset
from jaxfed.data import tfds as tfds_source


def test_missing_tfds_dataset_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '.\[prepare\]'") as error:
        load_dataset('cifar10', data_dir=tmp_path)
    assert '\n' not in str(error.value)
    assert f'--data_dir={tmp_path}' in str(error.value)


def test_a_missing_tfds_dataset_is_prepared_if_tensorflow_is_installed(tmp_path, monkeypatch):
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
    for name in 'cifar1O', 'CIFAR10':
        with pytest.raises(ValueError, match=rf'--dataset={name} is not .* Did you mean .*cifar10'):
            load_dataset(name, data_dir=tmp_path)
    with pytest.raises(ValueError, match=r'does not have it\. Pass another --data_dir if'):
        load_dataset('qqqqqqqq', data_dir=tmp_path)
    with pytest.raises(ValueError, match='is not a dataset name'):
        load_dataset('../secrets', data_dir=tmp_path)


@pytest.mark.parametrize('inside', ['toy', 'toy/1.0.0', 'other'])
def test_a_data_dir_inside_the_folder_of_datasets_names_the_parent(tmp_path, inside):
    (tmp_path / 'toy' / '1.0.0').mkdir(parents=True)
    (tmp_path / 'toy' / '1.0.0' / 'dataset_info.json').write_text('{}')
    message = rf'{inside}; pass the parent folder, --data_dir={tmp_path}\.$'
    with pytest.raises(ValueError, match=message):
        load_dataset('toy', data_dir=tmp_path / inside)


DAMAGED = r'1\.0\.0/dataset_info\.json.*prepare .* again'


@pytest.mark.parametrize(
    'content, message',
    [
        ('{"name": ', DAMAGED),
        ('[]', DAMAGED),
        ('{"fileFormat": "array_record"}', DAMAGED),
        ('{"name": "toy"}', 'is stored as tfrecord'),
    ],
)
def test_damaged_description(tmp_path, content, message):
    folder = tmp_path / 'toy' / '1.0.0'
    folder.mkdir(parents=True)
    (folder / 'dataset_info.json').write_text(content)
    with pytest.raises(ValueError, match=f'--dataset=toy .*{message}'):
        load_dataset('toy', data_dir=tmp_path)


@pytest.mark.parametrize('fails_at', [0, 2000])
def test_damaged_records(fails_at):
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


@pytest.mark.slow
@real
def test_real_mnist_and_its_cache(monkeypatch):
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


def test_cifar100(tmp_path):
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
def test_grey_sets(tmp_path, name, stored_classes, stored, classes, labels, turned):
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
def test_users(tmp_path, caplog, feature, users, want):
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
