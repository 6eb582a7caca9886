"""Several processes: the same results as one, one end for all, and errors that say why.

Real processes of two devices each, joined over loopback. A pair takes seconds to start, so each
does several things.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxfed
from jaxfed.engine import client_states, devices, distributed
from jaxfed.engine.distributed import join, liveness
from jaxfed.internal import signals
from jaxfed.runs import config_flags, simulate
from jaxfed.runs.experiment import set_up

SMALL = {
    'dataset': 'digits', 'model': 'mlp', 'num_clients': 9, 'clients_per_round': 5,
    'local_epochs': 1, 'alpha': 1.0, 'rounds': 4, 'checkpoint_every': 2,
}  # fmt: skip
RUNS = {
    'fedavg': {'method': 'fedavg+fedavgm'},
    'scaffold': {
        'method': 'scaffold', 'dropout': 0.3, 'stream': 'on', 'local_eval_every': 2,
        'measure': 'drift,forgetting', 'personal_test': 0.2, 'seed': 1,
    },
    'fedlmd': {'method': 'fedlmd', 'devices': '3'},
}  # fmt: skip
RESUMED = {'method': 'feddyn', 'rounds': 6}

# What a process of a pair runs: its number, the coordinator and the settings of its runs.
SCRIPT = """
import json, sys
from jaxfed import Config, simulate
from jaxfed.engine import distributed
from jaxfed.engine.distributed import join, liveness
process, address, runs, limit = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
liveness.LIMIT = float(limit)
join.start(address, 2, process)
with distributed.together():
    for settings in json.loads(runs):
        result = simulate(Config(**settings))
        print(json.dumps([result.summary, len(result.metrics)]), flush=True)
    distributed.end(0)
"""


@pytest.fixture(scope='module')
def compiled(tmp_path_factory):
    return tmp_path_factory.mktemp('compiled')


@pytest.fixture
def pair(tmp_path, compiled):
    """Starts a process for each command, which may hold ADDRESS, in folders of their own."""
    return lambda commands: start_pair(tmp_path, compiled, commands)


@contextlib.contextmanager
def start_pair(folder, compiled, commands):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        address = f'127.0.0.1:{free.getsockname()[1]}'
    environment = {
        **os.environ,
        'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
        'JAX_PLATFORMS': 'cpu',
        'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true',
        'JAXFED_CACHE_DIR': str(folder / 'cache'),
        'JAX_COMPILATION_CACHE_DIR': str(compiled),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1',
        'PYTHONPATH': str(Path(jaxfed.__file__).parents[1]),
    }
    started = []
    try:
        for i, command in enumerate(commands):
            own = folder / f'host{i}'
            own.mkdir()
            given = [sys.executable, *(part.replace('ADDRESS', address) for part in command)]
            started.append(
                subprocess.Popen(
                    given, cwd=own, env=environment, text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )  # fmt: skip
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def scripts(*runs, limit=liveness.LIMIT):
    given = [json.dumps({**SMALL, **run}) for run in runs]
    return [['-c', SCRIPT, str(i), 'ADDRESS', f'[{",".join(given)}]', str(limit)] for i in (0, 1)]


def commands(*flags, second=()):
    common = ['-m', 'jaxfed.main', '--coordinator=ADDRESS', '--num_processes=2', *flags]
    return [[*common, '--process_id=0'], [*common, '--process_id=1', *second]]


def wait_for_rounds(path, rounds, processes):
    until = time.monotonic() + 120
    while not path.exists() or path.read_text().count('\n') < rounds:
        assert time.monotonic() < until
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)


def lines(workdir):
    held = (workdir / 'metrics.jsonl').read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if 'seconds' not in k} for line in held]


def assert_same_run(a, b, atol=1e-6):
    assert len(lines(a)) == len(lines(b))
    for one, other in zip(lines(a), lines(b)):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if value is None or isinstance(value, dict):
                assert value == other[name], name
            else:
                np.testing.assert_allclose(
                    value, other[name], rtol=1e-4, atol=10 * atol, err_msg=name
                )
    mine, theirs = (load_file(path / 'model.safetensors') for path in (a, b))
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=atol)


@pytest.fixture
def alone(cheap_runs, tmp_path):
    """Runs an experiment in this process, with all its devices."""

    def run(name, **settings):
        made = jaxfed.Config(**{**SMALL, **settings, 'workdir': str(tmp_path / name)})
        jaxfed.simulate(made)
        return tmp_path / name

    return run


def stop_after(rounds):
    def watch(entry):
        if entry['round'] == rounds:
            signal.raise_signal(signal.SIGTERM)

    return watch


def test_two_processes_train_as_one(pair, alone, tmp_path):
    # The last run was begun by one process, of four devices.
    begun = {**RESUMED, 'workdir': str(tmp_path / 'begun')}
    settings = jaxfed.Config(**{**SMALL, **begun})
    with pytest.raises(signals.Interrupted):
        simulate.train(set_up(settings), quiet=True, watch=stop_after(3))
    runs = [{**run, 'workdir': name} for name, run in RUNS.items()]
    with pair(scripts(*runs, begun)) as processes:
        told = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[0][0] == told[1][0]  # summaries of the first one on both
    assert [json.loads(line)[1] for line in told[0][0].splitlines()] == [4, 4, 4, 6]
    summaries = [json.loads(line)[0] for line in told[0][0].splitlines()]
    assert [summary['devices'] for summary in summaries] == [4, 4, 3, 4]
    assert summaries[3]['resumed_after'] == 3
    for name, run in RUNS.items():
        assert_same_run(tmp_path / 'host0' / name, alone(name, **run))
    assert_same_run(tmp_path / 'begun', alone('whole', **RESUMED))
    # The other process needs no place for records.
    assert list((tmp_path / 'host1').iterdir()) == []


LONG = ('--model=mlp', '--num_clients=9', '--clients_per_round=5', '--local_epochs=1', '--alpha=1')
LONG += ('--rounds=40', '--checkpoint_every=2', '--method=scaffold', '--workdir=run')


def test_the_first_process_dies_and_one_process_goes_on(pair, alone, tmp_path):
    with pair(commands(*LONG)) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 5, processes)
        processes[0].kill()
        began = time.monotonic()
        shown, error = processes[1].communicate(timeout=60)
        assert time.monotonic() - began < 60
    assert processes[1].returncode == 1
    assert shown == ''
    assert error.splitlines() == [
        'error: process 0 was lost: it closed its connection; with --workdir=run the same command '
        'goes on from the last checkpoint.'
    ]
    settings = {'method': 'scaffold', 'rounds': 40, 'checkpoint_every': 0}
    (tmp_path / 'host0' / 'run').rename(tmp_path / 'rest')
    rest, whole = (alone(name, **settings) for name in ('rest', 'whole'))
    assert json.loads((rest / 'summary.json').read_text())['resumed_after'] >= 2
    assert_same_run(rest, whole, atol=2e-4)  # rounding grows


def test_another_process_dies(pair, tmp_path):
    assert liveness.LIMIT + 10 < 60
    run = {'method': 'scaffold', 'rounds': 2000, 'workdir': 'run'}
    with pair(scripts(run, limit=5)) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 3, processes)
        processes[1].kill()
        _, error = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert error.splitlines() == [
        'error: process 1 lost: nothing heard for 5 s; with --workdir=run the same command goes on '
        'from the last checkpoint.'
    ]


# As `python -m jaxfed.main`, with a slow function, MODULE:NAME.
SLOW = """
import importlib, sys, time
from jaxfed import main
module, name = sys.argv.pop(1).split(':')
module = importlib.import_module(module)
quick = getattr(module, name)
def slow(*arguments):
    time.sleep(3)
    return quick(*arguments)
setattr(module, name, slow)
main.run()
"""


def slow_first(name, *flags):
    first, second = commands(*flags)
    return [['-c', SLOW, name, *first[2:]], second]


def test_all_stop_after_the_same_round(pair, tmp_path):
    # The others wait for its checkpoint.
    with pair(
        slow_first('jaxfed.recording.checkpoints:save', *LONG, '--checkpoint_every=0')
    ) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 3, processes)
        processes[1].send_signal(signal.SIGTERM)
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 143]
    done = len(lines(tmp_path / 'host0' / 'run'))
    assert errors == 2 * [
        f'error: stopped after round {done}; the same command goes on from there, with '
        '--workdir=run.\n'
    ]
    assert (tmp_path / 'host0' / 'run' / 'checkpoints' / str(done)).is_dir()


def test_all_diverge_in_the_same_round(pair, tmp_path):
    with pair(
        slow_first('jaxfed.runs.simulate:_diverged', *LONG, '--learning_rate=1e20')
    ) as processes:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], errors
    assert errors[0] == errors[1]
    assert errors[0].startswith('error: round ') and errors[0].count('\n') == 1


def test_processes_that_meet_for_different_reasons_are_told(monkeypatch):
    class Client:
        def key_value_set(self, key, value):
            pass

        def blocking_key_value_get(self, key, timeout):
            return json.dumps(['end', ''])

    monkeypatch.setattr(distributed, 'count', lambda: 2)
    monkeypatch.setattr(distributed, 'store', Client)
    with pytest.raises(ValueError, match="process 0 is at 'wave', but process 1 at 'end'"):
        distributed.meet('wave')


def test_processes_of_one_host_share_its_memory(monkeypatch):
    mesh = devices.make_mesh()
    alone = devices.memory(mesh)
    monkeypatch.setattr(distributed, 'on_this_host', lambda: 2)
    assert devices.memory(mesh) == alone / 2


@pytest.mark.parametrize(
    'second, message',
    [
        (('--seed=1', '--alpha=0.5'), '--alpha=0.1 in process 0, 0.5 in process 1, --seed=0 in'),
        (('--dry_run',), '--dry_run=False in process 0, True in process 1'),
        (('--num_processes=3',), '--num_processes=2 in process 0, but 3 in process 1'),
        (('--dataset=npz', '--npz=b.npz'), "--dataset='digits' in process 0, 'npz' in process 1"),
    ],
)
def test_processes_that_disagree_are_told_before_training(second, message, pair, tmp_path):
    with pair(commands('--workdir=run', second=second)) as processes:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], errors
    assert message in errors[0]
    assert all(error.startswith('error: ') and error.count('\n') == 1 for error in errors)
    assert not (tmp_path / 'host0' / 'run').exists()


def test_what_one_process_refuses_ends_the_other(pair, tmp_path):
    held = tmp_path / 'held'
    held.mkdir()
    for name in ('config.json', 'summary.json'):
        (held / name).write_text('{}')
    with pair(commands(f'--workdir={held}')) as processes:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], errors
    assert errors[0].startswith(f'error: --workdir={held} already holds a finished run')
    assert errors[1].startswith(f'error: process 0 ended: --workdir={held} already holds')


@pytest.mark.parametrize(
    'given, message',
    [
        (('node', 2, 0), '--coordinator=node must be HOST:PORT'),
        (('node:99999', 2, 0), '--coordinator=node:99999 must be HOST:PORT'),
        (('node:99', None, 0), '--num_processes must be given, too'),
        ((None, 2, None), '--coordinator, --process_id must be given, too'),
        (('node:99', 0, 0), '--num_processes=0 must be at least 1'),
        (('node:99', 2, 2), '--process_id=2 must be from 0 to 1'),
    ],
)
def test_bad_addresses_and_numbers_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        join.start(*given)


def test_no_cluster_or_a_taken_port_is_told():
    with pytest.raises(ValueError, match='--distributed finds --process_id=1 itself'):
        join.start(process_id=1, detect=True)
    with pytest.raises(ValueError, match='--distributed: JAX finds no job of SLURM'):
        join.start(detect=True)
    with socket.create_server(('', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match='the port is taken on this host'):
            join._check_port(f'here:{port}', port)


def test_lists_of_runs_take_no_processes():
    with pytest.raises(ValueError, match=r'--num_processes=2 is a flag of a command'):
        config_flags.parse(['--num_processes=2'])


def test_arrays_survive_as_bytes():
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3) * -0.0,
        np.array([True, False]),
        np.zeros((2, 0), np.int64),
        np.array([[1.5], [np.nan]], ml_dtypes.bfloat16),
        np.int32(7)[None],
    ]
    data = client_states.pack(arrays)
    back = client_states.unpack(np.append(data, np.uint8(9)), [a.shape for a in arrays], arrays)
    for a, b in zip(arrays, back):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
