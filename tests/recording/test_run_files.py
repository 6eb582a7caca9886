"""Records of a run that is interrupted, resumed, or on a full disk."""

import dataclasses
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import optax
import pytest

from jaxfed import Config
from jaxfed.engine.cohorts import SAMPLINGS
from jaxfed.engine.optimizers import OPTIMIZERS, of_gradient
from jaxfed.internal import files
from jaxfed.internal.locks import exclusive_lock
from jaxfed.internal.signals import ending, stopping
from jaxfed.methods import Part, resolve
from jaxfed.models import MODELS
from jaxfed.recording import log, run_files
from jaxfed.recording.own_code import own_code
from tests.recorded_runs import make_run


def started(workdir, **changes):
    return run_files.make_workdir(Config(workdir=str(workdir), **changes), [])


def write(workdir, entries):
    with log.open_lines(workdir) as file:
        for entry in entries:
            log.append(file, entry)


ROUNDS = [{'round': r, 'value': r / 7} for r in range(1, 6)]


def test_lines_are_appended_and_cut_off_after_a_round(tmp_path):
    write(tmp_path, ROUNDS[:3])
    write(tmp_path, ROUNDS[3:])
    path = tmp_path / run_files.METRICS
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROUNDS
    with path.open('a') as file:
        file.write('{"round": 6, "val')  # torn
    assert log.rewind(tmp_path, 4) == ROUNDS[:4]
    write(tmp_path, ROUNDS[4:])
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROUNDS
    assert log.rewind(tmp_path, 0) == []
    assert path.read_text() == ''
    assert [p.name for p in tmp_path.iterdir()] == [run_files.METRICS]


@pytest.mark.parametrize(
    'text',
    [
        '',
        '{"round": 1}\n',
        '{"round": 1}\n{"round": 3}\n',
        '{"round": 1}\n{"roun\n',
        '[]\n{"round": 2}\n',
        '\xff\n\n',
    ],
)
def test_lines_that_a_checkpoint_needs_must_exist(tmp_path, text):
    path = tmp_path / run_files.METRICS
    path.write_bytes(text.encode('latin1'))
    with pytest.raises(ValueError, match=r'metrics.jsonl lacks some of the first 2 rounds'):
        log.rewind(tmp_path, 2)
    with pytest.raises(ValueError, match=r'2 rounds: it is damaged; use a copy of it'):
        log.read(tmp_path, 2)
    assert path.read_bytes() == text.encode('latin1')


def test_other_lines_than_those_of_the_run_are_refused(tmp_path):
    parts, config = resolve('fedavg', {}), Config(workdir=str(tmp_path))
    run_files.make_workdir(config, parts)
    listed = dataclasses.replace(config, csv=True)
    with log.open_log(listed, parts, tmp_path, 0) as opened:
        for entry in ROUNDS[:2]:
            opened.record(entry)
        digest = opened.digest()
    with log.open_log(config, parts, tmp_path, 2) as opened:
        assert opened.digest() == digest
        assert not (tmp_path / 'metrics.csv').exists()  # it would lack the later rounds
        opened.record(ROUNDS[2])
        assert opened.digest() != digest
    assert log.read(tmp_path, 2, digest) == ROUNDS[:2]
    path = tmp_path / run_files.METRICS
    path.write_text(path.read_text().replace('"round": 2, ', '"round": 2, "value": 0.9, '))
    assert log.read(tmp_path, 2)[0] == ROUNDS[0]
    with pytest.raises(ValueError, match=r'metrics.jsonl has changed in the first 2 rounds: it is'):
        log.read(tmp_path, 2, digest)


@pytest.mark.parametrize(
    'changes',
    [
        {'rounds': '<script>'}, {'rounds': None}, {'failed': 0}, {'final_accuracy': 'a'},
        {'best_accuracy': 1e999}, {'final_accuracy': [0.5]}, {'best_accuracy': 'absent'},
        {'personal_accuracy': 'absent'}, {'personal_accuracy': 2},
    ],
)  # fmt: skip
def test_a_summary_of_other_content_is_named(tmp_path, changes):
    path = tmp_path / run_files.SUMMARY
    accuracies = {'final_accuracy': 0.5, 'best_accuracy': None, 'personal_accuracy': 0.5}
    whole = {'rounds': 3, 'failed': False, **accuracies}
    path.write_text(json.dumps(whole))
    assert run_files.read_summary(path) == whole
    made = whole | changes
    path.write_text(json.dumps({name: made[name] for name in made if made[name] != 'absent'}))
    with pytest.raises(ValueError, match=r'summary.json is not the summary of a run: it is dam'):
        run_files.read_summary(path)


def test_a_full_disk_leaves_no_torn_line(tmp_path):
    import resource

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with log.open_lines(tmp_path) as file:
            log.append(file, ROUNDS[0])
            # The disk has room for a part of the next line.
            size = (tmp_path / run_files.METRICS).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
            with pytest.raises(OSError, match=r'metrics.jsonl|File too large'):
                log.append(file, ROUNDS[1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            log.append(file, ROUNDS[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    held = (tmp_path / run_files.METRICS).read_text().splitlines()
    assert [json.loads(line) for line in held] == ROUNDS[:2]


def test_recorded_settings_are_shown_in_one_line(tmp_path):
    started(tmp_path)
    path = tmp_path / run_files.CONFIG
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {'dataset': 'a\n\x1b[2J', 'n\n': 1, 'measure': None}))
    with pytest.raises(ValueError, match='--dataset=') as raised:
        started(tmp_path)
    shown = str(raised.value)
    assert r'--dataset=a\n\x1b[2J there, digits here' in shown and r'--n\n=1 there' in shown
    assert shown.isprintable() and '--measure=None there, none here' in shown
    config = Config(workdir=str(tmp_path))
    differing = run_files.differing(tmp_path, config, [], measures='included')
    assert differing['measure'] == (None, 'none')


def test_a_run_is_resumed_with_the_same_settings_only(tmp_path):
    workdir = tmp_path / 'run'
    started(workdir, alpha=0.3)
    before = (workdir / run_files.CONFIG).read_bytes()
    # Settings that do not affect results may change.
    started(workdir, alpha=0.3, devices='2', lanes=1, checkpoint_every=1, data_dir='/else')
    with pytest.raises(ValueError, match=r'\(--alpha=0.3 there, 0.5 here, --rounds=30 there, 31 h'):
        started(workdir, alpha=0.5, rounds=31)
    with pytest.raises(ValueError, match=r'already holds a run \(config.json\)'):
        started(workdir, alpha=0.3, resume=False)
    # The hyper-parameters of another method would be flags that do not exist.
    with pytest.raises(ValueError, match=r'\(--method=fedavg there, fedprox here\)'):
        started(workdir, alpha=0.3, method='fedprox')
    assert (workdir / run_files.CONFIG).read_bytes() == before
    (workdir / run_files.SUMMARY).write_text('{}')
    with pytest.raises(ValueError, match='already holds a finished run'):
        started(workdir, alpha=0.3)
    (workdir / run_files.CONFIG).unlink()
    with pytest.raises(ValueError, match=r'a finished run without config.json \(summary.json\)'):
        started(workdir, alpha=0.3)
    with pytest.raises(ValueError, match='contains no run'):
        started(tmp_path / 'none', resume=True)
    assert not (tmp_path / 'none').exists()


def test_settings_of_a_partition_that_differ_are_named_by_their_flags(tmp_path):
    started(tmp_path, partition_settings={'size': 1})
    with pytest.raises(ValueError, match=r'\(--size=1 there, 2 here\)'):
        started(tmp_path, partition_settings={'size': 2})
    with pytest.raises(ValueError, match=r'\(--method=fedavg there, fedprox here, --size=1 there'):
        started(tmp_path, partition_settings={'size': 2}, method='fedprox')


@pytest.mark.slow
def test_comparing_settings_starts_no_device(tmp_path):
    make_run(tmp_path / 'run')
    code = (
        'import sys; import jax; from pathlib import Path; from jaxfed import Config; '
        'from jaxfed.recording import run_files; config = Config(rounds=2); '
        'print(*run_files.differing(Path(sys.argv[1]), config, [])); '
        "jax.config.update('jax_num_cpu_devices', 3); "  # refused once JAX has started
        'print(jax.device_count())'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, tmp_path / 'run'], capture_output=True, text=True
    )
    assert done.stdout == 'rounds parts\n3\n', done.stderr


@pytest.mark.parametrize(
    'name, message',
    [
        ('checkpoints/best.pt', r'already holds a run without config.json \(checkpoints\)'),
        ('.claim.lock', r'holds a sweep; name another directory for a run'),
    ],
)
def test_folders_of_others_are_no_work_directories(tmp_path, name, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('precious')
    with pytest.raises(ValueError, match=message):
        started(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob('*') if p.is_file()] == [name]


def test_a_file_that_cannot_be_read_now_is_not_called_damaged(tmp_path, monkeypatch):
    started(tmp_path)

    def fail(*arguments, **keywords):
        raise OSError(errno.EMFILE, 'Too many open files')

    monkeypatch.setattr(pathlib.Path, 'read_text', fail)
    with pytest.raises(OSError, match='Too many open files'):
        run_files.read_json(tmp_path / run_files.CONFIG)


@pytest.mark.parametrize('text', ['', '{', '[]', '\x00', '{"method": 1}', '[' * 100000])
def test_a_damaged_config_is_reported(tmp_path, text):
    started(tmp_path)
    (tmp_path / run_files.CONFIG).write_text(text)
    with pytest.raises(ValueError, match=r'config.json|other settings'):
        started(tmp_path)
    assert (tmp_path / run_files.CONFIG).read_text() == text


@pytest.mark.parametrize('write', [files.write_atomic, files.write_json])
def test_a_link_at_the_temporary_name_is_not_followed(tmp_path, write):
    path, victim, temporary = (tmp_path / name for name in ('a.json', 'victim', '.a.json.tmp'))
    victim.write_text('before')
    temporary.symlink_to(victim)
    write(path, 'after')
    assert victim.read_text() == 'before' and 'after' in path.read_text()
    assert not path.is_symlink() and not os.path.lexists(temporary)
    temporary.mkdir()
    with pytest.raises(OSError, match=r'a\.json\.tmp'):
        write(path, 'later')
    assert 'after' in path.read_text()


def test_checkpoints_are_not_discarded(tmp_path):
    (tmp_path / 'run' / 'checkpoints' / '3').mkdir(parents=True)
    (tmp_path / 'run' / 'config.json').write_text('{}')
    run_files.discard_workdir(tmp_path / 'run')
    assert (tmp_path / 'run' / 'config.json').exists()
    (tmp_path / 'run' / 'checkpoints' / '3').rmdir()
    run_files.discard_workdir(tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('name', ['partition.json', 'partition.png', 'accuracy.png'])
def test_files_with_the_names_of_a_run_are_not_replaced(name, tmp_path):
    (tmp_path / name).write_text('of the user')
    message = rf'contains {name}, which the run would replace; name another directory, or move'
    with pytest.raises(ValueError, match=message):
        started(tmp_path)
    assert [path.name for path in tmp_path.glob('[!.]*')] == [name]


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_folder, taken = run_files.new_folder, []

    def late(config):
        folder = new_folder(config)
        if not taken:  # another run takes the name after the first look
            folder.mkdir(parents=True)
            taken.append(folder)
        return folder

    monkeypatch.setattr(run_files, 'new_folder', late)
    made = run_files.make_workdir(Config(), [])
    assert made != taken[0] and (made / 'config.json').exists()
    assert not any(taken[0].iterdir())


def test_a_link_to_a_folder_that_is_gone_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'runs').symlink_to('gone')
    message = r"--workdir=runs.* cannot be used: .*File exists: 'runs'"
    for config in (Config(), Config(workdir='runs')):
        with pytest.raises(ValueError, match=message):
            run_files.make_workdir(config, [])


def test_one_process_locks_a_work_directory(tmp_path):
    with (
        exclusive_lock(tmp_path),
        pytest.raises(ValueError, match='another process uses it'),
        exclusive_lock(tmp_path),
    ):
        pass
    with exclusive_lock(tmp_path):
        pass


# A process that holds the lock of a folder on a file system without flock.
HOLD = """
import errno, fcntl, os, sys, time
from pathlib import Path
def flock(file, operation):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
fcntl.flock = flock
from jaxfed.internal.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print('held', flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def flock_fails(monkeypatch):
    """Makes flock fail with an error number, as on file systems without it."""
    fcntl = pytest.importorskip('fcntl')

    def fail(number):
        def flock(file, operation):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, 'flock', flock)

    return fail


@pytest.mark.slow
def test_one_process_locks_a_work_directory_without_flock(tmp_path, flock_fails):
    flock_fails(errno.ENOSYS)
    command = [sys.executable, '-c', HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b'held\n'
        for _ in range(2):  # a refused process leaves the lock as it is
            with (
                pytest.raises(ValueError, match='another process uses it; name another directory'),
                exclusive_lock(tmp_path),
            ):
                pass
        holder.kill()
    with exclusive_lock(tmp_path):  # of a killed process
        pass


def test_a_lock_of_an_unknown_process_is_named(tmp_path, flock_fails):
    flock_fails(errno.ENOSYS)
    (tmp_path / '.lock').touch()  # by flock, before the folder was copied
    with (
        pytest.raises(ValueError, match=r'another directory, or remove .*/\.lock if none does\.$'),
        exclusive_lock(tmp_path),
    ):
        pass


@pytest.mark.parametrize('number', [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named(tmp_path, flock_fails, number):
    flock_fails(number)
    message = r'=.*run cannot be used: the file system of .*\.lock has no locks \(.*\); use another'
    with pytest.raises(ValueError, match=message):
        started(tmp_path / 'run')
    assert not (tmp_path / 'run' / run_files.CONFIG).exists()


@pytest.mark.skipif(os.sep != '/', reason='paths of other systems')
@pytest.mark.parametrize('name', ['runs [old]/a', 'a\\b'])
def test_folders_whose_checkpoints_cannot_be_read_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r'orbax cannot read checkpoints in .* name another'):
        started(tmp_path / name)
    assert not list(tmp_path.iterdir())
    started(tmp_path / 'a[b')


def test_files_of_arrays_may_move(tmp_path):
    workdir = started(tmp_path / 'run', dataset='npz', npz='a.npz')
    with pytest.raises(ValueError, match=r'--npz=a\.npz there, /moved/a\.npz here'):
        started(workdir, dataset='npz', npz='/moved/a.npz')  # nothing is known of the data
    run_files.write_partition(
        workdir / 'partition.json', np.ones((2, 2), int), {'data_digest': 'a'}, np.ones(2, int)
    )
    assert started(workdir, dataset='npz', npz='/moved/a.npz') == workdir
    with pytest.raises(ValueError, match=r'--alpha=0.1 there, 0.2 here'):
        started(workdir, dataset='npz', npz='/moved/a.npz', alpha=0.2)


def test_a_run_that_continues_with_other_code_warns(tmp_path, monkeypatch, caplog):
    file = tmp_path / 'mine.py'

    def begin_with(text):
        names = {}
        file.write_text(text)
        exec(compile(text, file, 'exec'), {'__name__': 'mine'}, names)
        monkeypatch.setitem(MODELS, 'mine', names['network'])
        workdir = started(tmp_path / 'run', model='mine')
        warn(workdir, model='mine')
        return workdir

    def warn(workdir, **settings):
        run_files.warn_of_other_code(workdir, Config(**settings), [])

    workdir = begin_with('def network(x): return x')
    versions = json.loads((workdir / run_files.CONFIG).read_text())['versions']
    assert versions.keys() >= {'mine.py', 'jax'}
    assert begin_with('def network(x): return x') == workdir and not caplog.text
    begin_with('def network(x): return -x')
    begun = 'was begun with other code or on another device'
    assert f'run {begun} (mine.py {versions["mine.py"]} instead' in caplog.text
    workdir = started(tmp_path / 'other')
    path = workdir / run_files.CONFIG
    text = path.read_text()
    path.write_text(text.replace('"optax": "', '"optax": "0'))
    warn(workdir)
    assert f'/other {begun} (optax 0' in caplog.text
    path.write_text(text.replace('"kind": "cpu"', '"kind": "NVIDIA H100"'))
    warn(workdir)
    assert f'/other {begun} (device NVIDIA H100 instead of cpu)' in caplog.text


def test_the_code_of_every_choice_of_a_user_is_recorded(tmp_path, monkeypatch):
    def defined(folder, name):
        names, file = {}, tmp_path / folder / 'mine.py'
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'def {name}(*arguments): pass\n')
        exec(compile(file.read_text(), file, 'exec'), {'__name__': 'mine'}, names)
        return names[name]

    monkeypatch.setitem(SAMPLINGS, 'mine', defined('a', 'choose'))
    found = own_code(Config(sampling='mine'), [])
    assert found.keys() == {'mine.py'} and not own_code(Config(), [])
    monkeypatch.setitem(OPTIMIZERS, 'mine', of_gradient(defined('b', 'step')))
    both = own_code(Config(sampling='mine', optimizer='mine'), [])
    assert both.keys() == {'mine.py'} and both != found
    assert own_code(Config(optimizer='mine'), []) not in (found, both)
    monkeypatch.setitem(OPTIMIZERS, 'lion', of_gradient(optax.lion))
    assert not own_code(Config(optimizer='lion'), [])


def test_a_run_continues_with_the_same_data_only(tmp_path):
    counts = np.array([[1, 2], [3, 0]])
    run_files.check_unfinished(tmp_path, counts, {'digest': 'ab'})
    file = tmp_path / run_files.PARTITION
    run_files.write_partition(file, counts, {'digest': 'ab'}, np.array([3, 0]))
    run_files.check_unfinished(tmp_path, counts, {'digest': 'ab'})
    with pytest.raises(ValueError, match='other data'):
        run_files.check_unfinished(tmp_path, counts[::-1], {'digest': 'ab'})
    (tmp_path / run_files.SUMMARY).write_text('{}')
    with pytest.raises(ValueError, match='finished run'):
        run_files.check_unfinished(tmp_path, counts, {'digest': 'ab'})


def test_a_custom_method_does_not_continue_the_run_of_a_registered_one(tmp_path):
    config = Config(workdir=str(tmp_path / 'run'))
    run_files.make_workdir(config, [Part('fedavg', {}, 0)])
    with pytest.raises(ValueError, match='parts'):
        run_files.make_workdir(config, [])


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping(lambda text: None) as came:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
            assert came() is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_recorded_and_the_second_ends_the_process(number):
    said, ended = [], []
    before = signal.signal(number, lambda *_: ended.append(number))
    try:
        with stopping(said.append) as came:
            assert came() is None
            signal.raise_signal(number)
            assert came() == number and not ended
            text = 'stopping after this round; a second signal stops at once'
            assert said == [f'{number.name}: {text}']
            signal.raise_signal(number)
            assert ended == [number]
        signal.raise_signal(number)
        assert len(ended) == 2
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_does_not_end():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        said = []
        with ending(said.append):
            signal.raise_signal(signal.SIGTERM)
        assert not said
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_are_unchanged_outside_the_main_thread():
    seen = []

    def work():
        with ending(seen.append), stopping(seen.append) as came:
            seen.append(came())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
