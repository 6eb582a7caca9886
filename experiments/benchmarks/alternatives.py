"""Seconds a round of the same federated work: jaxfed, a plain PyTorch simulator and Flower.

Every system trains the FedNTD CNN by federated averaging on the same images: 10 equal clients a
round, one local epoch, batches of 50, SGD with momentum, no augmentation, and an evaluation on the
same test images after each round. The systems run one after another in separate processes, so that
they share neither cores nor memory. The first round is not counted.

python -m experiments.benchmarks.alternatives --output=experiments/results/alternatives_cpu.json
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from experiments.benchmarks import reporting
from experiments.benchmarks.systems import BATCH_SIZE, CLIENTS, MIB, SYSTEMS, Rounds, Work
from jaxfed.data import channel_statistics, load_dataset

SHAPE, CLASSES = (32, 32, 3), 10
SAMPLING_SECONDS = 1.0  # a sample takes 20 ms


class Data(NamedTuple):
    """The images of all clients and of the evaluation."""

    name: str
    x_train: np.ndarray  # [CLIENTS n, H, W, channels] uint8, n examples of each client in a row
    y_train: np.ndarray  # [CLIENTS n] int32
    x_test: np.ndarray  # [m, H, W, channels] uint8
    y_test: np.ndarray  # [m] int32


def synthetic(*, train: int, test: int) -> Data:
    """Images of CIFAR-10's shape: each class a coarse pattern under much noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (CLASSES, 4, 4, 3), np.uint16)
    patterns = patterns.repeat(8, axis=1).repeat(8, axis=2)
    y = np.concatenate([rng.permutation(n) % CLASSES for n in (train, test)]).astype(np.int32)
    noise = rng.integers(0, 256, (train + test, *SHAPE), np.uint8)
    x = ((patterns[y] + np.uint16(3) * noise) // 4).astype(np.uint8)
    return Data('synthetic images', x[:train], y[:train], x[train:], y[train:])


def sample(name: str, data_dir: str, *, train: int, test: int) -> Data:
    """Random images of the dataset `name` in `data_dir`.

    Raises:
      ValueError: if there is no such dataset, or it is too small.
    """
    dataset = load_dataset(name, data_dir=data_dir)
    sizes = len(dataset.y_train), len(dataset.y_test)
    if train > sizes[0] or test > sizes[1]:
        raise ValueError(
            f'--dataset={name} has {sizes[0]} training and {sizes[1]} test images, but --examples_'
            f'per_client of {CLIENTS} clients and --test_examples ask for {train} and {test}.'
        )
    rng = np.random.default_rng(0)
    rows, tested = rng.permutation(sizes[0])[:train], rng.permutation(sizes[1])[:test]
    x, y, x_test, y_test = dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test
    return Data(dataset.name, x[rows], y[rows], x_test[tested], y_test[tested])


def load(args: flags.FlagValues) -> Data:
    """Loads or makes the images that the flags select; raises UsageError if there are none."""
    sizes = {'train': CLIENTS * args.examples_per_client, 'test': args.test_examples}
    if args.data_dir is None:
        if args['dataset'].present:
            raise app.UsageError(f'--dataset={args.dataset} needs --data_dir, its folder.')
        return synthetic(**sizes)
    try:
        return sample(args.dataset, args.data_dir, **sizes)
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def prepare(data: Data, folder: str, *, rounds: int, machine: dict[str, Any]) -> Work:
    """Writes the work to an empty folder, for all systems."""
    arrays = {name: array for name, array in data._asdict().items() if name != 'name'}
    np.savez(Path(folder, 'data.npz'), **arrays)
    for name, array in arrays.items():
        np.save(Path(folder, f'{name}.npy'), array)
    mean, std = channel_statistics(data.x_train)
    work = Work(
        folder=folder,
        shape=list(data.x_train.shape[1:]),
        classes=int(data.y_train.max()) + 1,
        mean=mean.tolist(),
        std=std.tolist(),
        examples_per_client=len(data.y_train) // CLIENTS,
        rounds=rounds,
        cores=int(machine['cores']),
        gpu=machine['device'] != 'cpu',
    )
    Path(folder, 'work.json').write_text(json.dumps(work._asdict()))
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


def run(key: str, folder: str, steps: int) -> dict[str, Any]:
    """Runs a system of `SYSTEMS`, with `steps` client-steps a round, in its own process.

    Returns:
      Its entry in the file, without the ratio to jaxfed; numbers are None if it fails.
    """
    system = SYSTEMS[key]
    output, errors = Path(folder, f'{key}.out'), Path(folder, f'{key}.err')
    command = [sys.executable, '-m', 'experiments.benchmarks.systems', key, folder]
    peak: float | None = None
    with output.open('w') as out, errors.open('w') as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        try:
            while system.processes and process.poll() is None:
                memory = tree_memory(process.pid)
                peak = memory if memory is None else max(memory, peak or 0.0)
                time.sleep(SAMPLING_SECONDS)
            status = process.wait()
        finally:
            process.kill()
    answer = last_line(output)
    report: dict[str, Any] = json.loads(answer) if answer.startswith('{"') else {}
    error = report.get('error') or last_line(errors) or f'ended with exit status {status}'
    rounds = Rounds(**report['rounds']) if 'rounds' in report else None
    seconds = statistics.median(rounds.seconds[1:]) if rounds else None
    return {
        'system': system.name,
        'seconds_per_round': seconds,
        'rounds_seconds': rounds and rounds.seconds,
        'client_steps_per_second': seconds and steps / seconds,
        'peak_mib': peak if rounds and system.processes else report.get('peak_mib'),
        'final_accuracy': rounds and rounds.accuracy,
        'compile_seconds': rounds and rounds.compile_seconds,
        'error': None if rounds else error,
    }


def last_line(file: Path) -> str:
    """The last line of a file that is not empty, or ''."""
    lines = [line.strip() for line in file.read_text(errors='replace').splitlines()]
    return next((line for line in reversed(lines) if line), '')


def describe_machine() -> dict[str, Any]:
    """The machine, described by another process: in this one, JAX would occupy the device."""
    code = (
        'import json; from experiments.benchmarks.reporting import machine; '
        'print(json.dumps(machine()))'
    )
    result = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, check=True)
    machine = json.loads(result.stdout.splitlines()[-1])
    return {**machine, 'flwr': version('flwr') if reporting.has('flwr') else 'not installed'}


def find_systems() -> list[str]:
    """Keys of the installed systems; prints how to install the others."""
    keys = []
    for key, system in SYSTEMS.items():
        if all(map(reporting.has, system.needs)):
            keys.append(key)
            continue
        name = system.name.partition(',')[0]
        hint = f"{name} is not installed and is left out: pip install '{system.install}'."
        reporting.console.print(hint, markup=False, soft_wrap=True)
    return keys


def notes(report: dict[str, Any], work: Work) -> list[str]:
    """The lines below the table."""
    memory = 'peak memory is the resident memory of the process'
    names = [entry['system'] for entry in report['systems']]
    if any(system.processes and system.name in names for system in SYSTEMS.values()):
        summed = "all processes' sum, each second, shared pages once (psutil)"
        memory += (
            f'; Flower: {summed if reporting.has("psutil") else "not measured, pip install psutil"}'
        )
    lines = [
        f'{report["data"]}, {" x ".join(map(str, work.shape))}, {work.classes} classes, '
        f'{work.examples_per_client} examples a client, {report["settings"]["test_examples"]} '
        f'tested; {work.rounds - 1} rounds counted, median',
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


def show(report: dict[str, Any], work: Work) -> None:
    """Prints the table."""
    formats = {
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
        f'FedNTD CNN, federated averaging, {CLIENTS} clients, batches of {BATCH_SIZE}',
        ('system', 's a\nround', 'client-\nsteps/s', 'peak\nMiB', 'accuracy', 'to\njaxfed'),
        rows,
        caption='\n'.join(notes(report, work)),
    )
    reporting.console.print(table)


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    data = load(args)
    machine = describe_machine()
    keys, entries = find_systems(), {}
    steps = CLIENTS * -(-args.examples_per_client // BATCH_SIZE)
    with tempfile.TemporaryDirectory(prefix='jaxfed-', ignore_cleanup_errors=True) as folder:
        work = prepare(data, folder, rounds=args.rounds, machine=machine)
        for key in keys:
            with reporting.console.status(f'running {SYSTEMS[key].name}'):
                entries[key] = run(key, folder, steps)
    reference = entries['jaxfed']['seconds_per_round']
    for entry in entries.values():
        seconds = entry['seconds_per_round']
        entry['ratio_to_jaxfed'] = seconds / reference if seconds and reference else None
    report = {
        'machine': machine,
        'data': data.name,
        'settings': {
            'clients': CLIENTS,
            'batch_size': BATCH_SIZE,
            'examples_per_client': work.examples_per_client,
            'test_examples': len(data.y_test),
            'rounds': work.rounds,
        },
        'systems': list(entries.values()),
    }
    show(report, work)
    reporting.write(report, args.output)
    if reference is None:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_integer(
        'rounds', 3, 'Rounds of each system, of which the first is not counted.', lower_bound=2
    )
    flags.DEFINE_integer(
        'examples_per_client', 500, 'Training examples of each client.', lower_bound=BATCH_SIZE
    )
    reporting.define_positive('test_examples', 2000, 'Test images evaluated after each round.')
    flags.DEFINE_string('dataset', 'cifar10', 'TFDS image classification set.')
    flags.DEFINE_string('data_dir', None, 'Directory of TFDS datasets [synthetic images].')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
