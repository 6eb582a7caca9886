"""Folders that replace others as a whole."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from jaxfed.internal.folders import replacing


def test_folders_are_replaced_as_a_whole(tmp_path):
    path = tmp_path / 'made'
    for text in 'first', 'second':
        with replacing(path) as folder:
            (folder / 'file').write_text(text)
            assert folder.parent == tmp_path
        assert (path / 'file').read_text() == text
    with pytest.raises(KeyboardInterrupt), replacing(path) as folder:
        (folder / 'other').write_text('third')
        raise KeyboardInterrupt
    assert [p.name for p in path.iterdir()] == ['file']
    # Two at once: the last one remains, without other files.
    with replacing(path) as slow:
        (slow / 'file').write_text('slow')
        with replacing(path) as fast:
            (fast / 'file').write_text('fast')
    assert (path / 'file').read_text() == 'slow'
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def test_folders_of_a_killed_process_are_removed(tmp_path):
    for name, age in ('old', 3 * 24 * 3600), ('new', 60):
        left = tmp_path / f'.made.{name}.incomplete'
        left.mkdir()
        (left / 'file').write_text('half')
        for path in left / 'file', left:
            os.utime(path, (time.time() - age,) * 2)
    (tmp_path / '.made.file.incomplete').write_text('no folder')
    os.utime(tmp_path / '.made.file.incomplete', (1, 1))
    with replacing(tmp_path / 'made'):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ['.made.new.incomplete', 'made']


def test_a_folder_that_a_killed_process_moved_is_restored(tmp_path):
    for number, text in (1, 'old'), (3, 'newest'), (2, 'older'):
        left = tmp_path / f'.made.{number}.replaced'
        left.mkdir()
        (left / 'file').write_text(text)
        os.utime(left / 'file', (1, 1))
        os.utime(left, (1, 1))
    with pytest.raises(ValueError, match='wrong'), replacing(tmp_path / 'made'):
        raise ValueError('wrong')
    assert [p.name for p in tmp_path.iterdir()] == ['made']
    assert (tmp_path / 'made' / 'file').read_text() == 'newest'


@pytest.mark.parametrize('moment', [0, 1, 2])
def test_interrupted_replacement_loses_nothing(tmp_path, monkeypatch, moment):
    path = tmp_path / 'made'
    path.mkdir()
    (path / 'file').write_text('old')
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == moment + 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, 'rename', interrupted)
    with pytest.raises(KeyboardInterrupt), replacing(path) as folder:
        (folder / 'file').write_text('new')
    assert (path / 'file').read_text() == ('new' if moment == 2 else 'old')
    with replacing(path) as folder:
        (folder / 'file').write_text('again')
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def test_another_process_in_between(tmp_path, monkeypatch):
    path = tmp_path / 'made'
    rename, calls = Path.rename, []

    def late(self, target):
        calls.append(target)
        if target == path and len(calls) == 2:
            path.mkdir()
            (path / 'file').write_text('theirs')
        return rename(self, target)

    monkeypatch.setattr(Path, 'rename', late)
    with replacing(path) as folder:
        (folder / 'file').write_text('ours')
    assert (path / 'file').read_text() == 'ours'
    assert [p.name for p in tmp_path.iterdir()] == ['made']


def replace_often(path, text):
    for _ in range(30):
        with replacing(path) as folder:
            for name in 'a', 'b':
                (folder / name).write_text(text)


@pytest.mark.slow
def test_several_processes_at_once(tmp_path):
    path = tmp_path / 'made'
    spawn = multiprocessing.get_context('spawn')
    workers = [spawn.Process(target=replace_often, args=(path, text)) for text in 'xyz']
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ['made']
    assert (path / 'a').read_text() == (path / 'b').read_text()


def test_a_failure_leaves_no_new_parent(tmp_path):
    for parent in tmp_path / 'new', tmp_path:
        with pytest.raises(KeyError), replacing(parent / 'made'):
            raise KeyError
    assert list(tmp_path.iterdir()) == []
