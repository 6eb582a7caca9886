"""Seconds a round of the same work: jaxfed and other simulators.

Every system trains the same network by federated averaging on the same images of equal clients: SGD
without momentum, no augmentation, and evaluations on the same test images. The systems run one
after another in separate processes, so that they share neither cores nor memory. The first round is
not counted.

The PyTorch loop, pfl-research, PFLlib, FedJAX and, by default, FL-bench train client after client
on all cores, FedJAX with the networks of jaxfed and XLA's convolutions. BlazeFL, Flower and
`flbench_parallel` train one client per core at a time in processes; BlazeFL also in threads, which
need a Python without the global interpreter lock. A flag names the checkout of FL-bench or PFLlib.

Tasks: `cifar10`, the FedNTD CNN, 10 clients, one local epoch, batches of 50. `blazefl`, the CNN
benchmark of BlazeFL: LeNet, 100 clients that all train in each of 5 rounds, each with shards of two
classes, 5 local epochs. `flute`, as the FEMNIST row of FLUTE, with its network, `cnn_dropout`: 3400
clients of whom 10 train in a round, batches of 20, 62 classes, an evaluation every 50 rounds; FLUTE
trains 1500. Its images are synthetic, as many for each client as FEMNIST has on average. `pfl`, the
IID benchmark of pfl-research on CIFAR-10: its network, `cnn_dropout`, 1000 clients of whom 50 train
in a round, batches of 10, an evaluation every 10 rounds; pfl-research trains 1500 rounds.
`pfl_dirichlet`, its non-IID one: each client draws its classes from a Dirichlet distribution;
pfl-research trains 3000 rounds.

python -m experiments.benchmarks.alternatives --output=experiments/results/alternatives_cpu.json
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from experiments.benchmarks.alternatives.systems import MIB, SYSTEMS, System
from experiments.benchmarks.alternatives.torch_work import Rounds, Task, Work
from experiments.benchmarks.measuring import reporting
from jaxfed.data import channel_statistics, load_dataset
from jaxfed.internal import console
from jaxfed.partition import client_dirichlet

TASKS = {
    'cifar10': Task(
        model='cnn',
        shape=(32, 32, 3),
        classes=10,
        clients=10,
        clients_per_round=10,
        examples_per_client=500,
        batch_size=50,
        local_epochs=1,
        learning_rate=0.01,
        rounds=3,
        eval_every=1,
        test_examples=2000,
    ),
    'blazefl': Task(
        model='lenet',
        shape=(32, 32, 3),
        classes=10,
        clients=100,
        clients_per_round=100,
        examples_per_client=500,
        batch_size=50,
        local_epochs=5,
        learning_rate=0.1,
        rounds=5,
        eval_every=1,
        test_examples=10000,
        shards=2,
    ),
    'flute': Task(
        model='cnn_dropout',
        shape=(28, 28, 1),
        classes=62,
        clients=3400,
        clients_per_round=10,
        examples_per_client=198,
        batch_size=20,
        local_epochs=1,
        learning_rate=0.1,
        rounds=51,
        eval_every=50,
        test_examples=10000,
    ),
    'pfl': Task(
        model='cnn_dropout',
        shape=(32, 32, 3),
        classes=10,
        clients=1000,
        clients_per_round=50,
        examples_per_client=50,
        batch_size=10,
        local_epochs=1,
        learning_rate=0.1,
        rounds=31,
        eval_every=10,
        test_examples=10000,
    ),
}
TASKS['pfl_dirichlet'] = TASKS['pfl']._replace(alpha=0.1, rounds=101)
CHECKOUTS = sorted({system.flag for system in SYSTEMS.values() if system.flag})
SAMPLING_SECONDS = 1.0  # a sample takes 20 ms


class Data(NamedTuple):
    """The images of all clients and of the evaluation."""

    name: str
    x_train: np.ndarray  # [K n, H, W, channels] uint8, n examples of each client in a row
    y_train: np.ndarray  # [K n] int32
    x_test: np.ndarray  # [m, H, W, channels] uint8
    y_test: np.ndarray  # [m] int32


def synthetic(task: Task) -> Data:
    """Images of the task's shape: each class a coarse pattern under much noise."""
    rng = np.random.default_rng(0)
    height, width, channels = task.shape
    train, test = task.clients * task.examples_per_client, task.test_examples
    patterns = rng.integers(0, 256, (task.classes, 4, 4, channels), np.uint16)
    patterns = patterns.repeat(-(-height // 4), axis=1).repeat(-(-width // 4), axis=2)
    patterns = patterns[:, :height, :width]
    y = np.concatenate([rng.permutation(n) % task.classes for n in (train, test)]).astype(np.int32)
    noise = rng.integers(0, 256, (train + test, *task.shape), np.uint8)
    x = ((patterns[y] + np.uint16(3) * noise) // 4).astype(np.uint8)
    return Data('synthetic images', x[:train], y[:train], x[train:], y[train:])


def sample(args: flags.FlagValues, task: Task) -> Data:
    """Random images of the dataset that the flags select.

    Raises:
      ValueError: if there is no such dataset, or it does not fit the task.
    """
    name = args.dataset
    dataset = load_dataset(name, data_dir=args.data_dir, npz=args.npz)
    train, test = task.clients * task.examples_per_client, task.test_examples
    sizes = len(dataset.y_train), len(dataset.y_test)
    if train > sizes[0] or test > sizes[1]:
        raise ValueError(
            f'--dataset={name} has {sizes[0]} training and {sizes[1]} test images, but --examples_'
            f'per_client of {task.clients} clients and --test_examples ask for {train} and {test}.'
        )
    if dataset.x_train.shape[1:] != tuple(task.shape):
        raise ValueError(
            f'--dataset={name} has images of shape {dataset.x_train.shape[1:]}, but the task has '
            f'{tuple(task.shape)}.'
        )
    rng = np.random.default_rng(0)
    rows, tested = rng.permutation(sizes[0])[:train], rng.permutation(sizes[1])[:test]
    x, y, x_test, y_test = dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test
    return Data(dataset.name, x[rows], y[rows], x_test[tested], y_test[tested])


def deal(data: Data, task: Task) -> Data:
    """The same images, dealt to the clients by their classes if the task has shards or alpha."""
    if task.alpha:
        parts = client_dirichlet(data.y_train, num_clients=task.clients, alpha=task.alpha, seed=0)
        rows = np.concatenate(parts)
    elif task.shards:
        shards = np.argsort(data.y_train, kind='stable').reshape(task.clients * task.shards, -1)
        rows = np.random.default_rng(0).permutation(shards).ravel()
    else:
        return data
    return data._replace(x_train=data.x_train[rows], y_train=data.y_train[rows])


def load(args: flags.FlagValues) -> tuple[Data, Task]:
    """The images and the task that the flags select; raises UsageError if there are none."""
    task = TASKS[args.task]
    changes = {name: args[name].value for name in ('model', 'rounds', 'examples_per_client')}
    changes['test_examples'] = args.test_examples
    task = task._replace(**{name: new for name, new in changes.items() if new is not None})
    if task.shards and task.examples_per_client % task.shards:
        raise app.UsageError(
            f'--examples_per_client={task.examples_per_client} must be a multiple of the '
            f'{task.shards} shards of a client.'
        )
    if args.data_dir is None and args.npz is None:
        if args['dataset'].present:
            raise app.UsageError(
                f'--dataset={args.dataset} needs --data_dir, its folder, or --npz, its file.'
            )
        return deal(synthetic(task), task), task
    with reporting.usage_errors():
        return deal(sample(args, task), task), task


def prepare(data: Data, task: Task, folder: str, machine: dict[str, Any]) -> Work:
    """Writes the work to an empty folder, for all systems."""
    arrays = {name: array for name, array in data._asdict().items() if name != 'name'}
    owners = np.arange(task.clients).repeat(task.examples_per_client)
    np.savez(Path(folder, 'data.npz'), users=owners, **arrays)
    for name, array in arrays.items():
        np.save(Path(folder, f'{name}.npy'), array)
    mean, std = channel_statistics(data.x_train)
    work = Work(
        folder=folder,
        task=task,
        mean=mean.tolist(),
        std=std.tolist(),
        cores=int(machine['cores']),
        gpu=machine['device'] != 'cpu',
    )
    Path(folder, 'work.json').write_text(json.dumps({**work._asdict(), 'task': task._asdict()}))
    return work


def tree_memory(pid: int) -> float | None:
    """Memory in MiB that a process and all its descendants use at present.

    Returns:
      The sum, shared pages counted once if the system reports them; None without psutil.
    """
    if not reporting.has('psutil'):
        return None
    import psutil

    total, tree = 0, []
    with contextlib.suppress(psutil.Error):  # the process has ended
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, 'pss', memory.rss)
    return total / MIB


def environment(system: System, checkout: str | None) -> dict[str, str]:
    """The environment of a system's process, which finds the package of its checkout."""
    env = dict(os.environ)
    if checkout is not None:
        modules = str(Path(checkout, system.package).absolute().parent)
        env['PYTHONPATH'] = os.pathsep.join(filter(None, [modules, env.get('PYTHONPATH')]))
    return env


def run(key: str, folder: str, steps: int, checkout: str | None = None) -> dict[str, Any]:
    """Runs a system of `SYSTEMS`, with `steps` client-steps a round, in its own process.

    Args:
      key: of `SYSTEMS`.
      folder: that `prepare` wrote.
      steps: of all clients of a round.
      checkout: the folder with the system's package.

    Returns:
      Its entry in the file, without the ratio to jaxfed; numbers are None if it fails.
    """
    system = SYSTEMS[key]
    output, errors = Path(folder, f'{key}.out'), Path(folder, f'{key}.err')
    command = [sys.executable, '-m', 'experiments.benchmarks.alternatives.systems', key, folder]
    peak: float | None = None
    with output.open('w') as out, errors.open('w') as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env=environment(system, checkout)
        )
        try:
            while system.processes and process.poll() is None:
                memory = tree_memory(process.pid)
                peak = memory if memory is None else max(memory, peak or 0.0)
                time.sleep(SAMPLING_SECONDS)
            status = process.wait()
        finally:
            process.kill()
    answer = reporting.last_line(output)
    report: dict[str, Any] = json.loads(answer) if answer.startswith('{"') else {}
    error = report.get('error') or reporting.last_line(errors) or f'ended with exit status {status}'
    rounds = Rounds(**report['rounds']) if 'rounds' in report else None
    seconds = statistics.median(rounds.seconds[1:]) if rounds else None
    return {
        'system': system.name,
        # Of all rounds, with what comes before the first one.
        'total_seconds': rounds and sum(rounds.seconds) + (rounds.compile_seconds or 0.0),
        'seconds_per_round': seconds,
        'rounds_seconds': rounds and rounds.seconds,
        'client_steps_per_second': seconds and steps / seconds,
        'peak_mib': peak if rounds and system.processes else report.get('peak_mib'),
        'final_accuracy': rounds and rounds.accuracy,
        'compile_seconds': rounds and rounds.compile_seconds,
        'error': None if rounds else error,
    }


def describe_machine(checkouts: Mapping[str, str]) -> dict[str, Any]:
    """The machine, described by another process: in this one, JAX would occupy the device.

    Returns:
      As `reporting.machine`, with the versions of what systems need, and the commits of checkouts.
    """
    code = (
        'import json; from experiments.benchmarks.measuring.reporting import machine; '
        'print(json.dumps(machine()))'
    )
    result = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, check=True)
    machine = json.loads(result.stdout.splitlines()[-1])
    peers = sorted({module for system in SYSTEMS.values() for module in system.needs})
    installed = packages_distributions()
    distributions = [name for peer in peers for name in installed.get(peer, [])]
    commits = {flag: reporting.commit_of(folder) for flag, folder in checkouts.items()}
    return {**machine, **{name: version(name) for name in distributions}, **commits}


def check_checkouts(checkouts: Mapping[str, str]) -> None:
    """Raises UsageError if a folder, flag -> folder, lacks the package of its system."""
    for system in SYSTEMS.values():
        folder = checkouts.get(system.flag)
        if folder is not None and not Path(folder, system.package).is_dir():
            raise app.UsageError(
                f'--{system.flag}={folder} must be a checkout of {system.name}, but has no folder '
                f'{system.package}.'
            )


def find_systems(names: Sequence[str], checkouts: Mapping[str, str]) -> list[str]:
    """Those of the keys `names` that can run here; prints how to install the others.

    Args:
      names: of `SYSTEMS`.
      checkouts: flag -> folder, of `System.flag`.
    """
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown or 'jaxfed' not in names:
        raise app.UsageError(
            f'--systems={",".join(names)} must be jaxfed and others of {", ".join(SYSTEMS)}.'
        )
    keys = []
    for key in SYSTEMS:
        system = SYSTEMS[key]
        runs = reporting.free_threaded() or not system.free_threaded
        runs = runs and (not system.flag or system.flag in checkouts)
        if key in names and runs and all(map(reporting.has, system.needs)):
            keys.append(key)
        elif key in names:
            hint = f'{system.name} cannot run here and is left out: {system.install}'
            reporting.console.print(hint, markup=False, soft_wrap=True)
    return keys


def notes(report: dict[str, Any], task: Task) -> list[str]:
    """The lines below the table."""
    memory = 'peak memory is the resident memory of the process'
    ran = {entry['system'] for entry in report['systems']}
    several = [one.name for one in SYSTEMS.values() if one.processes and one.name in ran]
    if several:
        summed = "all processes' sum, each second, shared pages once (psutil)"
        known = summed if reporting.has('psutil') else 'not measured, pip install psutil'
        memory += f'; of {"; ".join(several)}: {known}'
    shape = ' x '.join(map(str, task.shape))
    lines = [
        f'{report["data"]}, {shape}, {task.classes} classes, {task.examples_per_client} examples a '
        f'client, {console.counted(task.local_epochs, "local epoch")}, {task.test_examples} '
        f'tested; {task.rounds - 1} rounds counted, median',
        reporting.caption(report['machine']),
        memory,
    ]
    for entry in report['systems']:
        if entry['error']:
            lines.append(f'{entry["system"]} FAILED: {entry["error"]}')
            continue
        line = f'not counted: first round of {entry["system"]} {entry["rounds_seconds"][0]:.2f} s'
        compiled = entry['compile_seconds']
        lines.append(line + (f', which compiles for {compiled:.1f} s' if compiled else ''))
    return lines


def show(report: dict[str, Any], task: Task) -> None:
    """Prints the table."""
    formats = {
        'total_seconds': '.1f',
        'seconds_per_round': '.2f',
        'client_steps_per_second': '.1f',
        'peak_mib': '.0f',
        'final_accuracy': '.3f',
        'ratio_to_jaxfed': '.2f',
    }

    def cell(value: float | None, form: str) -> str:
        return '-' if value is None else format(value, form)

    rows = [
        [entry['system'], *(cell(entry[name], form) for name, form in formats.items())]
        for entry in report['systems']
    ]
    table = reporting.make_table(
        f'{task.model}, federated averaging, {task.clients_per_round} of {task.clients} clients a '
        f'round, batches of {task.batch_size}',
        ('system', 'all,\ns', 's a\nround', 'steps/s', 'peak\nMiB', 'accuracy', 'to\njaxfed'),
        rows,
        caption='\n'.join(notes(report, task)),
    )
    reporting.console.print(table)


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    checkouts: dict[str, Any] = {flag: args[flag].value for flag in CHECKOUTS if args[flag].present}
    check_checkouts(checkouts)
    keys, entries = find_systems(args.systems, checkouts), {}
    data, task = load(args)
    machine = describe_machine(checkouts)
    steps = task.local_epochs * -(-task.examples_per_client // task.batch_size)
    steps *= task.clients_per_round
    with tempfile.TemporaryDirectory(prefix='jaxfed-', ignore_cleanup_errors=True) as folder:
        prepare(data, task, folder, machine)
        for key in keys:
            with reporting.console.status(f'running {SYSTEMS[key].name}'):
                entries[key] = run(key, folder, steps, checkouts.get(SYSTEMS[key].flag))
    reference = entries['jaxfed']['seconds_per_round']
    for entry in entries.values():
        seconds = entry['seconds_per_round']
        entry['ratio_to_jaxfed'] = seconds / reference if seconds and reference else None
    report = {
        'machine': machine,
        'data': data.name,
        'task': args.task,
        'settings': task._asdict(),
        'systems': list(entries.values()),
    }
    show(report, task)
    reporting.write(report, args.output)
    if reference is None:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_enum('task', 'cifar10', list(TASKS), 'The work, see above.')
    flags.DEFINE_enum('model', None, ['cnn', 'cnn_dropout'], "Network [the task's].")
    flags.DEFINE_integer(
        'rounds', None, "Rounds of each system, of which the first is not counted [the task's].",
        lower_bound=2,
    )  # fmt: skip
    for name, text in {
        'examples_per_client': "Training examples of each client [the task's].",
        'test_examples': "Test images of an evaluation [the task's].",
    }.items():
        flags.DEFINE_integer(name, None, text, lower_bound=1)
    flags.DEFINE_list('systems', list(SYSTEMS), f'Of {", ".join(SYSTEMS)}; jaxfed is among them.')
    for flag in CHECKOUTS:
        names = [system.name for system in SYSTEMS.values() if system.flag == flag]
        flags.DEFINE_string(flag, None, f'Folder with a checkout of {names[0]} [not run].')
    flags.DEFINE_string('dataset', 'cifar10', 'TFDS image classification set, or npz with --npz.')
    flags.DEFINE_string('data_dir', None, 'Directory of TFDS datasets [synthetic images].')
    flags.DEFINE_string('npz', None, 'File of a data set, as of jaxfed.main.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
