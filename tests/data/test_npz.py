"""Files of arrays: written arrays are read back, malformed ones are refused."""

import os
import pickle
import zipfile

import numpy as np
import pytest

from jaxfed import Config
from jaxfed.data import channel_statistics, load_npz
from jaxfed.internal import machine
from jaxfed.runs.deal import deal
from tests import memory


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


def test_npz_of_float64_becomes_float32(tmp_path):
    x = np.linspace(0, 1, 12 * 60).reshape(12, 4, 5, 3)
    np.savez(tmp_path / 'a.npz', **arrays(x_train=x, x_test=x[:6].astype(np.float32)))
    dataset = load_npz(tmp_path / 'a.npz')
    assert dataset.x_train.dtype == dataset.x_test.dtype == np.float32
    np.testing.assert_array_equal(dataset.x_train, x.astype(np.float32))


def test_npz_of_feature_vectors(tmp_path):
    x = np.arange(12 * 7.0).reshape(12, 7)
    np.savez(tmp_path / 'a.npz', **arrays(x_train=x, x_test=x[:6]))
    dataset = load_npz(tmp_path / 'a.npz')
    assert dataset.x_train.shape == (12, 1, 1, 7)
    np.testing.assert_array_equal(dataset.x_train[:, 0, 0], x)
    # Each feature has its mean and deviation.
    np.testing.assert_allclose(channel_statistics(dataset.x_train)[0], x.mean(0))


def test_npz_of_signals_are_not_channels_first(tmp_path):
    x = np.zeros((12, 1, 64, 9), np.float32)
    np.savez(tmp_path / 'a.npz', **arrays(x_train=x, x_test=x[:6]))
    assert load_npz(tmp_path / 'a.npz').x_train.shape == (12, 1, 64, 9)


@pytest.mark.parametrize(
    'users',
    [np.repeat([30, 10, 20], 4), np.repeat(['c', 'a', 'b'], 4), np.repeat([b'c', b'a', b'b'], 4)],
)
def test_npz_with_users(tmp_path, users):
    np.savez(tmp_path / 'a.npz', **arrays(users=users))
    settings = Config(
        dataset='npz', npz=str(tmp_path / 'a.npz'), partition='natural', num_clients=3
    )
    dealt = deal(settings)
    assert dealt.dataset.users.dtype == np.int32
    assert dealt.dataset.users.tolist() == [2] * 4 + [0] * 4 + [1] * 4
    assert sorted(part.tolist() for part in dealt.partition) == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]
    ]  # fmt: skip


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'y_train': np.arange(11) % 3}, '12 examples in x_train but 11 labels'),
        ({'y_train': np.arange(12) - 1}, 'labels from -1'),
        ({'y_test': np.arange(6)}, 'label 5 in y_test'),
        (
            {'y_train': np.append(np.arange(11) % 3, 900_000)},
            r'largest label 900000, .* only 4 different labels: number the classes 0\.\.3',
        ),
        ({'y_train': np.arange(12) / 2}, r'float64 in y_train: .*, as y_train\.astype\(int\)\.'),
        ({'y_train': np.eye(3)[np.arange(12) % 3]}, r'per example, as y_train\.argmax\(1\)\.'),
        ({'y_train': np.arange(12)[:, None] % 3}, r'per example, as y_train\.ravel\(\)\.'),
        (
            {'y_train': np.array(['cat'] * 12)},
            r'per example, as names = np\.unique\(np\.r_\[y_train, y_test\]\); .* y_test\)\.',
        ),
        ({'x_test': np.zeros((6, 4, 4, 3), np.uint8)}, r'\(4, 4, 3\) uint8 in x_test'),
        ({'x_test': np.zeros((6, 4, 5, 3), np.float32)}, 'float32 in x_test'),
        ({'x_train': np.zeros(12, np.uint8)}, r'shape \(12,\) in x_train'),
        (
            {'x_train': np.zeros((12, 60), np.uint8)},
            r'\(1, 1, 60\) uint8 in x_train but \(4, 5, 3\)',
        ),
        ({'x_train': np.zeros((12, 4, 5, 3), int)}, 'dtype int64 in x_train'),
        ({'x_train': np.full((12, 4, 5, 3), 1e39)}, '720 values in x_train .* beyond float32'),
        (
            {'x_train': np.zeros((12, 3, 32, 32), np.uint8)},
            r'shape \(12, 3, 32, 32\) in x_train, .* like channels first: .*transpose\(0, 2, 3, 1',
        ),
        (
            {'x_train': np.zeros((12, 1, 28, 28), np.uint8)},
            'looks like channels first.*Signals with as many samples as channels need padding',
        ),
        (
            {'y_train': np.arange(12) % 3 + 1, 'y_test': np.arange(6) % 3 + 1},
            'labels from 1 to 3: number the classes from 0, as in y - 1',
        ),
        ({'users': np.arange(11)}, r'shape \(11,\) and dtype int64 in users'),
        (
            {'users': np.zeros(12)},
            'dtype float64 in users: it must be one integer or text for each',
        ),
        ({'x_train': np.zeros((0, 4, 5, 3), np.uint8)}, 'shape .* in x_train'),
        ({'x_train': np.full((12, 4, 5, 3), np.nan, np.float32)}, '720 values in x_train'),
        ({'x_train': np.array([{}] * 12)}, 'an array x_train that cannot be read'),
    ],
)
def test_malformed_npz(tmp_path, changes, message):
    np.savez(tmp_path / 'bad.npz', **arrays(**changes))
    with pytest.raises(ValueError, match=rf'bad\.npz has .*{message}'):
        load_npz(tmp_path / 'bad.npz')


def test_an_npz_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    zeros = np.zeros((1 << 14, 32, 32, 1), np.uint8)  # 16 MiB in a file of some kB
    np.savez_compressed(tmp_path / 'bomb.npz', **arrays(x_train=zeros))
    assert (tmp_path / 'bomb.npz').stat().st_size < 100_000
    monkeypatch.setattr(machine, 'memory', lambda: float(1 << 23))
    with (
        memory.at_most(mib=1),
        pytest.raises(ValueError, match=r'bomb\.npz unpacks to 0\.0 GiB, but this process may'),
    ):
        load_npz(tmp_path / 'bomb.npz')


class Hostile:
    def __reduce__(self):
        return os.mkdir, ('executed',)


def test_an_npz_with_code_is_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez('bad.npz', **arrays(x_train=np.array([Hostile()] * 12, object)))
    with pytest.raises(ValueError, match='an array x_train that cannot be read'):
        load_npz('bad.npz')
    with zipfile.ZipFile('bad.npz', 'w') as archive:
        for name in arrays():
            archive.writestr(f'{name}.npy', pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match=r'bad\.npz'):
        load_npz('bad.npz')
    assert [path.name for path in tmp_path.iterdir()] == ['bad.npz']


def test_a_file_that_is_not_an_npz_archive(tmp_path):
    path = tmp_path / 'bad.npz'
    with pytest.raises(ValueError, match='is not a file'):
        load_npz(path)
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for content in (b'', b'text', whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r'is not an \.npz archive, or is truncated'):
            load_npz(path)
    np.savez(path, x_train=arrays()['x_train'])
    with pytest.raises(ValueError, match='has no y_train, x_test, y_test, only x_train'):
        load_npz(path)
    damaged = bytearray(whole)
    damaged[200] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'bad\.npz'):
        load_npz(path)
