"""Files of arrays: what is read is what was written, and what is malformed is refused."""

import numpy as np
import pytest

from jaxfed.data import load_npz


def arrays(**changes):
    rng = np.random.default_rng(0)
    made = {
        'x_train': rng.integers(0, 256, (12, 4, 5, 3)).astype(np.uint8),
        'y_train': np.arange(12) % 3,
        'x_test': rng.integers(0, 256, (6, 4, 5, 3)).astype(np.uint8),
        'y_test': np.arange(6) % 3,
    }
    return {**made, **changes}


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_npz(tmp_path, dtype):
    want = arrays()
    want['x_train'], want['x_test'] = (want[k].astype(dtype) for k in ('x_train', 'x_test'))
    np.savez(tmp_path / 'mine.npz', **want)
    dataset = load_npz(tmp_path / 'mine.npz')
    assert (dataset.name, dataset.num_classes) == ('mine', 3)
    for key, array in want.items():
        np.testing.assert_array_equal(getattr(dataset, key), array)
    assert dataset.y_train.dtype == np.int32
    assert dataset.x_train.dtype == dtype


def test_npz_without_channels_gets_one(tmp_path):
    flat = arrays(x_train=np.zeros((12, 4, 5), np.uint8), x_test=np.zeros((6, 4, 5), np.uint8))
    np.savez(tmp_path / 'a.npz', **flat)
    assert load_npz(tmp_path / 'a.npz').x_train.shape == (12, 4, 5, 1)


def test_npz_may_lack_a_class(tmp_path):
    want = arrays(y_train=np.arange(12) % 3 * 2, y_test=np.arange(6) % 2)
    np.savez(tmp_path / 'a.npz', **want)
    assert load_npz(tmp_path / 'a.npz').num_classes == 5


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
        load_npz(tmp_path / 'bad.npz')


def test_npz_that_is_none(tmp_path):
    path = tmp_path / 'bad.npz'
    with pytest.raises(ValueError, match='is not a file'):
        load_npz(path)
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for content in (b'', b'text', whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r'is not an \.npz archive, or was cut short'):
            load_npz(path)
    np.savez(path, x_train=arrays()['x_train'])
    with pytest.raises(ValueError, match='has no y_train, x_test, y_test, only x_train'):
        load_npz(path)
    damaged = bytearray(whole)
    damaged[200] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'bad\.npz'):
        load_npz(path)
