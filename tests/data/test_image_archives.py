"""CINIC-10 and Tiny-ImageNet: the prepared dataset equals the archive."""

import os

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import ImageFile

from jaxfed.data import load_dataset
from jaxfed.data.images import checked_rgb, png
from jaxfed.data.prepare import Official, cinic10, prepare
from tests.data.archives import (
    UNCHECKED,
    WRITERS,
    assert_refused,
    changed,
    cinic_files,
    encoded,
    plain,
    tiny_files,
    wide_png,
    write_folder,
    write_tar,
    write_zip,
)

CINIC10 = Official(None, {'train': 20, 'validation': 20, 'test': 20}, balanced=True)
TINY_IMAGENET = Official(None, {'train': 6, 'test': 2}, balanced=True)


@pytest.mark.parametrize('kind, root', [('.tar.gz', ''), ('.tar.gz', './CINIC-10/'), ('', 'x/')])
def test_cinic10(tmp_path, kind, root):
    archive = WRITERS[kind](tmp_path / f'archive{kind}', cinic_files(root))
    folder, made = prepare('cinic10', archive, tmp_path / 'data', official=CINIC10)
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


def test_the_order_does_not_depend_on_the_archive(tmp_path):
    files = cinic_files('CINIC-10/')
    backwards = dict(reversed(files.items()))
    folder = write_folder(tmp_path / 'a', files)
    archive = write_tar(tmp_path / 'a.tar.gz', backwards)
    first, _ = prepare('cinic10', folder, tmp_path / '1', official=UNCHECKED)
    second, _ = prepare('cinic10', archive, tmp_path / '2', official=UNCHECKED)
    a, b = (tfds.builder_from_directory(f).as_data_source('train') for f in (first, second))
    for i in range(20):
        np.testing.assert_array_equal(a[i]['image'], b[i]['image'])


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'train/cow/0.png': b''}, r'train/cow/0\.png of the class .cow., not one of airplane'),
        (
            {'test/dog/1.png': None},
            "1 examples of the class 'dog' in the split 'test', officially 2",
        ),
        ({'train/dog/2.png': b''}, "3 examples of the class 'dog' .* officially 2.*--nocounts"),
        ({'test/dog/1.png': b'no image'}, r'test/dog/1\.png cannot .* image \(unknown format\)'),
        ({'test/dog/1.png': encoded(plain(32, 0))[:60]}, r'test/dog/1\.png cannot be read'),
        (
            {'test/dog/1.png': encoded(plain(31, 0))},
            r'test/dog/1\.png has 31 x 31 pixels .* 32 x 32',
        ),
        ({'../test/dog/9.png': b''}, r"member '../test/dog/9\.png' outside its root"),
        ({'/etc/dog/9.png': b''}, r"member '/etc/dog/9\.png' outside its root"),
        ({'./README.md': b''}, r'has the file README\.md twice'),
        ({'old/test/dog/1.png': b''}, r"has CINIC-10 both in '\.' and in 'old'"),
        ({'test/dog/1.PNG': b''}, "3 examples of the class 'dog' in the split 'test'"),
        ({'test/dog/1.png': wide_png()}, r'test/dog/1\.png has more than 8 bits per channel'),
    ],
)
def test_malformed_cinic10(tmp_path, changes, message):
    archive = write_tar(tmp_path / 'bad.tar', changed(cinic_files(), changes), 'w')
    assert_refused(tmp_path, 'cinic10', archive, rf'bad\.tar.*{message}', CINIC10)


def test_split_without_examples(tmp_path):
    files = {name: data for name, data in cinic_files().items() if not name.startswith('test')}
    archive = write_folder(tmp_path / 'bad', files)
    assert_refused(tmp_path, 'cinic10', archive, "no examples in the split 'test'")


def test_names_that_are_not_utf8(tmp_path):
    files = cinic_files(per_class=1)
    files[os.fsdecode(b'train/cat/\xff.png')] = encoded(plain(32, 201))
    prepare('cinic10', write_tar(tmp_path / 'a.tar', files), tmp_path, official=UNCHECKED)
    dataset = load_dataset('cinic10', data_dir=tmp_path)
    assert sorted(dataset.x_train[dataset.y_train == 3, 0, 0, 0]) == [24, 200, 201]


@pytest.mark.parametrize('kind', ['.zip', ''])
def test_tiny_imagenet(tmp_path, kind):
    files = tiny_files()
    archive = WRITERS[kind](tmp_path / f'archive{kind}', files)
    folder, _ = prepare('tiny_imagenet', archive, tmp_path / 'data', official=TINY_IMAGENET)
    dataset = load_dataset('tiny_imagenet', data_dir=tmp_path / 'data')
    assert dataset.num_classes == 2
    assert dataset.x_train.shape == (6, 64, 64, 3)
    # Sorted ids: n01, written second, is class 0.
    by_class = [sorted(dataset.x_train[dataset.y_train == c, 0, 0, 0]) for c in (0, 1)]
    assert by_class == [[100, 101, 102], [0, 1, 2]]
    assert dataset.x_test[dataset.y_test == 0, 0, 0, 0].tolist() == [51]
    # The official JPEG files are kept, except the two grey ones.
    encoded_images = {'image': tfds.decode.SkipDecoding()}
    source = tfds.builder_from_directory(folder).as_data_source('train', decoders=encoded_images)
    images = {example['image'] for example in source}
    assert files['tiny-imagenet-200/train/n02/images/n02_0.JPEG'] in images
    assert sum(image.startswith(b'\x89PNG') for image in images) == 2


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
            "n03_0.JPEG has the class 'n03', which is not in wnids",
        ),
        ({'train/n02/images/n02_9.JPEG': b''}, "4 examples of the class 'n02'"),
        ({'train/n02/images/n02_9.jpeg': b''}, "4 examples of the class 'n02'"),
        (
            {'val/val_annotations.txt': b'val_0.JPEG\tn01\nval_1.JPEG\tn01\nval_0.JPEG\tn02\n'},
            r'two classes for val_0\.JPEG, n01 and n02',
        ),
        ({'train/n02/images/n02_0.JPEG': b''}, r'n02_0\.JPEG cannot be read as an image'),
    ],
)
def test_malformed_tiny_imagenet(tmp_path, changes, message):
    archive = write_zip(tmp_path / 'bad.zip', changed(tiny_files(root=''), changes))
    assert_refused(tmp_path, 'tiny_imagenet', archive, rf'bad\.zip.*{message}', TINY_IMAGENET)


def test_texts_with_a_byte_order_mark(tmp_path):
    files = tiny_files()
    for name in [name for name in files if name.endswith(('wnids.txt', 'annotations.txt'))]:
        files[name] = b'\xef\xbb\xbf' + files[name]
    prepare('tiny_imagenet', write_folder(tmp_path / 'a', files), tmp_path, official=UNCHECKED)
    dataset = load_dataset('tiny_imagenet', data_dir=tmp_path)
    assert np.bincount(dataset.y_train).tolist() == [3, 3]
    assert dataset.x_test[dataset.y_test == 0, 0, 0, 0].tolist() == [51]


def test_an_image_of_another_size_is_not_decoded(monkeypatch):
    data = png(np.zeros((8, 8, 3), np.uint8))
    monkeypatch.setattr(ImageFile.ImageFile, 'load', lambda self: pytest.fail('decoded'))
    with pytest.raises(ValueError, match='where has 8 x 8 pixels instead of 32 x 32'):
        checked_rgb(data, (32, 32), 'where')
