"""Several processes: the results of a single process, a common end, and clear errors.

Real processes of two devices each, joined over loopback. A pair takes seconds to start, so each
does several things. The tests work on a busy machine: they wait for events, and the limits of
liveness are high unless a process is known to be lost.
"""

import contextlib
import errno
import inspect
import ipaddress
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chex
import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxfed
from jaxfed.engine import client_states, devices, distributed
from jaxfed.engine.distributed import gate, join, liveness, transfer
from jaxfed.engine.distributed.private_api import private_attribute
from jaxfed.internal import signals
from jaxfed.runs import config_flags, simulate
from jaxfed.runs.experiment import set_up

pytestmark = pytest.mark.slow

SMALL = {
    'dataset': 'digits', 'model': 'mlp', 'num_clients': 9, 'clients_per_round': 5,
    'local_epochs': 1, 'alpha': 1.0, 'rounds': 4, 'checkpoint_every': 2,
}  # fmt: skip
RUNS = {
    'scaffold': {
        'method': 'scaffold', 'dropout': 0.3, 'stream': 'on', 'local_eval_every': 2,
        'measure': 'drift,forgetting', 'personal_test': 0.2, 'seed': 1,
    },
    'fedlmd': {'method': 'fedlmd+fedper+fedavgm', 'devices': '3', 'save_clients': True},
}  # fmt: skip
RESUMED = {'method': 'feddyn', 'rounds': 6}

FAR = 3600  # seconds, longer than a working pair is silent

# The first lines of every process of a pair.
LIMITS = f"""
from jaxfed.engine.distributed import join, liveness
liveness.LIMIT = liveness.SHORT_LIMIT = join.WAIT = {FAR}
"""

# A process of a pair: its number, the coordinator and the settings of its runs. When a file `lost`
# appears, another process is known to be lost.
SCRIPT = f"""{LIMITS}
import json, os, sys, threading, time
from jaxfed import Config, simulate
from jaxfed.engine import distributed
process, address, runs = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def lower_limit():
    while not os.path.exists('lost'):
        time.sleep(0.1)
    liveness.LIMIT = 5
threading.Thread(target=lower_limit, daemon=True).start()
join.start(address, 2, process)
with distributed.propagate_errors():
    for settings in json.loads(runs):
        result = simulate(Config(**settings))
        print(json.dumps([result.summary, len(result.metrics)]), flush=True)
    distributed.shut_down(0)
"""

MAIN = f"""{LIMITS}
from jaxfed import main
main.run()
"""

# The first lines of a process that stops before round 6 until a file `go` appears.
PAUSE = """
import os, time
from jaxfed.runs import rounds
train_and_evaluate = rounds.train_and_evaluate
def pause(prepared, experiments, planned, *rest):
    while planned.number == 6 and not os.path.exists('go'):
        time.sleep(0.05)
    return train_and_evaluate(prepared, experiments, planned, *rest)
rounds.train_and_evaluate = pause
"""


@pytest.fixture(scope='module')
def compiled(tmp_path_factory):
    return tmp_path_factory.mktemp('compiled')


@pytest.fixture
def pair(tmp_path, compiled):
    """Starts a process for each command, which may contain ADDRESS, in separate folders."""
    return lambda commands: start_pair(tmp_path, compiled, commands)


def free_port():
    """A free port outside the range from which the system takes those of other connections."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(('', random.randrange(10_000, 32_000)))
            return free.getsockname()[1]


@contextlib.contextmanager
def start_pair(folder, compiled, commands):
    address = f'127.0.0.1:{free_port()}'
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
            workdir = folder / f'host{i}'
            workdir.mkdir()
            arguments = [sys.executable, *(part.replace('ADDRESS', address) for part in command)]
            started.append(
                subprocess.Popen(
                    arguments, cwd=workdir, env=environment, text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )  # fmt: skip
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def scripts(*runs):
    settings = [json.dumps({**SMALL, **run}) for run in runs]
    return [['-c', SCRIPT, str(i), 'ADDRESS', f'[{",".join(settings)}]'] for i in (0, 1)]


def commands(*flags, second=()):
    common = ['-c', MAIN, '--coordinator=ADDRESS', '--num_processes=2', *flags]
    return [[*common, '--process_id=0'], [*common, '--process_id=1', *second]]


def refused(pair, folder, both):
    """The lines with which both processes refuse to train, before they write."""
    with pair(both) as processes:
        errors = [error for _, error in ends(processes)]
    assert [process.returncode for process in processes] == [2, 2], errors
    assert all(error.startswith('error: ') and error.count('\n') == 1 for error in errors)
    assert not (folder / 'host0' / 'run').exists()
    return errors


def paused(commands):
    """The same commands; the first process pauses."""
    (flag, script, *rest), second = commands
    return [[flag, PAUSE + script, *rest], second]


def wait_for_rounds(path, rounds, processes):
    while not path.exists() or path.read_text().count('\n') < rounds:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)


def ends(processes):
    """(standard output, standard error) of each process, once all of them have ended."""
    return [process.communicate(timeout=FAR) for process in processes]


def succeeds(processes):
    """(standard output, standard error) of each process, once all have ended without an error."""
    outputs = ends(processes)
    errors = '\n'.join(error for _, error in outputs)
    assert not any(process.returncode for process in processes), errors
    return outputs


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
    files = sorted(path.name for path in b.glob('*.safetensors'))
    assert sorted(path.name for path in a.glob('*.safetensors')) == files
    for file in files:  # also what clients keep
        mine, theirs = (load_file(path / file) for path in (a, b))
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=atol)


@pytest.fixture
def single(cheap_runs, tmp_path):
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


def test_two_processes_train_as_one(pair, single, tmp_path):
    # The last run was begun by one process, of four devices.
    begun = {**RESUMED, 'workdir': str(tmp_path / 'begun')}
    settings = jaxfed.Config(**{**SMALL, **begun})
    with pytest.raises(signals.Interrupted):
        simulate.train(set_up(settings), quiet=True, watch=stop_after(3))
    runs = [{**run, 'workdir': name} for name, run in RUNS.items()]
    with pair(scripts(*runs, begun)) as processes:
        outputs = succeeds(processes)
    assert outputs[0][0] == outputs[1][0]  # summaries of the first one on both
    assert [json.loads(line)[1] for line in outputs[0][0].splitlines()] == [4, 4, 6]
    summaries = [json.loads(line)[0] for line in outputs[0][0].splitlines()]
    assert [summary['devices'] for summary in summaries] == [4, 3, 4]
    assert summaries[2]['resumed_after'] == 3
    for name, run in RUNS.items():
        assert_same_run(tmp_path / 'host0' / name, single(name, **run))
    assert_same_run(tmp_path / 'begun', single('whole', **RESUMED))
    # The other process needs no folder for records.
    assert list((tmp_path / 'host1').iterdir()) == []


LONG = ('--model=mlp', '--num_clients=9', '--clients_per_round=5', '--local_epochs=1', '--alpha=1')
LONG += ('--rounds=40', '--checkpoint_every=2', '--method=scaffold', '--workdir=run')


def test_the_first_process_dies_and_one_process_continues(pair, single, tmp_path):
    with pair(paused(commands(*LONG))) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 5, processes)
        processes[0].kill()
        _, (shown, error) = ends(processes)
    assert processes[1].returncode == 1
    assert shown == ''
    assert error.splitlines() == [
        'error: process 0 was lost: it closed its connection; the same command with '
        '--workdir=run continues from the last checkpoint.'
    ]
    settings = {'method': 'scaffold', 'rounds': 40, 'checkpoint_every': 0}
    (tmp_path / 'host0' / 'run').rename(tmp_path / 'rest')
    rest, whole = (single(name, **settings) for name in ('rest', 'whole'))
    assert json.loads((rest / 'summary.json').read_text())['resumed_after'] >= 2
    assert_same_run(rest, whole, atol=2e-4)  # rounding grows


def test_another_process_dies(pair, tmp_path):
    run = {'method': 'scaffold', 'rounds': 40, 'workdir': 'run'}
    with pair(paused(scripts(run))) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 3, processes)
        processes[1].kill()
        processes[1].wait()
        (tmp_path / 'host0' / 'go').touch()
        (tmp_path / 'host0' / 'lost').touch()
        (_, error), _ = ends(processes)
    assert processes[0].returncode == 1
    assert error.splitlines() == [
        'error: process 1 was lost: no heartbeat for 5 s; the same command with --workdir=run '
        'continues from the last checkpoint.'
    ]


# The same, with a function of the loop that waits until the other process has finished its work.
SLOW = f"""{LIMITS}
import importlib, sys, time
from jaxfed import main
from jaxfed.engine.distributed import key_value_store
module, name = sys.argv.pop(1).split(':')
module = importlib.import_module(module)
quick = getattr(module, name)
def slow(*arguments):
    store = key_value_store()
    while not any('training stopped' in text for _, text in store.key_value_dir_get('jaxfed/')):
        time.sleep(0.05)
    return quick(*arguments)
setattr(module, name, slow)
main.run()
"""


def slow_first(name, *flags):
    first, second = commands(*flags)
    return [['-c', SLOW, name, *first[2:]], second]


def test_all_stop_after_the_same_round(pair, tmp_path):
    # The others wait for its checkpoint.
    slow = slow_first('jaxfed.recording.checkpoints:save', *LONG, '--checkpoint_every=0')
    with pair(paused(slow)) as processes:
        wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 3, processes)
        processes[1].send_signal(signal.SIGTERM)
        (tmp_path / 'host0' / 'go').touch()
        errors = [error for _, error in ends(processes)]
    assert [process.returncode for process in processes] == [143, 143]
    done = len(lines(tmp_path / 'host0' / 'run'))
    for error in errors:
        assert error.startswith(f'error: stopped after round {done}; to continue: python -m jaxfed')
        assert '--workdir=run' in error
    assert (tmp_path / 'host0' / 'run' / 'checkpoints' / str(done)).is_dir()


def test_all_diverge_in_the_same_round(pair, tmp_path):
    slow = slow_first('jaxfed.runs.simulate:_diverged', *LONG, '--learning_rate=1e20')
    with pair(slow) as processes:
        errors = [error for _, error in ends(processes)]
    assert [process.returncode for process in processes] == [1, 1], errors
    assert errors[0] == errors[1]
    assert errors[0].startswith('error: round ') and errors[0].count('\n') == 1


def test_processes_that_meet_for_different_reasons_are_reported(monkeypatch):
    class Client:
        def key_value_set(self, key, value):
            pass

        def blocking_key_value_get(self, key, timeout):
            return json.dumps(['end', ''])

    monkeypatch.setattr(distributed, 'process_count', lambda: 2)
    monkeypatch.setattr(distributed, 'key_value_store', Client)
    with pytest.raises(ValueError, match="process 0 is at 'wave', but process 1 at 'end'"):
        distributed.barrier('wave')


def test_processes_with_other_versions_are_refused(monkeypatch):
    def all_gather(what, text):
        return [text, json.dumps(json.loads(text) | {'version of jax': '0.9.0'})]

    monkeypatch.setattr(distributed, 'process_count', lambda: 2)
    monkeypatch.setattr(distributed, 'all_gather', all_gather)
    message = rf'versions: version of jax={jax.__version__} in process 0, 0\.9\.0 in process 1\.'
    with pytest.raises(ValueError, match=message):
        distributed.check_settings({})


def test_more_processes_than_devices_with_clients_are_refused(monkeypatch):
    monkeypatch.setattr(distributed, 'process_count', lambda: 3)
    distributed.check_work(6, 2)
    distributed.check_work(3, 0)
    message = '--num_processes=3 must be at most 2, .* --clients_per_round=5 with --lanes=2 can use'
    with pytest.raises(ValueError, match=message):
        distributed.check_work(5, 2)


def test_a_broken_connection_is_not_reported_as_bad_input(monkeypatch):
    def fail():
        raise ValueError('UNKNOWN: Gloo collective permute failed: Connection reset by peer')

    with pytest.raises(ValueError, match='Gloo'):
        distributed.run_collective(fail)
    monkeypatch.setattr(distributed, 'process_count', lambda: 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match='Gloo'):
        distributed.run_collective(fail)


def test_processes_of_one_host_share_its_memory(monkeypatch):
    mesh = devices.make_mesh()
    whole = devices.memory(mesh)
    monkeypatch.setattr(distributed, 'processes_on_host', lambda: 2)
    assert devices.memory(mesh) == whole / 2


@pytest.mark.parametrize(
    'second, message',
    [
        (
            ('--seed=1', '--alpha=0.5'),
            '--seed=0 in process 0, 1 in process 1, --alpha=0.1 in process 0, 0.5',
        ),
        (('--dry_run',), '--dry_run=False in process 0, True in process 1'),
        (('--num_processes=3',), '--num_processes=2 in process 0, but 3 in process 1'),
        (('--dataset=npz', '--npz=b.npz'), "--dataset='digits' in process 0, 'npz' in process 1"),
    ],
)
def test_processes_that_disagree_are_reported_before_training(second, message, pair, tmp_path):
    errors = refused(pair, tmp_path, commands('--workdir=run', second=second))
    assert message in errors[0]


def test_processes_with_other_code_are_reported_before_training(pair, tmp_path):
    text = 'import jaxfed\ndef own(*, mu: float = {}): return jaxfed.Method()\n'
    for i in (0, 1):
        (tmp_path / f'mine{i}').mkdir()
        (tmp_path / f'mine{i}' / 'own.py').write_text(
            text.format(i) + 'jaxfed.methods.METHODS["own"] = own\n'
        )
    both = commands('--include=../mine0/own.py', '--method=own', '--workdir=run')
    both[1] = [flag.replace('mine0', 'mine1') for flag in both[1]]
    for error in refused(pair, tmp_path, both):
        assert '--own.mu=0 in process 0, 1 in process 1, digest of own.py=' in error


def test_processes_with_other_data_are_reported_before_training(pair, tmp_path):
    x, y = np.arange(600, dtype=np.uint8).reshape(100, 3, 2, 1), np.arange(100) % 4
    for name, labels in (('a', y), ('b', y[::-1])):
        np.savez(tmp_path / f'{name}.npz', x_train=x, y_train=labels, x_test=x, y_test=y)
    flags = ('--dataset=npz', '--npz=../a.npz', '--model=mlp', '--alpha=1', '--workdir=run')
    flags += ('--num_clients=4', '--clients_per_round=4', '--min_size=1')
    for error in refused(pair, tmp_path, commands(*flags, second=('--npz=../b.npz',))):
        assert 'the data of process 1 differ from those of process 0' in error


def test_a_slow_process_reports_another_number_of_processes_itself(pair):
    slow = f"""from jaxfed.engine.distributed import liveness
import time
exit_now = liveness.exit_now
liveness.exit_now = lambda status: (time.sleep(3), exit_now(status))
{MAIN}"""
    first, second = commands(second=('--num_processes=3',))
    with pair([first, ['-c', slow, *second[2:]]]) as processes:
        errors = [error for _, error in ends(processes)]
    assert [process.returncode for process in processes] == [2, 2], errors
    assert errors[1].startswith('error: --num_processes=3 in process 1, but 2 in process 0')


@pytest.mark.parametrize('when', ['before', 'meanwhile'])
def test_last_words_do_not_wait_for_a_coordinator_that_is_gone(when, monkeypatch, capsys):
    ended, said = [], []
    for name, new in {
        '_ending': threading.RLock(),
        '_gone': threading.Event(),
        '_status': [],
    }.items():
        monkeypatch.setattr(liveness, name, new)
    monkeypatch.setattr(liveness, '_joined', joined := threading.Event())
    monkeypatch.setattr(liveness, 'exit_now', ended.append)
    joined.set()

    def close():
        relay = threading.Thread(target=liveness._closed, args=(None,))
        relay.start()
        relay.join()

    def last_words():
        said.append('.')
        close()  # the store never answers
        assert ended == [2]

    if when == 'before':
        monkeypatch.setattr(liveness, 'stop_for_loss', lambda loss: None)
        close()
    liveness.stop('wrong number', 2, last_words)
    assert said == ['.'] * (when == 'meanwhile') and ended[0] == 2
    assert capsys.readouterr().err == 'error: wrong number\n'


@pytest.mark.parametrize(
    'process, who', [(0, 'the coordinator of this process'), (1, 'process 0 was lost: it')]
)
def test_every_process_ends_if_the_coordinator_does_not_answer(process, who, monkeypatch):
    finished, losses = threading.Event(), []

    def stop_for_loss(loss):
        losses.append(loss)
        finished.set()

    for name, new in {
        'PERIOD': 0.01, 'LIMIT': 0.05, '_finished': finished, 'stop_for_loss': stop_for_loss,
    }.items():  # fmt: skip
        monkeypatch.setattr(liveness, name, new)
    liveness._watch_coordinator(process, [0])
    assert losses == [f'{who} did not answer for 0 s']


def test_an_error_in_one_process_ends_the_other(pair, tmp_path):
    held = tmp_path / 'held'
    held.mkdir()
    for name in ('config.json', 'summary.json'):
        (held / name).write_text('{}')
    with pair(commands(f'--workdir={held}')) as processes:
        errors = [error for _, error in ends(processes)]
    assert [process.returncode for process in processes] == [2, 2], errors
    assert errors[0].startswith(f'error: --workdir={held} already holds a finished run')
    assert errors[1].startswith(f'error: process 0 ended: --workdir={held} already holds')


@pytest.mark.parametrize(
    'arguments, message',
    [
        (('node', 2, 0), '--coordinator must be HOST:PORT.* got node'),
        (('node:99999', 2, 0), '--coordinator must be HOST:PORT.* got node:99999'),
        (('node:99', None, 0), '--num_processes must be set, too'),
        ((None, 2, None), '--coordinator, --process_id must be set, too'),
        (('node:99', 0, 0), '--num_processes must be at least 1, got 0'),
        (('node:99', 2, 2), '--process_id must be from 0 to 1.* got 2'),
    ],
)
def test_bad_addresses_and_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        join.start(*arguments)


def test_no_cluster_or_a_taken_port_is_reported():
    with pytest.raises(ValueError, match='--distributed finds --process_id=1 itself'):
        join.start(process_id=1, detect=True)
    with pytest.raises(ValueError, match='--distributed: JAX finds no job of SLURM'):
        join.start(detect=True)
    for host in ('localhost', '127.0.0.1', 'no-host-of-this-name.invalid'):
        with socket.create_server(('', 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ValueError, match='the port is taken on this host'):
                join._listen(f'{host}:{port}')


def test_the_coordinator_listens_at_the_named_address(monkeypatch, capsys):
    known = {
        'localhost': '127.0.0.1', '127.0.0.1': '127.0.0.1', 'node1': '127.0.1.1',
        'router': '192.0.2.77',
    }  # fmt: skip

    def resolve(name, port):
        if name not in known:
            raise socket.gaierror(-2, 'Name or service not known')
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (known[name], port))]

    monkeypatch.setattr(socket, 'getaddrinfo', resolve)
    port = free_port()
    for host in ('localhost', '127.0.0.1'):
        with join._listen(f'{host}:{port}') as server:
            assert server.getsockname() == ('127.0.0.1', port)
    assert capsys.readouterr().err == ''
    for host, reason in [
        ('node1', 'this host knows node1 as 127.0.1.1'),
        ('router', 'router is no address of this host (Cannot assign requested address)'),
        ('unknown', 'unknown is no address of this host (Name or service not known)'),
    ]:
        with join._listen(f'{host}:{port}') as server:
            assert server.getsockname()[:2] in [('::', port), ('0.0.0.0', port)]
        assert capsys.readouterr().err == (
            f'warning: --coordinator={host}:{port}: {reason}, so the port is open on all '
            'interfaces; name an address of this host to open it there only.\n'
        )


GARBAGE = [
    b'', b'\0' * 70_000, b'GET / HTTP/1.1\r\nHost: x\r\n\r\n', random.Random(0).randbytes(5000),
    b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\xff' * 100, b'\x16\x03\x01\x02\x00\x01',
]  # fmt: skip


def send_garbage(place, ended, sent, connections):
    """Sends garbage in new connections and keeps 50 of them half-open, until an event."""
    with contextlib.ExitStack() as stack:
        for number in range(connections):
            with contextlib.suppress(OSError):  # not open yet, or closed
                one = socket.create_connection(place, 1)
                one.sendall(GARBAGE[number % len(GARBAGE)])
                sent.append(place)
                stack.enter_context(one) if sent.count(place) < 50 else one.close()
            if ended.wait(0.01):
                return
        ended.wait()


def listening(process):
    """The (address, port) of the TCP sockets at which a process listens; none without /proc."""
    proc, own, places = Path(f'/proc/{process.pid}'), set(), []
    for descriptor in (proc / 'fd').glob('*'):
        with contextlib.suppress(OSError):  # closed meanwhile
            own.add(os.readlink(descriptor))
    for table in (proc / 'net').glob('tcp*'):
        for _, local, _, state, *rest in map(str.split, table.read_text().splitlines()[1:]):
            if state == '0A' and f'socket:[{rest[5]}]' in own:
                address, port = local.split(':')
                packed = np.frombuffer(bytes.fromhex(address), '>u4').astype('=u4').tobytes()
                address = ipaddress.ip_address(packed)
                address = getattr(address, 'ipv4_mapped', None) or address
                places.append((str(address), int(port, 16)))
    return places


def is_loopback(host):
    return ipaddress.ip_address(host).is_loopback


def addresses_of_host():
    with contextlib.suppress(socket.gaierror):  # its name is unknown
        return {known[4][0] for known in socket.getaddrinfo(socket.gethostname(), None)}
    return set()


def test_strangers_at_the_ports_do_not_disturb(pair, single, tmp_path):
    ended, sent = threading.Event(), []
    with pair(paused(commands(*LONG))) as processes, ThreadPoolExecutor(32) as pool:
        port = int(processes[0].args[3].rpartition(':')[2])
        places = {('127.0.0.1', port)}
        pool.submit(send_garbage, *places, ended, sent, sys.maxsize)
        try:
            wait_for_rounds(tmp_path / 'host0' / 'run' / 'metrics.jsonl', 5, processes)
            with pytest.raises(ConnectionRefusedError):  # it listens at 127.0.0.1 only
                socket.create_connection(('127.0.0.2', port), 5)
            # The gate and JAX's service, the relay, and a port of Gloo in each process.
            for others in map(listening, processes):
                elsewhere = [host for host, _ in others if not is_loopback(host)]
                # Gloo only, which chooses the address of the host's name.
                assert len(elsewhere) <= 1 and {*elsewhere} <= addresses_of_host()
                for place in {*others} - places:
                    # Gloo keeps a descriptor of each until the process ends.
                    pool.submit(send_garbage, place, ended, sent, 100)
                places |= {*others}
            environment = {**os.environ, 'PYTHONPATH': str(Path(jaxfed.__file__).parents[1])}
            second = subprocess.run(
                [sys.executable, *processes[1].args[1:]],
                capture_output=True, text=True, cwd=tmp_path, env=environment,
            )  # fmt: skip
            assert second.returncode == 2
            assert second.stderr == 'error: --process_id=1: another process has this number.\n'
            (tmp_path / 'host0' / 'go').touch()
            for place in places:
                pool.submit(send_garbage, place, ended, sent, 100)
            succeeds(processes)
        finally:
            ended.set()
    assert len(sent) > 100 and {*sent} == places
    settings = {'method': 'scaffold', 'rounds': 40}
    assert_same_run(tmp_path / 'host0' / 'run', single('whole', **settings), atol=2e-4)


def connect_from(host, own, port):
    """A connection from a port, 0 for any, which another connection may have, on loopback."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, own))
    one.connect(('127.0.0.1', port))
    return one


STRANGER = f"""
import socket, sys
{inspect.getsource(connect_from)}
connect_from(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).sendall(b'x')
"""


def test_the_relay_serves_its_own_process_only(monkeypatch):
    lost = []

    def closed(near):
        lost.append(near)
        near.shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(liveness, '_closed', closed)
    address = free_port()
    with (
        socket.create_server(('127.0.0.1', 0)) as coordinator,
        socket.create_server(('127.0.0.1', 0)) as other,
        connect_from('127.0.0.1', 0, other.getsockname()[1]) as elsewhere,
        socket.socket(socket.AF_UNIX),  # has no address
    ):
        gate.open_gate(socket.create_server(('127.0.0.1', address)), coordinator.getsockname()[1])
        port = int(liveness.relay(f'127.0.0.1:{address}', 1).rpartition(':')[2])

        def send_from(*place):
            stranger = [sys.executable, '-c', STRANGER, *map(str, place), str(port)]
            subprocess.run(stranger, check=True)

        send_from('127.0.0.1', 0)
        send_from('127.0.0.1', elsewhere.getsockname()[1])
        with (
            socket.create_connection(('127.0.0.1', port)) as own,
            contextlib.ExitStack() as later,
        ):
            own.sendall(b'hello')
            far, _ = coordinator.accept()  # the first connection: no stranger's was relayed
            assert far.recv(9) == b'hello'
            send_from('127.0.0.2', own.getsockname()[1])
            again = later.enter_context(socket.create_connection(('127.0.0.1', port)))
            again.sendall(b'again')
            second, _ = coordinator.accept()
            assert second.recv(9) == b'again'
            assert lost == []
            far.close()
            assert own.recv(9) == b''
            assert len(lost) == 1


def test_the_gate_survives_a_lack_of_descriptors():
    answers = [OSError(errno.EMFILE, 'Too many open files'), ('near', 'address')]

    class Server:
        def accept(self):
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

    assert gate.accept_one(Server()) == ('near', 'address')


def test_the_gate_admits_one_process_for_each_number():
    with socket.create_server(('127.0.0.1', 0)) as service:
        server = socket.create_server(('127.0.0.1', 0))
        port = server.getsockname()[1]
        gate.open_gate(server, service.getsockname()[1])

        def answer(line):
            one = socket.create_connection(('127.0.0.1', port))
            one.sendall(line)
            return one, gate.read_line(one)

        first, admitted = answer(b'jaxfed 1 one\n')
        far, _ = service.accept()
        assert admitted == gate.ADMITTED
        again, admitted = answer(b'jaxfed 1 one\n')  # a process may have several connections
        assert admitted == gate.ADMITTED
        assert answer(b'jaxfed 2 other\n')[1] == gate.ADMITTED
        assert answer(b'jaxfed 1 other\n')[1] == gate.TAKEN
        for garbage in (b'jaxfed 1\n', b'jaxfed x one\n', b'GET / HTTP/1.1\n', b'\xff' * 200):
            with contextlib.suppress(ConnectionResetError):
                assert answer(garbage)[1] == b''
        first.sendall(b'hello')
        assert far.recv(9) == b'hello'
        far.sendall(b'welcome')
        assert first.recv(9) == b'welcome'
        first.close()
        assert far.recv(9) == b''
        again.close()
        # The number is free again, at the latest when the gate has seen the end.
        while answer(b'jaxfed 1 other\n')[1] == gate.TAKEN:
            time.sleep(0.01)


def test_grids_refuse_several_processes():
    with pytest.raises(ValueError, match=r'--num_processes=2 is a flag of a command'):
        config_flags.parse(['--num_processes=2'])


def test_missing_private_api_is_an_error_that_names_the_version(monkeypatch):
    monkeypatch.setitem(sys.modules, 'jax._src.distributed', None)
    monkeypatch.setitem(sys.modules, 'jax._src.clusters', None)
    with pytest.raises(ValueError, match=rf'global_state\.client, which jax {jax.__version__}'):
        distributed.key_value_store()
    with pytest.raises(ValueError, match=r'clusters\.ClusterEnv\..*; install jax 0\.10'):
        join.start(detect=True)
    with pytest.raises(ValueError, match=r'need jax\._src\.version\.nothing'):
        private_attribute('version', 'nothing')


PROCESSES = 3


class Processes:
    """Threads in place of processes, which exchange bytes through a list."""

    def __init__(self):
        self._self, self._barrier = threading.local(), threading.Barrier(PROCESSES)
        self._slots = [None] * PROCESSES
        self.longest = 0

    def index(self):
        return self._self.index

    def move(self, data, routes):
        self.longest = max(self.longest, len(data))
        self._slots[self.index()] = data
        self._barrier.wait()
        senders = {receiver: sender for sender, receiver in routes}
        sent = [len(part) for part in self._slots]
        received = self._slots[senders[self.index()]] if self.index() in senders else 0 * data
        self._barrier.wait()
        assert len(set(sent)) == 1
        return received

    def run(self, work):
        """The results of `work` in every process."""

        def call(index):
            self._self.index = index
            try:
                return work(index)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(PROCESSES) as pool:
            return list(pool.map(call, range(PROCESSES)))


@pytest.fixture
def three(monkeypatch):
    processes = Processes()
    monkeypatch.setattr(distributed, 'process_count', lambda: PROCESSES)
    monkeypatch.setattr(distributed, 'process_index', processes.index)
    monkeypatch.setattr(transfer, 'move', processes.move)
    monkeypatch.setattr(transfer, 'PIECE', 64)
    return processes


def test_rows_are_gathered_and_distributed(three):
    rows = 11
    whole = {
        'a': np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 2, 2) * -1,
        'b': np.arange(rows, dtype=np.int64) << 40,
        'empty': np.zeros((rows, 0), np.float32),
    }
    like = jax.tree.map(np.zeros_like, whole)

    def part_of(tree, i):
        return jax.tree.map(lambda leaf: leaf[i::PROCESSES], tree)

    parts = three.run(lambda i: client_states.scatter(None if i else whole, part_of(like, i), rows))
    for i, part in enumerate(parts):
        chex.assert_trees_all_equal(part, part_of(whole, i))
    gathered = three.run(lambda i: client_states.gather(parts[i], rows))
    chex.assert_trees_all_equal(gathered[0], whole)
    assert gathered[1:] == parts[1:]  # others keep their own
    assert 0 < three.longest <= 64


def test_all_processes_receive_the_state_of_the_first(three):
    tree = {
        'w': np.array([-0.0, np.nan], np.float32),
        'n': np.int64(1) << 40,
        'mask': np.array([[True], [False]]),
        'empty': np.zeros((2, 0), np.int64),
        'half': np.array([[1.5], [np.nan]], ml_dtypes.bfloat16),
    }
    key, other_key = jax.random.key(3), jax.random.key(0)
    others = jax.tree.map(np.ones_like, tree)
    for i, (received, received_key) in enumerate(
        three.run(lambda i: client_states.broadcast((others, other_key) if i else (tree, key)))
    ):
        assert jax.random.key_data(received_key).tolist() == [0, 3], i
        for name, sent in tree.items():
            got = received[name]
            assert isinstance(got, np.ndarray)
            assert (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())


def test_rows_of_a_round_move_to_their_devices_and_back(three, monkeypatch):
    monkeypatch.setattr(client_states, '_processes', lambda mesh: np.array([0, 0, 1, 2, 2]))
    monkeypatch.setattr(client_states, 'split', lambda tree, mesh: tree)
    monkeypatch.setattr(transfer, 'local', lambda leaf: leaf)
    every = np.arange(10, dtype=np.int32)[:, None] * np.ones(3, np.int32)
    rows = np.array([[7, 0], [2, 9], [4, 0], [1, 5], [8, 0]])
    used = np.array([[1, 0], [1, 1], [1, 0], [1, 1], [1, 0]], bool)
    devices_of = [[0, 1], [2], [3, 4]]

    def work(i):
        states, local = every[i::PROCESSES].copy(), devices_of[i]
        loaded = client_states.load_rows(states, rows, used, None)[local]
        np.testing.assert_array_equal(loaded[used[local]][:, 0], rows[local][used[local]])
        client_states.store_rows(states, rows, used, loaded + 100, None)
        return states

    whole = np.empty_like(every)
    for i, states in enumerate(three.run(work)):
        whole[i::PROCESSES] = states
    changed = np.isin(np.arange(10), rows[used])
    np.testing.assert_array_equal(whole, every + 100 * changed[:, None])
