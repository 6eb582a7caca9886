"""Decoded datasets on disk."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxfed.data import cache, channel_statistics
from jaxfed.engine.devices import make_mesh, replicate
from jaxfed.internal import machine
from jaxfed.types import Dataset
from tests.data.test_npz import arrays

posix = pytest.mark.skipif(os.name != 'posix', reason='Windows has no owner and mode of a file')


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
    # The operations of training also work on memory-mapped images.
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
    assert 'is damaged and is written again' in caplog.text
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])
    np.testing.assert_array_equal(cache.decoded('toy', not_again).y_test, arrays()['y_test'])
    assert [path.name for path in cached.iterdir()] == ['toy']


def test_failed_decoding_leaves_no_cache(cached):
    def fail(store):
        stored(store)
        raise ValueError('truncated image')

    with pytest.raises(ValueError, match='truncated image'):
        cache.decoded('toy', fail)
    assert not list(cached.iterdir())


def test_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / 'file').write_text('no folder')
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'file'))
    dataset = cache.decoded('toy', stored)
    assert 'The cache cannot be used' in caplog.text
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])


@posix
@pytest.mark.parametrize('place', ['.', 'toy', 'toy/x_train.npy'])
@pytest.mark.parametrize('how', ['writable', 'foreign'])
def test_a_cache_that_another_user_may_have_written_is_not_read(
    cached, place, how, caplog, monkeypatch
):
    cache.decoded('toy', stored)
    assert not os.stat(cached).st_mode & 0o077
    os.chmod(cached, 0o755)
    np.save(cached / 'toy' / 'x_train.npy', np.zeros_like(arrays()['x_train']))  # planted
    if how == 'writable':
        os.chmod(cached / place, 0o777)
        message = f'{cached / place} can be written by other users; remove it'
    else:
        foreign, inner = (cached / place).stat(), Path.stat
        other = os.stat_result([*foreign[:4], os.geteuid() + 1, *foreign[5:]])
        monkeypatch.setattr(Path, 'stat', lambda p, **_: other if p == cached / place else inner(p))
        message = f'{cached / place} belongs to another user; remove it'
    dataset = cache.decoded('toy', stored)
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])
    assert message in caplog.text and caplog.text.count('\n') == 1


@posix
def test_a_closed_cache_may_have_files_of_any_mode(cached):
    cache.decoded('toy', stored)  # the umask of many systems lets the group write
    os.chmod(cached / 'toy' / 'x_train.npy', 0o664)
    dataset = cache.decoded('toy', not_again)
    np.testing.assert_array_equal(dataset.x_train, arrays()['x_train'])


def test_a_dataset_larger_than_disk_and_memory_is_refused(cached, caplog, monkeypatch):
    usage = shutil.disk_usage(cached.parent)
    monkeypatch.setattr(cache.shutil, 'disk_usage', lambda path: usage._replace(free=100))
    np.testing.assert_array_equal(cache.decoded('toy', stored).x_train, arrays()['x_train'])
    assert 'x_train needs 720 bytes' in caplog.text and not list(cached.iterdir())
    monkeypatch.setattr(machine, 'memory', lambda: 719.0)
    with pytest.raises(ValueError, match='The array x_train of the dataset unpacks to'):
        cache.decoded('toy', stored)


def test_full_disk(cached, caplog, monkeypatch):
    def write(file, *_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(np.lib.format, 'write_array_header_2_0', write)
    dataset = cache.decoded('toy', stored)
    assert 'No space left on device' in caplog.text
    np.testing.assert_array_equal(dataset.x_test, arrays()['x_test'])
    assert not list(cached.iterdir())
