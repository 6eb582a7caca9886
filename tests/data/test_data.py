"""Small datasets, splits and statistics."""

import numpy as np
import pytest
import sklearn.datasets

from jaxfed.config import Config
from jaxfed.data import channel_statistics, digits, load_dataset, split_auxiliary
from jaxfed.runs.checks import check


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


@pytest.mark.parametrize('file', [digits._FILE, 'moved'])
def test_digits_are_those_of_scikit_learn(monkeypatch, file):
    monkeypatch.setattr(digits, '_FILE', file)
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    np.testing.assert_array_equal(digits._read(), np.column_stack([pixels, labels]))


@pytest.mark.parametrize('reader, flag', [('image_folder', 'path'), ('npz', 'npz')])
def test_a_dataset_and_its_file_go_together(reader, flag):
    for name, file, message in (
        (reader, None, rf'--dataset={reader} needs --{flag}=(FILE|DIR)\.$'),
        ('digits', 'x', rf'--{flag}=x needs --dataset={reader}, got --dataset=digits\.$'),
    ):
        with pytest.raises(ValueError, match=message):
            load_dataset(name, **{flag: file})
        with pytest.raises(ValueError, match=message):
            check(Config(dataset=name, **{flag: file}))
    check(Config(dataset=reader, **{flag: 'x'}))


def test_uniform_label_noise_needs_a_rate():
    with pytest.raises(ValueError, match=r'--label_noise_form=uniform needs --label_noise'):
        check(Config(label_noise_form='uniform'))
    check(Config(label_noise_form='uniform', label_noise=0.1))


def test_auxiliary_split():
    labels = np.repeat(np.arange(4), (10, 20, 30, 40))
    auxiliary, rest = split_auxiliary(labels, per_class=5, num_classes=4, seed=0)
    assert np.bincount(labels[auxiliary]).tolist() == [5, 5, 5, 5]
    assert np.array_equal(np.sort(np.concatenate([auxiliary, rest])), np.arange(100))
    none, all_ = split_auxiliary(labels, per_class=0, num_classes=4, seed=0)
    assert (len(none), len(all_)) == (0, 100)
    for per_class, message in (10, 'below 10, .* class 0, got 10'), (-1, 'at least 0, got -1'):
        with pytest.raises(ValueError, match=message):
            split_auxiliary(labels, per_class=per_class, num_classes=4, seed=0)


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_channel_statistics(dtype):
    x = np.random.default_rng(0).integers(0, 256, (2500, 3, 3, 2)).astype(dtype)
    x[..., 1] = 7
    mean, std = channel_statistics(x)
    want = x.astype(np.float64).reshape(-1, 2)
    np.testing.assert_allclose(mean, want.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, [want[:, 0].std(), 1], rtol=1e-6)
