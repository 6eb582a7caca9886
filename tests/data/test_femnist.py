"""FEMNIST of LEAF and of TensorFlow Federated."""

import io
import json
import sys

import h5py
import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxfed.data import load_dataset
from jaxfed.data.prepare import Official, femnist, prepare
from tests.data.archives import (
    WRITERS,
    assert_refused,
    in_json,
    leaf,
    leaf_files,
    leaf_with,
    tff_files,
    write_folder,
    write_zip,
)


def assert_femnist(data_dir, *, first_train):
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
    dataset = assert_femnist(
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
    dataset = assert_femnist(tmp_path / 'data', first_train=[(0, 3), (1, 0), (1, 61), (2, 10)])
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


GOOD = leaf({'a': [1, 2], 'b': [3]})['user_data']


@pytest.mark.parametrize(
    'shard, message',
    [
        ({'users': ['a', 'b', 'ghost'], 'num_samples': [2, 1, 1]}, "3 writers in users.*'ghost'"),
        ({'users': ['a'], 'num_samples': [2]}, "1 writers in users.*'b' is missing"),
        ({'users': ['a', 'b', 'a']}, "the writer 'a' is twice in users"),
        ({'num_samples': [2, 2]}, "writer 'b' is.*1 images and 1 labels, 2 in num_samples"),
        ({'num_samples': [3]}, '1 in num_samples'),
        ({'users': 3}, 'is not in the format of LEAF'),
        ({'users': [['a'], ['b']]}, r'in the format of LEAF \(unhashable'),
        (
            {'user_data': {**GOOD, 'b': {'x': GOOD['b']['x']}}},
            r"in the format of LEAF \(KeyError: 'y'\)",
        ),
    ],
)
def test_malformed_leaf(tmp_path, shard, message):
    files = in_json({'train/a.json': leaf_with(**shard), 'test/a.json': leaf_with()})
    archive = write_zip(tmp_path / 'bad.zip', files)
    assert_refused(tmp_path, 'femnist', archive, rf'bad\.zip: train/a\.json.*{message}')


X = GOOD['b']['x']


@pytest.mark.parametrize(
    'x, y, message',
    [
        ([[0.5]], [3], r'pixels \(1, 1\), not 784 for each'),
        ([[2] * 784], [3], r'pixels outside 0\.\.1'),
        ([[float('nan')] * 784], [3], r'pixels outside 0\.\.1'),
        ([['0.5'] * 784], [3], 'pixels are not numbers'),
        ([[10**400] * 784], [3], 'pixels are not numbers|OverflowError'),
        (5, [3], 'no len'),
        (None, [3], 'no len'),
        (X, None, 'no len'),
        (X, [62], r'labels outside 0\.\.61'),
        (X, [2.5], r'labels outside 0\.\.61'),
        (X, '3', 'labels are not a list of numbers'),
        (X, [[3]], 'labels are not a list of numbers'),
        (X, ['3'], 'labels are not a list of numbers'),
        (X, [10**400], 'labels are not a list of numbers'),
        (X, [True], 'labels are not a list of numbers'),
        (2 * X, [3, True], 'labels are not a list of numbers'),
    ],
)
def test_malformed_writer_of_leaf(x, y, message):
    counts = [2, len(y) if y else 1]
    shard = leaf_with(num_samples=counts, user_data={**GOOD, 'b': {'x': x, 'y': y}})
    with pytest.raises(
        ValueError, match=rf"a\.json: the writer 'b' is not in the format.*{message}"
    ):
        list(femnist._parse_shard('a.json', json.dumps(shard).encode()))


def test_writers_whose_names_cannot_be_stored(tmp_path):
    files = in_json({'all_data/a.json': leaf({'\ud800': [1, 2]})})
    message = r"all_data/a\.json: the writer '\\ud800' is not in the format.*surrogates not allowed"
    assert_refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


@pytest.mark.parametrize(
    'pixels, label, message',
    [
        (np.full((1, 784), b'x'), [3], 'pixels are not numbers'),
        (np.zeros((1, 28, 28)), [b'3'], 'labels are not a list of numbers'),
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
        r'fed_emnist_test\.h5: the writer .u. is not in the format of TensorFlow Federated'
        rf'.*{message}'
    )
    assert_refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


@pytest.mark.parametrize(
    'files, message',
    [
        ({'all_data/a.json': b'[' * 200_000}, 'format of LEAF .(maximum recursion|Stack overflow)'),
        ({'train/a.json': b'{"users": ['}, 'has neither fed_emnist_train.h5 and'),
        (
            {'train/a.json': b'{"users": [', 'test/a.json': b'{}'},
            'format of LEAF .(Expecting value|KeyError)',
        ),
        ({'fed_emnist_train.h5': b''}, r'no fed_emnist_test\.h5'),
        (
            {**tff_files(), 'fed_emnist_test.h5': b'no'},
            r'fed_emnist_test\.h5 is not in the format of Tensor',
        ),
        (
            {**tff_files(), 'fed_emnist_test.h5': tff_files()['fed_emnist_test.h5'][:900]},
            'test.h5 is',
        ),
        (
            in_json({f'{s}/{i}.json': leaf_with() for s in ('train', 'test') for i in (0, 1)}),
            'who is also in',
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
            r'train/0\.JSON is not in the format of LEAF',
        ),
    ],
)
def test_malformed_femnist(tmp_path, files, message):
    assert_refused(tmp_path, 'femnist', write_folder(tmp_path / 'bad', files), message)


def test_hdf5_needs_h5py(tmp_path, monkeypatch):
    archive = write_folder(tmp_path / 'tff', tff_files())
    monkeypatch.setitem(sys.modules, 'h5py', None)
    assert_refused(tmp_path, 'femnist', archive, r"need h5py: pip install -e '.\[femnist\]'")


def test_femnist_counts(tmp_path):
    archive = write_folder(tmp_path / 'tff', tff_files())
    for official, message in [
        (Official(None, {'train': 5, 'test': 2}), "4 examples in the split 'train', officially 5"),
        (Official(users=4), r'train\.h5 has 3 writers, officially 4: .*--nocounts'),
    ]:
        assert_refused(tmp_path, 'femnist', archive, message, official)
