"""Seconds a round of the same federated work: jaxfed, a plain PyTorch simulator and Flower.

Every system trains the FedNTD CNN by federated averaging on the same images: 10 equal clients a
round, one local epoch, batches of 50, SGD with momentum, no augmentation, and an evaluation on the
same test images after each round. Each system runs in a process of its own, one after another, so
that its peak memory is its own and nothing of one slows another. The first round is not counted.
"""

import copy
import importlib.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import torch

# jaxfed and torch are imported by the functions that need them: what a system's process imports
# counts as its memory.

SHAPE = (32, 32, 3)
CLASSES = 10
CLIENTS = 10
BATCH_SIZE = 50
TEST_BATCH_SIZE = 500  # as jaxfed evaluates
LEARNING_RATE = 0.01
MOMENTUM = 0.9
MIB = 2**20
SAMPLING_SECONDS = 1.0  # a sample takes 20 ms

_ROUNDS = flags.DEFINE_integer(
    'rounds', 3, 'Rounds of each system, of which the first is not counted.', lower_bound=2
)
_EXAMPLES = flags.DEFINE_integer(
    'examples_per_client', 500, 'Training examples of each client.', lower_bound=BATCH_SIZE
)
_TEST_EXAMPLES = flags.DEFINE_integer(
    'test_examples', 2000, 'Test images evaluated after each round.', lower_bound=1
)
_DATASET = flags.DEFINE_string('dataset', 'cifar10', 'TFDS image classification set.')
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, 'Directory of prepared TFDS datasets; without it images are synthetic.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')
_SYSTEM = flags.DEFINE_enum(
    'system',
    None,
    ['jaxfed', 'torch', 'flower'],
    'Set by the benchmark itself: the system to run in this process, on the work in --folder.',
)
_FOLDER = flags.DEFINE_string('folder', None, 'Set by the benchmark itself, with --system.')


class Data(NamedTuple):
    """The images of all clients and of the evaluation."""

    name: str
    x_train: np.ndarray  # [CLIENTS n, H, W, channels] uint8, n examples of each client in a row
    y_train: np.ndarray  # [CLIENTS n] int32
    x_test: np.ndarray  # [m, H, W, channels] uint8
    y_test: np.ndarray  # [m] int32


class Work(NamedTuple):
    """What every system does; its arrays are files in the folder."""

    folder: str
    shape: list[int]  # height, width, channels of an image
    classes: int
    mean: list[float]  # of each channel, in the units of the files
    std: list[float]
    examples_per_client: int
    rounds: int
    cores: int
    gpu: bool  # JAX computes on one, so PyTorch must too


class Rounds(NamedTuple):
    """What a system did."""

    seconds: list[float]  # of every round, training, aggregation and evaluation
    accuracy: float  # on the test images, after the last round
    compile_seconds: float | None = None  # before the first round


class System(NamedTuple):
    """A way to do the work."""

    key: str  # of --system
    name: str
    run: Callable[[Work], Rounds]
    needs: tuple[str, ...]  # modules
    install: str  # what pip installs them from
    processes: bool  # whether it starts processes of its own


class Entry(NamedTuple):
    """A system and what was measured, or why nothing was."""

    system: System
    rounds: Rounds | None
    peak_mib: float | None
    error: str | None

    @property
    def seconds(self) -> float | None:
        """Median over the rounds that count."""
        return statistics.median(self.rounds.seconds[1:]) if self.rounds else None


def synthetic(*, train: int, test: int) -> Data:
    """Makes images of CIFAR-10's shape: each class a coarse pattern under much noise.

    Args:
      train: number of training images.
      test: number of test images.

    Returns:
      The data.
    """
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (CLASSES, 4, 4, 3), np.uint16)
    patterns = patterns.repeat(8, axis=1).repeat(8, axis=2)
    y = np.concatenate([rng.permutation(n) % CLASSES for n in (train, test)]).astype(np.int32)
    noise = rng.integers(0, 256, (train + test, *SHAPE), np.uint8)
    x = ((patterns[y] + np.uint16(3) * noise) // 4).astype(np.uint8)
    return Data('synthetic images', x[:train], y[:train], x[train:], y[train:])


def from_tfds(name: str, data_dir: str, *, train: int, test: int) -> Data:
    """Draws images of a dataset at random.

    Args:
      name: of the dataset.
      data_dir: where it is prepared.
      train: number of training images.
      test: number of test images.

    Returns:
      The data.

    Raises:
      ValueError: if there is no such dataset, or it is too small.
    """
    from jaxfed.data import load_dataset

    dataset = load_dataset(name, data_dir=data_dir)
    held = len(dataset.y_train), len(dataset.y_test)
    if train > held[0] or test > held[1]:
        raise ValueError(
            f'--dataset={name} has {held[0]} training and {held[1]} test images, but --examples_'
            f'per_client of {CLIENTS} clients and --test_examples ask for {train} and {test}.'
        )
    rng = np.random.default_rng(0)
    own, tested = rng.permutation(held[0])[:train], rng.permutation(held[1])[:test]
    return Data(
        dataset.name,
        dataset.x_train[own],
        dataset.y_train[own],
        dataset.x_test[tested],
        dataset.y_test[tested],
    )


def prepare(data: Data, folder: str, *, rounds: int, cores: int, gpu: bool) -> Work:
    """Writes the work to its folder, for all systems.

    Args:
      data: the images.
      folder: an empty one.
      rounds: of training.
      cores: that a system may use.
      gpu: whether JAX has a GPU.

    Returns:
      The work.
    """
    from jaxfed.data import channel_statistics

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
        cores=cores,
        gpu=gpu,
    )
    Path(folder, 'work.json').write_text(json.dumps(work._asdict()))
    return work


def run_jaxfed(work: Work) -> Rounds:
    """Runs the work in jaxfed, through its Python interface.

    Args:
      work: what to do.

    Returns:
      What was done.
    """
    import jaxfed
    from jaxfed.engine.devices import use_every_core

    use_every_core()
    result = jaxfed.simulate(
        jaxfed.Config(
            method='fedavg',
            dataset='npz',
            npz=f'{work.folder}/data.npz',
            partition='iid',
            num_clients=CLIENTS,
            clients_per_round=CLIENTS,
            model='cnn',
            rounds=work.rounds,
            local_epochs=1,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            weight_decay=0.0,
            aggregation='size',
            workdir=f'{work.folder}/jaxfed',
        )
    )
    return Rounds(
        [entry['seconds'] for entry in result.metrics],
        result.summary['final_accuracy'],
        result.summary['compile_seconds'],
    )


def network(work: Work) -> 'torch.nn.Module':
    """Makes the FedNTD CNN in PyTorch, initialised by its defaults.

    Args:
      work: sizes of images and classes.

    Returns:
      The network, on the device to train on.
    """
    from torch import nn

    height, width, channels = work.shape
    model = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear((height // 4) * (width // 4) * 64, 512),
        nn.ReLU(),
        nn.Linear(512, work.classes),
    )
    return model.to('cuda' if work.gpu else 'cpu')


def read_examples(work: Work, split: str, rows: slice) -> 'torch.utils.data.TensorDataset':
    """Reads examples and normalises them, once.

    Args:
      work: where they are.
      split: 'train' or 'test'.
      rows: which of them.

    Returns:
      Images [n, channels, H, W] float32 and labels [n] int64.
    """
    import torch

    x, y = (np.load(f'{work.folder}/{part}_{split}.npy', mmap_mode='r')[rows] for part in 'xy')
    scaled = (x - np.asarray(work.mean, np.float32)) / np.asarray(work.std, np.float32)
    images = torch.from_numpy(scaled).permute(0, 3, 1, 2).contiguous()
    return torch.utils.data.TensorDataset(images, torch.from_numpy(y.astype(np.int64)))


def train_examples(work: Work, client: int) -> 'torch.utils.data.TensorDataset':
    """Reads the examples of a client."""
    n = work.examples_per_client
    return read_examples(work, 'train', slice(client * n, (client + 1) * n))


def train_locally(model: 'torch.nn.Module', examples: 'torch.utils.data.Dataset') -> None:
    """Trains a client's network for one epoch, in place.

    Args:
      model: the network.
      examples: the client's.
    """
    import torch
    from torch.utils.data import DataLoader

    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    model.train()
    for x, y in DataLoader(examples, batch_size=BATCH_SIZE, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()


def measure_accuracy(model: 'torch.nn.Module', examples: 'torch.utils.data.TensorDataset') -> float:
    """Computes the share of correct predictions.

    Args:
      model: the network.
      examples: to predict.

    Returns:
      The accuracy.
    """
    import torch
    from torch.utils.data import DataLoader

    device = next(model.parameters()).device
    correct = 0
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(examples, batch_size=TEST_BATCH_SIZE):
            correct += int((model(x.to(device)).argmax(1) == y.to(device)).sum())
    return correct / len(examples)


def run_torch(work: Work) -> Rounds:
    """Runs the work as published research code does: a loop over clients, on all cores.

    Args:
      work: what to do.

    Returns:
      What was done.
    """
    import torch

    torch.set_num_threads(work.cores)
    clients = [train_examples(work, client) for client in range(CLIENTS)]
    tested = read_examples(work, 'test', slice(None))
    total = sum(len(own) for own in clients)
    model = network(work)
    seconds, accuracy = [], 0.0
    for _ in range(work.rounds):
        began = time.perf_counter()
        states = []
        for own in clients:
            local = copy.deepcopy(model)
            train_locally(local, own)
            states.append(local.state_dict())
        average = {
            name: sum(
                len(own) / total * state[name] for own, state in zip(clients, states, strict=True)
            )
            for name in model.state_dict()
        }
        model.load_state_dict(average)
        accuracy = measure_accuracy(model, tested)
        seconds.append(time.perf_counter() - began)
    return Rounds(seconds, accuracy)


def run_flower(work: Work) -> Rounds:
    """Runs the work in Flower's simulation engine: as many clients at a time as cores, one each.

    Args:
      work: what to do.

    Returns:
      What was done.

    Raises:
      RuntimeError: if a client failed.
    """
    os.environ.update(
        FLWR_HOME=f'{work.folder}/flower', FLWR_TELEMETRY_ENABLED='0', RAY_USAGE_STATS_ENABLED='0'
    )
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    torch.set_num_threads(work.cores)
    tested = read_examples(work, 'test', slice(None))
    evaluated: list[tuple[float, float]] = []  # when, and the accuracy; also before round 1
    replies: list[int] = []  # clients that answered, a round
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        own = train_examples(work, int(context.node_config['partition-id']))
        model = network(work)
        arrays: Any = message.content['arrays']
        model.load_state_dict(arrays.to_torch_state_dict())
        train_locally(model, own)
        content = RecordDict()
        content['arrays'] = ArrayRecord(model.state_dict())
        content['metrics'] = MetricRecord({'num-examples': len(own)})
        return Message(content, reply_to=message)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        model = network(work)
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy = measure_accuracy(model, tested)
        evaluated.append((time.perf_counter(), accuracy))
        return MetricRecord({'accuracy': accuracy})

    def count(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        del weighted_by
        replies.append(len(contents))
        return MetricRecord({'clients': len(contents)})

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=CLIENTS,
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=count,
        )
        initial = ArrayRecord(network(work).state_dict())
        strategy.start(grid, initial, num_rounds=work.rounds, evaluate_fn=evaluate)

    workers = min(work.cores, CLIENTS)
    gpus = 1 / workers if work.gpu else 0.0
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS,
        backend_config={
            'init_args': {'num_cpus': workers},
            'client_resources': {'num_cpus': 1, 'num_gpus': gpus},
        },
    )
    if replies != [CLIENTS] * work.rounds:
        raise RuntimeError(f'not all of {CLIENTS} clients answered in every round: {replies}')
    seconds = [after - before for (before, _), (after, _) in itertools.pairwise(evaluated)]
    return Rounds(seconds, evaluated[-1][1])


SYSTEMS = (
    System('jaxfed', 'jaxfed', run_jaxfed, (), '', False),
    System(
        'torch',
        'PyTorch, client after client',
        run_torch,
        ('torch',),
        'jaxfed[bench]',
        False,
    ),
    System(
        'flower',
        'Flower simulation, PyTorch',
        run_flower,
        ('flwr', 'ray', 'torch'),
        "jaxfed[bench]' 'flwr[simulation]",
        True,
    ),
)


def peak_memory() -> float:
    """Peak resident memory of this process so far, in MiB."""
    status = Path('/proc/self/status')
    # On Linux, getrusage's maximum includes the process that started this one.
    lines = status.read_text().splitlines() if status.exists() else []
    for line in lines:
        if line.startswith('VmHWM:'):
            return int(line.split()[1]) * 1024 / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == 'darwin' else peak * 1024 / MIB


def tree_memory(pid: int) -> float | None:
    """Memory of a process and all its descendants now, in MiB.

    Args:
      pid: of the process.

    Returns:
      The sum, shared pages counted once where the system tells; None without psutil.
    """
    if importlib.util.find_spec('psutil') is None:
        return None
    import psutil

    total = 0
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:  # it has ended
        return 0.0
    for process in tree:
        try:
            memory = process.memory_full_info()
            total += getattr(memory, 'pss', memory.rss)
        except psutil.Error:
            continue
    return total / MIB


def run_here(system: System, folder: str) -> None:
    """Runs a system in this process and prints what it did, as one line of JSON.

    Args:
      system: the system.
      folder: of its work.
    """
    work = Work(**json.loads(Path(folder, 'work.json').read_text()))
    try:
        rounds = system.run(work)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({'error': traceback.format_exception_only(error)[-1].strip()}))
        sys.exit(1)
    print(json.dumps({'rounds': rounds._asdict(), 'peak_mib': peak_memory()}))


def run_apart(system: System, folder: str) -> Entry:
    """Runs a system in a process of its own.

    Args:
      system: the system.
      folder: of its work.

    Returns:
      What was measured.
    """
    output, errors = Path(folder, f'{system.key}.out'), Path(folder, f'{system.key}.err')
    arguments = [f'--system={system.key}', f'--folder={folder}']
    peak: float | None = None
    with output.open('w') as out, errors.open('w') as err:
        process = subprocess.Popen(
            [sys.executable, '-m', 'experiments.benchmarks.alternatives', *arguments],
            stdout=out,
            stderr=err,
        )
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
    if 'rounds' not in report:
        error = report.get('error') or last_line(errors) or f'ended with exit status {status}'
        return Entry(system, None, None, error)
    return Entry(
        system,
        Rounds(**report['rounds']),
        peak if system.processes else report['peak_mib'],
        None,
    )


def last_line(file: Path) -> str:
    """The last line of a file that is not empty, or ''."""
    lines = [line.strip() for line in file.read_text(errors='replace').splitlines()]
    return next((line for line in reversed(lines) if line), '')


def describe_machine() -> dict[str, str | int]:
    """Describes what is measured on.

    Returns:
      Cores, processor, JAX's device and the versions.
    """
    # In a process of its own, because JAX would hold the device.
    code = (
        'import json; from experiments.benchmarks.machine import machine; '
        'print(json.dumps(machine()))'
    )
    done = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, check=True)
    described = json.loads(done.stdout.splitlines()[-1])
    has_flower = importlib.util.find_spec('flwr') is not None
    return {**described, 'flwr': version('flwr') if has_flower else 'not installed'}


def installed(console: Console) -> list[System]:
    """The systems that can run here; says how to install the others."""
    able = []
    for system in SYSTEMS:
        if all(importlib.util.find_spec(module) for module in system.needs):
            able.append(system)
        else:
            name = system.name.partition(',')[0]
            console.print(
                f"{name} is not installed and is left out: pip install '{system.install}'.",
                markup=False,
                soft_wrap=True,
            )
    return able


def draw(entries: list[Entry], *, title: str, notes: list[str], steps: int) -> Table:
    """Draws the table.

    Args:
      entries: what was measured.
      title: of the table.
      notes: lines of the caption, before the systems' own.
      steps: client-steps in a round.

    Returns:
      The table.
    """
    table = Table(title=title)
    table.add_column('system', no_wrap=True)
    for column in ('s a\nround', 'client-\nsteps/s', 'peak\nMiB', 'accuracy', 'to\njaxfed'):
        table.add_column(column, justify='right')
    formats = {
        'seconds_per_round': '.2f',
        'client_steps_per_second': '.1f',
        'peak_mib': '.0f',
        'final_accuracy': '.3f',
        'ratio_to_jaxfed': '.2f',
    }
    for entry in entries:
        values = describe_entry(entry, entries, steps=steps)
        cells = [
            '-' if values[name] is None else format(values[name], form)
            for name, form in formats.items()
        ]
        table.add_row(entry.system.name, *cells)
    done = [(entry.system.key, entry.rounds) for entry in entries if entry.rounds]
    first = ', '.join(f'{key} {rounds.seconds[0]:.2f} s' for key, rounds in done)
    lines = [*notes, f'not counted: first round of {first}'] if done else list(notes)
    for key, rounds in done:
        if rounds.compile_seconds:
            lines.append(f'not counted: {key} compiles for {rounds.compile_seconds:.1f} s')
    lines += [f'{entry.system.key} FAILED: {entry.error}' for entry in entries if entry.error]
    table.caption = Text('\n'.join(lines))
    return table


def describe_entry(entry: Entry, entries: list[Entry], *, steps: int) -> dict[str, Any]:
    """Describes a system's measurements.

    Args:
      entry: the measurements.
      entries: those of all systems.
      steps: client-steps in a round.

    Returns:
      What the file holds of them.
    """
    seconds = entry.seconds
    reference = next((e.seconds for e in entries if e.system.key == 'jaxfed'), None)
    return {
        'system': entry.system.name,
        'seconds_per_round': seconds,
        'rounds_seconds': entry.rounds.seconds if entry.rounds else None,
        'client_steps_per_second': steps / seconds if seconds else None,
        'peak_mib': entry.peak_mib,
        'final_accuracy': entry.rounds.accuracy if entry.rounds else None,
        'compile_seconds': entry.rounds.compile_seconds if entry.rounds else None,
        'ratio_to_jaxfed': seconds / reference if seconds and reference else None,
        'error': entry.error,
    }


def load() -> Data:
    """Loads or makes the images that the flags ask for.

    Returns:
      The data.

    Raises:
      UsageError: if there are no such images.
    """
    size = {'train': CLIENTS * _EXAMPLES.value, 'test': _TEST_EXAMPLES.value}
    if _DATA_DIR.value is None:
        if _DATASET.present:
            raise app.UsageError(f'--dataset={_DATASET.value} needs --data_dir, where it is.')
        return synthetic(**size)
    try:
        return from_tfds(_DATASET.value, _DATA_DIR.value, **size)
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def main(argv: list[str]) -> None:
    """Measures, prints the table and writes the file."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    if (_SYSTEM.value is None) != (_FOLDER.value is None):
        raise app.UsageError('--system and --folder are set by the benchmark itself, together.')
    if _SYSTEM.value is not None and _FOLDER.value is not None:
        run_here(next(s for s in SYSTEMS if s.key == _SYSTEM.value), _FOLDER.value)
        return
    if _OUTPUT.value and not Path(_OUTPUT.value).absolute().parent.is_dir():
        raise app.UsageError(f'--output={_OUTPUT.value} is in a folder that does not exist.')
    console = Console(highlight=False)
    data = load()
    described = describe_machine()
    systems = installed(console)
    entries = []
    with tempfile.TemporaryDirectory(prefix='jaxfed-', ignore_cleanup_errors=True) as folder:
        work = prepare(
            data,
            folder,
            rounds=_ROUNDS.value,
            cores=int(described['cores']),
            gpu=described['device'] != 'cpu',
        )
        for system in systems:
            with console.status(f'running {system.name}'):
                entries.append(run_apart(system, folder))

    steps = CLIENTS * -(-work.examples_per_client // BATCH_SIZE)
    size = ' x '.join(map(str, work.shape))
    memory = 'peak memory is the resident memory of the process'
    if any(system.processes for system in systems):
        has_psutil = importlib.util.find_spec('psutil') is not None
        summed = "all processes' sum, each second, shared pages once (psutil)"
        memory += f'; Flower: {summed if has_psutil else "not measured, pip install psutil"}'
    notes = [
        f'{data.name}, {size}, {work.classes} classes, {work.examples_per_client} examples a '
        f'client, {len(data.y_test)} tested; {work.rounds - 1} rounds counted, median',
        ', '.join(f'{key} {value}' for key, value in described.items()),
        memory,
    ]
    title = f'FedNTD CNN, federated averaging, {CLIENTS} clients, batches of {BATCH_SIZE}'
    console.print(draw(entries, title=title, notes=notes, steps=steps))
    if _OUTPUT.value:
        report = {
            'machine': described,
            'data': data.name,
            'settings': {
                'clients': CLIENTS,
                'batch_size': BATCH_SIZE,
                'examples_per_client': work.examples_per_client,
                'test_examples': len(data.y_test),
                'rounds': work.rounds,
            },
            'systems': [describe_entry(entry, entries, steps=steps) for entry in entries],
        }
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')
    if not any(entry.system.key == 'jaxfed' and entry.rounds for entry in entries):
        sys.exit(1)


if __name__ == '__main__':
    app.run(main)
