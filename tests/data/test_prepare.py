"""Datasets are prepared completely or not at all, by function and by command."""

import signal

import numpy as np
import pytest
import tensorflow_datasets as tfds
from absl import flags
from absl.testing import flagsaver

from jaxfed.data import load_dataset
from jaxfed.data import prepare as prepare_lib
from jaxfed.data.prepare import RECIPES, Official, cinic10, femnist, prepare
from jaxfed.data.prepare import __main__ as command
from jaxfed.internal import signals
from tests.data.archives import UNCHECKED, cinic_files, write_folder, write_tar


@pytest.fixture
def archive(tmp_path):
    return write_folder(tmp_path / 'a', cinic_files(per_class=1))


def test_large_splits_have_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_lib.write, '_SHARD', 4)
    monkeypatch.setattr(prepare_lib.write, '_BLOCK', 3)
    archive = write_folder(tmp_path / 'a', cinic_files(per_class=2))
    folder, _ = prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert len(list(folder.glob('cinic10-test.array_record-*'))) == 5
    dataset = load_dataset('cinic10', data_dir=tmp_path / 'data')
    np.testing.assert_array_equal(dataset.x_test[:, 0, 0, 0] // 8, 20 + dataset.y_test)


def test_a_finished_dataset_is_not_made_again_unless_asked(tmp_path, archive):
    folder, made = prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert made
    before = (folder / 'dataset_info.json').stat().st_mtime_ns
    assert prepare('cinic10', tmp_path / 'gone', tmp_path / 'data') == (folder, False)
    assert (folder / 'dataset_info.json').stat().st_mtime_ns == before
    # A failure keeps the old dataset, a success replaces it.
    with pytest.raises(ValueError, match='does not exist'):
        prepare('cinic10', tmp_path / 'gone', tmp_path / 'data', official=UNCHECKED, overwrite=True)
    assert len(load_dataset('cinic10', data_dir=tmp_path / 'data').y_train) == 11
    more = write_folder(tmp_path / 'b', cinic_files(per_class=2))
    assert prepare('cinic10', more, tmp_path / 'data', official=UNCHECKED, overwrite=True)[1]
    assert len(load_dataset('cinic10', data_dir=tmp_path / 'data').y_train) == 20
    assert [path.name for path in folder.parent.iterdir()] == ['1.0.0']


def test_a_folder_that_is_not_a_dataset_is_kept(tmp_path, archive):
    (tmp_path / 'cinic10/1.0.0').mkdir(parents=True)
    (tmp_path / 'cinic10/1.0.0/thesis.txt').write_text('mine')
    with pytest.raises(ValueError, match=r'cinic10/1\.0\.0 exists, .* not a prepared.*--overwrite'):
        prepare('cinic10', archive, tmp_path, official=UNCHECKED)
    assert (tmp_path / 'cinic10/1.0.0/thesis.txt').read_text() == 'mine'


@pytest.mark.slow
def test_a_dataset_made_again_is_decoded_again(tmp_path):
    files = cinic_files(per_class=1)
    swapped = {**files, 'train/dog/0.png': files['train/cat/0.png']}
    swapped['train/cat/0.png'] = files['train/dog/0.png']
    for number, found in enumerate((files, swapped)):
        archive = write_folder(tmp_path / str(number), found)
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED, overwrite=True)
        dataset = load_dataset('cinic10', data_dir=tmp_path / 'data')
        dog = dataset.x_train[dataset.y_train == cinic10.CLASSES.index('dog'), 0, 0, 0]
        assert dog.tolist() == [[40], [24]][number]


def test_data_dir_that_is_no_folder(tmp_path, archive):
    (tmp_path / 'file').write_text('no folder')
    with pytest.raises(ValueError, match=r'--data_dir=.*/file is a file; name a directory'):
        prepare('cinic10', archive, tmp_path / 'file', official=UNCHECKED)
    with pytest.raises(
        ValueError, match=r'--data_dir must be the folder of the datasets, but .*/file is a file'
    ):
        load_dataset('cinic10', data_dir=tmp_path / 'file')


def stop(*_):
    raise KeyboardInterrupt


def fill_disk(*_):
    raise RuntimeError('write() failed: No space left on device')


@pytest.mark.parametrize(
    'module, name, action, error, message',
    [
        (prepare_lib.write, '_read_again', stop, KeyboardInterrupt, None),
        (
            tfds.core.SequentialWriter, 'close_all', fill_disk,
            OSError, r'cinic10.*No space left on device',
        ),
        # As if the last block were lost.
        (tfds.core.SequentialWriter, 'close_all', lambda self: None, OSError, 'cinic10'),
    ],
)  # fmt: skip
def test_failures_leave_nothing_in_place(
    tmp_path, archive, monkeypatch, module, name, action, error, message
):
    monkeypatch.setattr(module, name, action)
    with pytest.raises(error, match=message):
        prepare('cinic10', archive, tmp_path / 'data', official=UNCHECKED)
    assert not list((tmp_path / 'data').glob('*/*'))


def test_unprepared_datasets_name_the_command(tmp_path):
    with pytest.raises(ValueError, match=r'python -m jaxfed\.data\.prepare femnist --archive=FILE'):
        load_dataset('femnist', data_dir=tmp_path)
    with pytest.raises(
        ValueError, match=r"'mnist' is not a dataset that can be prepared: cinic10, femnist"
    ):
        prepare('mnist', tmp_path, tmp_path)
    for archive in None, '':
        with pytest.raises(ValueError, match=r'download it from https://datashare.*--archive=FILE'):
            prepare('cinic10', archive, tmp_path)
    for name in 'cinic10/x', 'cinic10:2.0.0':
        with pytest.raises(ValueError, match=r'only version 1\.0\.0 .*; use --dataset=cinic10\.$'):
            load_dataset(name, data_dir=tmp_path)


@pytest.fixture
def run(capsys):
    # Removes flags that another test may have defined.
    values = flags.FLAGS
    others = {name: values[name] for name in ('archive', 'data_dir') if name in values}
    for name in others:
        delattr(values, name)
    before = set(values)
    command.define_flags()
    values.mark_as_parsed()

    def run(*arguments, **settings):
        with flagsaver.flagsaver(**settings):
            status = command.main(['prepare', *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    yield run
    for name in set(values) - before:
        delattr(values, name)
    for name, flag in others.items():
        values[name] = flag


def test_command_line(tmp_path, run):
    archive = str(write_tar(tmp_path / 'a.tar.gz', cinic_files(per_class=1)))
    data_dir = str(tmp_path / 'data')
    status, _, error = run('cinic10', archive=archive, data_dir=data_dir)
    assert (status, 'MD5' in error) == (2, True)
    settings = {'archive': archive, 'data_dir': data_dir, 'checksum': False}
    status, _, error = run('cinic10', **settings)
    assert (status, 'officially 9000' in error) == (2, True)
    status, shown, _ = run('cinic10', **settings, counts=False)
    assert status == 0
    assert f'--dataset=cinic10 --data_dir={data_dir}' in shown
    assert 'reading images 31/31' in shown
    status, shown, _ = run('cinic10', **settings)
    assert (status, 'already prepared' in shown) == (0, True)
    for arguments, message in ((), 'none'), (('mnist',), 'can be prepared'), (('a', 'b'), 'a b'):
        status, _, error = run(*arguments, **settings)
        assert (status, message in error) == (2, True)


def test_interrupted_command(tmp_path, archive, run, monkeypatch, capsys):
    class Ended(BaseException):
        pass

    def end(status):
        raise Ended(status)

    def stop(*_):
        (unfinished,) = (tmp_path / 'data' / 'cinic10').iterdir()
        assert unfinished.name.endswith('.incomplete')
        signal.raise_signal(number)  # os.kill may reach another thread first

    monkeypatch.setattr(signals.os, '_exit', end)
    monkeypatch.setattr(prepare_lib, 'write_dataset', stop)
    for number, word in (signal.SIGINT, 'interrupted'), (signal.SIGTERM, 'terminated'):
        with pytest.raises(Ended, match=str(128 + number)):
            run(
                'cinic10',
                archive=str(archive),
                data_dir=str(tmp_path / 'data'),
                counts=False,
            )
        assert capsys.readouterr().err == (
            f'error: {word}; nothing was prepared, and existing data is unchanged.\n'
        )
        assert not list((tmp_path / 'data').rglob('*'))


def test_official_numbers():
    assert {name: recipe.official for name, recipe in RECIPES.items()} == {
        'cinic10': Official(
            'md5:6ee4d0c996905fe93221de577967a372',
            {'train': 90_000, 'validation': 90_000, 'test': 90_000},
            True,
        ),
        'femnist': Official(
            'sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0',
            {'train': 671_585, 'test': 77_483},
            users=3400,
        ),
        'tiny_imagenet': Official(
            'md5:90528d7ca1a48142e341f4ef8d21d0de', {'train': 100_000, 'test': 10_000}, True
        ),
    }
    assert len(femnist.CLASSES) == 62
