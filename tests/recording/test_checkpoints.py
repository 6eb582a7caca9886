"""Checkpoints: saved states are restored, damaged ones are refused."""

import errno
import logging
import os
import shutil
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from jaxfed.recording import checkpoints
from jaxfed.recording.checkpoints import FOLDER, open_checkpoints, restore, save, wait
from tests.recorded_runs import make_state


@pytest.fixture(scope='module')
def written(tmp_path_factory):
    workdir = tmp_path_factory.mktemp('run')
    with open_checkpoints(workdir, keep=2) as store:
        for round_ in (1, 2, 5):
            state = make_state(round_)
            save(store, round_, state)
            state['clients']['c'][:] = 77  # as in further training
    return workdir


def read(workdir):
    with open_checkpoints(workdir, keep=2) as store:
        return restore(store, make_state(0)), store.manager.all_steps()


def test_the_newest_checkpoint_is_restored_unchanged(written):
    saved, steps = read(written)
    assert saved.round == 5
    assert sorted(steps) == [2, 5]  # two are kept
    chex.assert_trees_all_equal(saved.state, make_state(5))
    chex.assert_trees_all_equal_structs(saved.state, make_state(5))
    chex.assert_trees_all_equal_dtypes(saved.state, make_state(5))


def test_an_older_checkpoint_is_used_if_the_newest_fails_a_check(written, tmp_path, caplog):
    shutil.copytree(written, tmp_path / 'run')
    checked = []

    def check(round_, state, lines):
        checked.append((round_, int(state['server'][2])))
        if round_ > 2:
            raise ValueError('its lines are torn')

    def refuse(round_, state, lines):
        raise ValueError('its lines are torn')

    with open_checkpoints(tmp_path / 'run', keep=2) as store:
        with pytest.raises(ValueError, match=r'round 5: its lines are torn; round 2: its lines'):
            restore(store, make_state(0), refuse)
        assert sorted(store.manager.all_steps()) == [2, 5]
        with caplog.at_level(logging.WARNING, 'jaxfed'):
            assert restore(store, make_state(0), check).round == 2
        assert sorted(store.manager.all_steps()) == [2]
    assert checked == [(5, 5), (2, 2)]
    (message,) = [r.getMessage() for r in caplog.records if r.name == 'jaxfed']
    assert message == (
        'checkpoint of round 5 cannot be used (its lines are torn): continuing after round 2'
    )


@pytest.mark.parametrize(
    'error',
    [
        OSError(errno.EIO, 'Input/output error'),
        ValueError("... [os_error_code='24'] [tensorstore_spec=''{...}"),
    ],
)
@pytest.mark.parametrize('place', [(checkpoints, '_read'), (checkpoints.os, 'stat')])
def test_a_checkpoint_that_may_be_intact_is_kept(written, tmp_path, monkeypatch, error, place):
    shutil.copytree(written, tmp_path / 'run')
    inner = os.stat

    def fail(*arguments, **keywords):
        if place[1] == 'stat' and not str(arguments[0]).endswith('5/state/_METADATA'):
            return inner(*arguments, **keywords)
        raise error

    with open_checkpoints(tmp_path / 'run', keep=2) as store:
        with monkeypatch.context() as patch:
            patch.setattr(*place, fail)
            message = r"of round 5 in .* cannot be read now \([^{]*(error|'24'\])\); repeat"
            with pytest.raises(OSError, match=message):
                restore(store, make_state(0))
        assert restore(store, make_state(0)).round == 5


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert read(tmp_path)[0] is None


def files(workdir):
    return sorted(p for p in (workdir / FOLDER / '5').rglob('*') if p.is_file())


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 0x10
    path.write_bytes(bytes(held))


# Background reads continue when the manager is closed, here at once.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('damage', [truncate, flip, lambda path: path.unlink()])
def test_a_damaged_file_is_skipped_or_has_no_effect(written, tmp_path, damage, caplog):
    fell_back = 0
    for i, file in enumerate(files(written)):
        if not file.stat().st_size:
            continue
        workdir = tmp_path / str(i)
        shutil.copytree(written, workdir)
        damage(workdir / file.relative_to(written))
        caplog.clear()
        with caplog.at_level(logging.WARNING, 'jaxfed'):
            saved, steps = read(workdir)
        assert saved.round in (2, 5), file
        chex.assert_trees_all_equal(saved.state, make_state(saved.round))
        if saved.round == 2:
            fell_back += 1
            assert steps == [2]
    assert fell_back >= 3


@pytest.mark.parametrize('other', [{'server': np.zeros(3)}, make_state(0)['server']])
def test_a_checkpoint_of_another_structure_is_refused_and_kept(written, tmp_path, other):
    shutil.copytree(written, tmp_path / 'run')
    with open_checkpoints(tmp_path / 'run', keep=2) as store:
        with pytest.raises(
            ValueError, match=r'no checkpoint in .* can be used \(round 5: .*round 2: '
        ):
            restore(store, other)
        assert sorted(store.manager.all_steps()) == [2, 5]
    assert read(tmp_path / 'run')[0].round == 5


def test_empty_arrays_and_random_keys_are_restored(tmp_path):
    state = {'key': jax.random.key(3), 'none': jnp.zeros((0, 3)), 'one': np.ones(2)}
    with open_checkpoints(tmp_path, keep=1) as store:
        save(store, 4, state)
    like = state | {'key': jax.random.key(0), 'one': np.zeros(2)}
    with open_checkpoints(tmp_path, keep=1) as store:
        got = restore(store, like).state
    assert jax.random.key_data(got['key']).tolist() == jax.random.key_data(state['key']).tolist()
    assert got['none'].shape == (0, 3)
    np.testing.assert_array_equal(got['one'], 1)


@pytest.mark.parametrize('other', [np.zeros((5, 3), np.float32), np.zeros((5, 2), np.float64)])
def test_a_checkpoint_of_other_shapes_is_refused(written, tmp_path, other):
    shutil.copytree(written, tmp_path / 'run')
    like = make_state(0)
    like['clients']['c'] = other
    with (
        open_checkpoints(tmp_path / 'run', keep=2) as store,
        pytest.raises(ValueError, match=r'no checkpoint in .* can be used'),
    ):
        restore(store, like)


def test_an_array_that_declares_terabytes_is_not_read(written, tmp_path, caplog):
    shutil.copytree(written, tmp_path / 'run')
    state = tmp_path / 'run' / FOLDER / '5' / 'state'
    store = {'driver': 'ocdbt', 'base': f'file://{state}/', 'path': '000000/'}
    metadata = {'shape': [2**40], 'chunks': [1], 'dtype': '<f4', 'compressor': None}
    array = {'driver': 'zarr', 'kvstore': store, 'metadata': metadata}
    tensorstore.open(array, create=True, delete_existing=True).result()
    saved, steps = read(tmp_path / 'run')
    assert saved.round == 2 and steps == [2]
    assert 'round 5 cannot be used (it has arrays of another network' in caplog.text


@pytest.mark.parametrize(
    'then', [wait, lambda store: save(store, 3, make_state(3)), lambda store: None]
)
def test_a_checkpoint_that_cannot_be_written_is_an_os_error(tmp_path, monkeypatch, then):
    def full(*_, **__):
        raise ValueError('RESOURCE_EXHAUSTED: no space\nand much more')

    with (
        pytest.raises(OSError, match=r'checkpoint of round 2 could not be .*: RESO.* space$'),
        open_checkpoints(tmp_path, keep=2) as store,
    ):
        monkeypatch.setattr(store.manager, 'save', full)
        save(store, 2, make_state(2))
        then(store)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    goes_on, seen = threading.Event(), []
    with open_checkpoints(tmp_path, keep=2) as store:
        write = store.manager.save

        def late(*arguments, **options):
            seen.append(goes_on.wait(60))
            write(*arguments, **options)

        monkeypatch.setattr(store.manager, 'save', late)
        state = make_state(4)
        save(store, 4, state)
        state['clients']['c'][:] = 77
        goes_on.set()
        save(store, 6, make_state(6))  # after the one before
    assert seen == [True, True]
    assert sorted(read(tmp_path)[1]) == [4, 6]
    shutil.rmtree(tmp_path / FOLDER / '6')
    chex.assert_trees_all_equal(read(tmp_path)[0].state, make_state(4))


def test_the_state_is_copied_once(tmp_path):
    state = {'a': np.ones(2**22, np.float32)}
    with open_checkpoints(tmp_path, keep=1) as store:
        tracemalloc.start()
        try:
            for round_ in (1, 2):
                save(store, round_, state)
            wait(store)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert state['a'].nbytes < peak < 1.5 * state['a'].nbytes


def test_late_background_reads_print_nothing(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, 'unraisablehook', seen.append)
    late, other = (
        SimpleNamespace(exc_value=RuntimeError(text)) for text in ('Event loop is closed', 'other')
    )
    with open_checkpoints(tmp_path, keep=2):
        sys.unraisablehook(late)
        sys.unraisablehook(other)
    assert seen == [other]
    sys.unraisablehook(late)
    assert seen == [other, late]


def test_a_warning_about_damage_is_short(written, tmp_path, caplog):
    shutil.copytree(written, tmp_path / 'run')
    truncate(tmp_path / 'run' / FOLDER / '5' / 'state' / 'manifest.ocdbt')
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path / 'run')[0].round == 2
    (message,) = [r.getMessage() for r in caplog.records if 'orbax' not in r.pathname]
    assert message.startswith('checkpoint of round 5 cannot be used (') and len(message) < 300


def test_damaged_metadata_does_not_prevent_resuming(written, tmp_path, caplog):
    shutil.copytree(written, tmp_path / 'run')
    path = tmp_path / 'run' / FOLDER / '2' / '_CHECKPOINT_METADATA'
    # Two keys that orbax does not know.
    path.write_text(path.read_text().replace('_timestamp', '_time\\u001b[2J'))
    with caplog.at_level(logging.WARNING, 'jaxfed'):
        assert read(tmp_path / 'run')[0].round == 5
    (message,) = [r.getMessage() for r in caplog.records if r.name == 'jaxfed']
    assert 'metadata of a checkpoint in' in message and r'_time\x1b[2J_nsecs' in message


def test_an_unreadable_folder_is_reported(tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    def fail(*_, **__):
        raise RuntimeError('what it is\nand more')

    monkeypatch.setattr(ocp, 'CheckpointManager', fail)
    with (
        pytest.raises(ValueError, match=r'checkpoints cannot be read \(what it is\); start again'),
        open_checkpoints(tmp_path, keep=2),
    ):
        pass
