"""Milliseconds a client and local step of the FedNTD CNN: jaxfed next to a plain PyTorch loop.

Every program trains the same number of clients for the same number of steps on 32x32x3 images,
forward, backward and SGD with momentum. The programs take turns, so that what else the machine
does at the time falls on all of them alike.
"""

import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax import lax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jaxfed.lanes import schedule
from jaxfed.method import Method
from jaxfed.models import make_model
from jaxfed.round import LocalSettings, ServerState, TrainingData, local_optimizer, make_round
from jaxfed.types import Array, Model, PyTree

SHAPE = (32, 32, 3)
CLASSES = 10
LEARNING_RATE = 0.01
MOMENTUM = 0.9
TORCH = 'PyTorch, one client after another'

_CLIENTS = flags.DEFINE_integer('clients', 10, 'Clients in training.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 50, 'Examples in a batch.', lower_bound=1)
_STEPS = flags.DEFINE_integer('steps', 5, 'Local steps in one measurement.', lower_bound=1)
_NAIVE_STEPS = flags.DEFINE_integer(
    'naive_steps', 1, 'Steps of the naive program, measured once; 0 leaves it out.', lower_bound=0
)
_REPEATS = flags.DEFINE_integer('repeats', 7, 'Measurements of each program.', lower_bound=1)
_LANES = flags.DEFINE_list('lanes', ['5'], 'Clients stacked in a round, one row for each number.')
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')


class Program(NamedTuple):
    """A way to train all clients."""

    name: str
    run: Callable[[], None]  # all clients, `steps` steps; returns when they are done
    steps: int
    repeats: int


class Timing(NamedTuple):
    """What a program took."""

    name: str
    milliseconds: list[float]  # a client and step, one for each measurement

    @property
    def median(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.milliseconds)


def images(clients: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random images and labels.

    Args:
      clients: number of clients.
      examples: examples of each.

    Returns:
      [clients, examples, 32, 32, 3] float32 and [clients, examples] int32.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, examples, *SHAPE), np.float32)
    return x, rng.integers(0, CLASSES, (clients, examples), np.int32)


def torch_program(*, clients: int, batch_size: int, steps: int, repeats: int) -> Program:
    """Makes the loop that a researcher would write in PyTorch, on all cores.

    Args:
      clients: number of clients.
      batch_size: examples in a batch.
      steps: local steps of each client.
      repeats: measurements.

    Returns:
      The program.
    """
    import torch
    from torch import nn

    torch.set_num_threads(cores())
    x, y = images(clients, batch_size)
    batches = [
        (torch.from_numpy(own).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels).long())
        for own, labels in zip(x, y, strict=True)
    ]

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4096, 512),
            nn.ReLU(),
            nn.Linear(512, CLASSES),
        )

    networks = [network() for _ in range(clients)]

    def run() -> None:
        for model, (own, labels) in zip(networks, batches, strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
            for _ in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(own), labels).backward()
                optimizer.step()

    return Program(TORCH, run, steps, repeats)


def step_program(
    name: str, model: Model, *, clients: int, batch_size: int, steps: int, repeats: int
) -> Program:
    """Makes the bare local step, mapped over the stacked clients in a compiled loop.

    Args:
      name: of the program.
      model: the network.
      clients: number of clients.
      batch_size: examples in a batch.
      steps: local steps of each client.
      repeats: measurements.

    Returns:
      The program.
    """
    x, y = (jnp.asarray(array) for array in images(clients, batch_size))
    optimizer = local_optimizer(LEARNING_RATE, momentum=MOMENTUM, weight_decay=0.0)

    def loss(params: PyTree, x: Array, y: Array) -> Array:
        logits = model.apply(params, x).logits
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

    def local_step(params: PyTree, state: PyTree, x: Array, y: Array) -> tuple[PyTree, PyTree]:
        _, gradient = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    # The number of steps is an argument: a loop of known length 1 would be compiled away.
    @jax.jit
    def train(params: PyTree, steps: Array) -> PyTree:
        carry = params, jax.vmap(optimizer.init)(params)
        step = jax.vmap(local_step)
        return lax.fori_loop(0, steps, lambda _, c: step(c[0], c[1], x, y), carry)[0]

    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), clients))
    compiled = train.lower(params, jnp.int32(steps)).compile()

    def run() -> None:
        jax.block_until_ready(compiled(params, jnp.int32(steps)))

    return Program(name, run, steps, repeats)


def round_program(
    *, lanes: int, clients: int, batch_size: int, steps: int, repeats: int
) -> Program:
    """Makes a whole round of jaxfed's engine: drawing batches and aggregation included.

    Args:
      lanes: clients stacked at a time.
      clients: number of clients.
      batch_size: examples in a batch.
      steps: local steps of each client.
      repeats: measurements.

    Returns:
      The program.
    """
    x, y = images(clients, batch_size * steps)
    size = np.full(clients, batch_size * steps, np.int32)
    data = TrainingData(
        x=jnp.asarray(x.reshape(-1, *SHAPE)),
        y=jnp.asarray(y.reshape(-1)),
        order=jnp.arange(y.size, dtype=jnp.int32),
        start=jnp.asarray(np.cumsum(size) - size, jnp.int32),
        size=jnp.asarray(size),
        label_counts=jnp.asarray([np.bincount(own, minlength=CLASSES) for own in y], jnp.int32),
    )
    model, method = make_model('cnn', input_shape=SHAPE, num_classes=CLASSES), Method()
    settings = LocalSettings(
        local_epochs=1,
        batch_size=batch_size,
        momentum=MOMENTUM,
        weight_decay=0.0,
        aggregation='size',
        longest=batch_size * steps,
    )
    run_round = make_round(model, method, settings, lambda key, x: x, lambda x: x)
    params = model.init(jax.random.key(0))
    server_state, client_state = method.init(params)
    arguments = (
        ServerState(params, server_state, jnp.zeros((), jnp.int32)),
        jnp.arange(clients, dtype=jnp.int32),
        jax.tree.map(lambda leaf: jnp.stack([leaf] * clients), client_state),
        schedule([steps] * clients, lanes=lanes),
        jnp.float32(LEARNING_RATE),
        jax.random.key(1),
        data,
    )
    compiled = jax.jit(run_round).lower(*arguments).compile()

    def run() -> None:
        jax.block_until_ready(compiled(*arguments))

    return Program(f'jaxfed, whole round, {lanes} lanes', run, steps, repeats)


def measure(programs: list[Program], *, clients: int) -> list[Timing]:
    """Measures programs in turn, after one run of each that is to be measured more than once.

    Args:
      programs: what to measure.
      clients: that each program trains.

    Returns:
      Their timings, in the same order.
    """
    for program in programs:
        if program.repeats > 1:
            program.run()
    timings = [Timing(program.name, []) for program in programs]
    for turn in track(range(max(p.repeats for p in programs)), 'measuring', transient=True):
        for program, timing in zip(programs, timings, strict=True):
            if turn < program.repeats:
                began = time.perf_counter()
                program.run()
                seconds = time.perf_counter() - began
                timing.milliseconds.append(1e3 * seconds / (program.steps * clients))
    return timings


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def machine() -> dict[str, str | int]:
    """Describes what is measured on.

    Returns:
      Cores, processor, JAX's device and the versions.
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith('model name')]
        name = named[0].partition(':')[2].strip() if named else name
    has_torch = importlib.util.find_spec('torch') is not None
    return {
        'cores': cores(),
        'processor': name,
        'device': jax.devices()[0].device_kind,
        'python': platform.python_version(),
        'jax': jax.__version__,
        'flax': version('flax'),
        'torch': version('torch') if has_torch else 'not installed',
    }


def main(argv: list[str]) -> None:
    """Measures, prints the table and writes the file."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    console = Console(highlight=False)
    clients, steps = _CLIENTS.value, _STEPS.value
    size = {'clients': clients, 'batch_size': _BATCH_SIZE.value}
    often = {**size, 'steps': steps, 'repeats': _REPEATS.value}
    for lanes in _LANES.value:
        if not lanes.isdecimal() or not 1 <= int(lanes) <= clients:
            raise app.UsageError(
                f'--lanes={",".join(_LANES.value)} must be numbers in 1..{clients} (--clients).'
            )
    described = machine()
    programs = []
    if described['torch'] == 'not installed':
        console.print("PyTorch is not installed and is left out: pip install 'jaxfed[bench]'.")
    else:
        programs.append(torch_program(**often))
    with console.status('compiling'):
        programs += [round_program(lanes=int(lanes), **often) for lanes in _LANES.value]
        fast = make_model('cnn', input_shape=SHAPE, num_classes=CLASSES)
        programs.append(step_program('jaxfed, bare step, all clients stacked', fast, **often))
        if _NAIVE_STEPS.value:
            naive = make_model(
                'cnn',
                input_shape=SHAPE,
                num_classes=CLASSES,
                conv_general_dilated=lax.conv_general_dilated,
            )
            programs.append(
                step_program('vmap of lax.conv', naive, **size, steps=_NAIVE_STEPS.value, repeats=1)
            )
    timings = measure(programs, clients=clients)

    reference = next((timing.median for timing in timings if timing.name == TORCH), None)
    table = Table(
        title=f'FedNTD CNN, {clients} clients, batches of {_BATCH_SIZE.value}',
        caption=', '.join(f'{key} {value}' for key, value in described.items()),
    )
    table.add_column('program')
    for column in ('ms a client and step', 'min-max', 'to PyTorch'):
        table.add_column(column, justify='right')
    entries = []
    for timing in timings:
        low, high = min(timing.milliseconds), max(timing.milliseconds)
        ratio = None if reference is None else timing.median / reference
        table.add_row(
            timing.name,
            f'{timing.median:.1f}',
            f'{low:.1f}-{high:.1f}',
            '-' if ratio is None else f'{ratio:.2f}',
        )
        entries.append(
            {
                'program': timing.name,
                'median_ms': timing.median,
                'min_ms': low,
                'max_ms': high,
                'measurements_ms': timing.milliseconds,
                'ratio_to_torch': ratio,
            }
        )
    console.print(table)
    if _OUTPUT.value:
        settings = {**often, 'naive_steps': _NAIVE_STEPS.value}
        report = {'machine': described, 'settings': settings, 'programs': entries}
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')


if __name__ == '__main__':
    app.run(main)
