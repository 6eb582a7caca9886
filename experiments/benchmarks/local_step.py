"""Milliseconds a client and local step: jaxfed next to a plain PyTorch loop.

Every program trains the same number of clients for the same number of steps on 32x32x3 images,
forward, backward and SGD with momentum. The programs take turns, so that what else the machine
does at the time falls on all of them alike. The rows of jaxfed add one thing after another to the
bare step, up to a round as users run it.
"""

import functools
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.machine import machine
from experiments.benchmarks.single_experiment import round_arguments, run_round
from jaxfed import losses, methods
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import (
    AXIS,
    check_devices,
    cores,
    make_mesh,
    replicate,
    split,
    use_every_core,
)
from jaxfed.engine.execution import compile_round, peak_memory
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import LocalSettings, local_optimizer
from jaxfed.engine.round import ServerState, TrainingData, make_round
from jaxfed.engine.stacking import STACKED, Stacking, row, stacking
from jaxfed.models import make_model
from jaxfed.models.ops import convolution
from jaxfed.types import Array, Model, PyTree

SHAPE = (32, 32, 3)
CLASSES = 10
LEARNING_RATE = 0.01
MOMENTUM = 0.9
TORCH = 'PyTorch'
MATMUL = 'matrix product'
MATMUL_SIDE = 2048

_MODEL = flags.DEFINE_enum('model', 'cnn', ['cnn', 'lenet'], 'Network.')
_CLIENTS = flags.DEFINE_integer('clients', 10, 'Clients in training.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size',
    None,
    "Examples in a batch [the papers': 50 for cnn, 64 for lenet].",
    lower_bound=1,
)
_STEPS = flags.DEFINE_integer('steps', 10, 'Local steps in one measurement.', lower_bound=1)
_NAIVE_STEPS = flags.DEFINE_integer(
    'naive_steps', 1, 'Steps of the naive program, measured once; 0 leaves it out.', lower_bound=0
)
_REPEATS = flags.DEFINE_integer('repeats', 7, 'Measurements of each program.', lower_bound=1)
_DEVICES = flags.DEFINE_string('devices', 'all', "How many devices, or 'all'.")
_LANES = flags.DEFINE_list(
    'lanes', ['1'], 'Clients side by side on a device, rows for each number.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')


class Size(NamedTuple):
    """How much every program trains."""

    model: str
    clients: int
    batch_size: int
    steps: int
    repeats: int


class Program(NamedTuple):
    """A way to train all clients."""

    name: str
    run: Callable[[], None]  # all clients, `steps` steps; returns when they are done
    steps: int
    repeats: int
    memory: int | None = None  # bytes on each device, of a round


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


def torch_program(size: Size) -> Program:
    """Makes the loop that a researcher would write in PyTorch, on all cores.

    Args:
      size: how much to train.

    Returns:
      The program.
    """
    import torch
    from torch import nn

    from experiments.benchmarks.torch_networks import torch_network

    torch.set_num_threads(cores())
    x, y = images(size.clients, size.batch_size)
    batches = [
        (torch.from_numpy(own).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels).long())
        for own, labels in zip(x, y, strict=True)
    ]

    networks = [torch_network(size.model, CLASSES) for _ in range(size.clients)]

    def run() -> None:
        for model, (own, labels) in zip(networks, batches, strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
            for _ in range(size.steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(own), labels).backward()
                optimizer.step()

    return Program(TORCH, run, size.steps, size.repeats)


def step_program(
    name: str,
    model: Model,
    size: Size,
    *,
    mesh: Mesh,
    lanes: int,
    method: str = 'fedavg',
    stack: Stacking | None = None,
) -> Program:
    """Makes bare local steps in a compiled loop, as many on each device and lane as in a round.

    Args:
      name: of the program.
      model: the network.
      size: how much to train.
      mesh: the devices.
      lanes: clients side by side on each device.
      method: 'fedavg', or 'fedlmd' for its loss with a teacher's forward pass.
      stack: how lanes are held; None for what suits the device.

    Returns:
      The program.
    """
    stack = stack or stacking()
    # Two batches in turn, so that the compiler can move nothing out of the loop.
    x, y = (jnp.asarray(array) for array in images(lanes, 2 * size.batch_size))
    x, y = (array.reshape(lanes, 2, size.batch_size, *array.shape[2:]) for array in (x, y))
    optimizer = local_optimizer(LEARNING_RATE, momentum=MOMENTUM, weight_decay=0.0)
    teacher = model.init(jax.random.key(1))
    majority = jnp.arange(CLASSES) < 3

    def loss(params: PyTree, teacher: PyTree, x: Array, y: Array) -> Array:
        logits = model.apply(params, x).logits
        supervised = jnp.mean(losses.cross_entropy(logits, y))
        if method == 'fedavg':
            return supervised
        told = lax.stop_gradient(model.apply(teacher, x).logits)
        return supervised + jnp.mean(
            losses.label_masking_distillation(logits, told, y, majority, temperature=1.0)
        )

    # The number of steps is an argument: a loop of known length 1 would be compiled away.
    def train(params: PyTree, teacher: PyTree, steps: Array, x: Array, y: Array) -> PyTree:
        def local_step(client: tuple) -> tuple:
            params, state, x, y, step = client
            gradient = jax.grad(loss)(params, teacher, x[step % 2], y[step % 2])
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, x, y, step + 1

        first = jnp.zeros(lanes, jnp.int32)
        clients = stack.from_stack((params, jax.vmap(optimizer.init)(params), x, y, first))
        trained = lax.fori_loop(0, steps[0], lambda _, c: stack.map(local_step, c), clients)
        last = trained[0] if isinstance(trained, list) else row(trained, 0)
        return jax.tree.map(lambda leaf: leaf[None], last[0])

    plan = schedule([size.steps] * size.clients, lanes=lanes, devices=mesh.size)
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), lanes))
    same, split_ = PartitionSpec(), PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        train,
        mesh=mesh,
        in_specs=(same, same, split_, same, same),
        out_specs=split_,
        check_vma=False,
    )
    params, teacher, x, y = replicate((params, teacher, x, y), mesh)
    arguments = (params, teacher, split(plan.steps.sum(axis=1), mesh), x, y)
    compiled = jax.jit(over_devices).lower(*arguments).compile()

    def run() -> None:
        jax.block_until_ready(compiled(*arguments))

    return Program(name, run, size.steps, size.repeats)


def round_program(
    size: Size,
    *,
    mesh: Mesh,
    lanes: int,
    method: str = 'fedavg',
    augmented: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Program:
    """Makes a whole round of jaxfed's engine: drawing batches and aggregation included.

    Args:
      size: how much to train.
      mesh: the devices.
      lanes: clients side by side on each device.
      method: of `jaxfed.methods`.
      augmented: whether images are cropped and flipped.
      options: of the network.

    Returns:
      The program.
    """
    clients, examples = size.clients, size.batch_size * size.steps
    x, y = images(clients, examples)
    held = np.full(clients, examples, np.int32)
    data = TrainingData(
        x=jnp.asarray((64 * x + 128).clip(0, 255).reshape(-1, *SHAPE).astype(np.uint8)),
        y=jnp.asarray(y.reshape(-1)),
        order=jnp.arange(y.size, dtype=jnp.int32),
        start=jnp.asarray(np.cumsum(held) - held, jnp.int32),
        size=jnp.asarray(held),
        label_counts=jnp.asarray([np.bincount(own, minlength=CLASSES) for own in y], jnp.int32),
    )
    model = make_model(size.model, input_shape=SHAPE, num_classes=CLASSES, **(options or {}))
    built = methods.build(methods.resolve(method, {}))
    settings = LocalSettings(
        local_epochs=1,
        batch_size=size.batch_size,
        momentum=MOMENTUM,
        weight_decay=0.0,
        aggregation='size',
        longest=examples,
    )
    mean, std = np.full(3, 128.0, np.float32), np.full(3, 64.0, np.float32)
    steps = ('crop', 'flip') if augmented else ()
    augment = make_augment(steps, mean=mean, std=std)
    to_input = functools.partial(normalise, mean=mean, std=std)
    parts = make_round(model, built, settings, augment, to_input, mesh=mesh)
    params = model.init(jax.random.key(0))
    server_state, client_state = built.init(params, model.stats)
    server = ServerState(params, server_state, jnp.zeros((), jnp.int32), model.stats)
    server, data, key = replicate((server, data, jax.random.key(1)), mesh)
    arguments = round_arguments(
        server,
        jax.tree.map(lambda leaf: np.stack([leaf] * clients), client_state),
        everyone(np.arange(clients), 1),
        schedule([size.steps] * clients, lanes=lanes, devices=mesh.size),
        LEARNING_RATE,
        key,
        data,
    )
    programs = compile_round(parts, mesh, *arguments)

    def run() -> None:
        jax.block_until_ready(run_round(programs, mesh, *arguments)[0])

    name = f'round, {lanes} lane(s)'
    name += ', crop+flip' if augmented else ''
    name += '' if method == 'fedavg' else f', {method}'
    memory = peak_memory(programs.train)
    return Program(name, run, size.steps, size.repeats, memory)


def matmul_program(size: Size, *, side: int = MATMUL_SIDE) -> Program:
    """Makes a large matrix product, as fast as this machine's arithmetic gets.

    Args:
      size: its repeats are taken.
      side: of the square matrices.

    Returns:
      The program.
    """
    a = jnp.asarray(np.random.default_rng(0).standard_normal((side, side), np.float32))
    compiled = jax.jit(lambda a: a @ a).lower(a).compile()
    return Program(MATMUL, lambda: jax.block_until_ready(compiled(a)), 1, size.repeats)


def operations(size: Size) -> float:
    """Floating-point operations of a client's step by the plain algorithm, forward and backward.

    Args:
      size: network and batch.

    Returns:
      The number, as XLA counts it for plain convolutions.
    """
    model = make_model(
        size.model, input_shape=SHAPE, num_classes=CLASSES, convolution=convolution('grouped')
    )
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((size.batch_size, *SHAPE), jnp.float32)

    def loss(params: PyTree, x: Array) -> Array:
        real = jnp.ones(size.batch_size, bool)
        return jnp.sum(model.train(params, x, model.stats, real).logits)

    analysis = jax.jit(jax.grad(loss)).lower(params, x).cost_analysis()
    assert analysis is not None
    return float(analysis['flops'])


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


def programs_of(size: Size, mesh: Mesh, lanes: list[int], naive_steps: int) -> list[Program]:
    """Makes all programs.

    Args:
      size: how much to train.
      mesh: the devices.
      lanes: a round for each of these numbers of clients side by side on a device.
      naive_steps: of the naive program, 0 to leave it out.

    Returns:
      The programs.
    """
    programs = []
    if importlib.util.find_spec('torch') is not None:
        programs.append(torch_program(size))
    fast = make_model(size.model, input_shape=SHAPE, num_classes=CLASSES)
    for number in lanes:
        step = functools.partial(step_program, model=fast, size=size, mesh=mesh, lanes=number)
        whole = functools.partial(round_program, size, mesh=mesh, lanes=number)
        programs.append(step(f'bare step, {number} lane(s)'))
        programs.append(whole())
        programs.append(whole(augmented=True))
        programs.append(step(f'bare step, {number} lane(s), fedlmd', method='fedlmd'))
        programs.append(whole(augmented=True, method='fedlmd'))
    programs.append(matmul_program(size))
    if naive_steps:
        naive = make_model(
            size.model, input_shape=SHAPE, num_classes=CLASSES, convolution=convolution('grouped')
        )
        once = size._replace(steps=naive_steps, repeats=1)
        programs.append(
            step_program(
                'vmap of lax.conv',
                naive,
                once,
                mesh=make_mesh(1),
                lanes=size.clients,
                stack=STACKED,
            )
        )
    return programs


def main(argv: list[str]) -> None:
    """Measures, prints the table and writes the file."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    use_every_core()
    console = Console(highlight=False)
    model = _MODEL.value
    size = Size(
        model=model,
        clients=_CLIENTS.value,
        batch_size=_BATCH_SIZE.value or {'cnn': 50, 'lenet': 64}[model],
        steps=_STEPS.value,
        repeats=_REPEATS.value,
    )
    try:
        check_devices(_DEVICES.value)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    mesh = make_mesh(_DEVICES.value, most=size.clients)
    for lanes in _LANES.value:
        if not lanes.isdecimal() or not 1 <= int(lanes) * mesh.size <= size.clients:
            raise app.UsageError(
                f'--lanes={",".join(_LANES.value)} must be numbers from 1 on, and lanes on all '
                f'{mesh.size} devices no more than --clients={size.clients}.'
            )
    described = machine()
    if described['torch'] == 'not installed':
        hint = "PyTorch is not installed and is left out: pip install 'jaxfed[bench]'."
        console.print(hint, markup=False)
    with console.status('compiling'):
        programs = programs_of(
            size, mesh, [int(lanes) for lanes in _LANES.value], _NAIVE_STEPS.value
        )
    timings = {timing.name: timing for timing in measure(programs, clients=size.clients)}

    reference = timings[TORCH].median if TORCH in timings else None
    product = timings.pop(MATMUL)
    peak = 2 * MATMUL_SIDE**3 / (product.median * size.clients * 1e-3)
    gflop = operations(size) / 1e9
    table = Table(
        title=f'{model}, {size.clients} clients, batches of {size.batch_size}',
        caption=f'{gflop:.2f} GFLOP a step; a matrix product reaches {peak / 1e9:.0f} GFLOP/s; '
        + ', '.join(f'{key} {value}' for key, value in described.items()),
    )
    table.add_column('program', no_wrap=True)
    for column in ('ms a step', 'min-max', 'to PyTorch', 'to peak'):
        table.add_column(column, justify='right')
    entries = []
    for timing in timings.values():
        low, high = min(timing.milliseconds), max(timing.milliseconds)
        ratio = None if reference is None else timing.median / reference
        of_peak = gflop / (timing.median * 1e-3) / (peak / 1e9)
        # A teacher's forward pass is not in the count.
        share = None if 'fedlmd' in timing.name else of_peak
        table.add_row(
            timing.name,
            f'{timing.median:.2f}',
            f'{low:.2f}-{high:.2f}',
            '-' if ratio is None else f'{ratio:.2f}',
            '-' if share is None else f'{share:.0%}',
        )
        entries.append(
            {
                'program': timing.name,
                'median_ms': timing.median,
                'min_ms': low,
                'max_ms': high,
                'measurements_ms': timing.milliseconds,
                'ratio_to_torch': ratio,
                'share_of_matmul_peak': share,
            }
        )
    console.print(table)
    for lanes in _LANES.value:
        whole, bare = (
            timings[f'round, {lanes} lane(s), crop+flip'],
            timings[f'bare step, {lanes} lane(s)'],
        )
        told = timings[whole.name + ', fedlmd'].median / timings[bare.name + ', fedlmd'].median
        console.print(
            f'{lanes} lane(s) a device: a whole round takes {whole.median / bare.median:.2f} times '
            f'its bare steps, with FedLMD {told:.2f}.'
        )
    if _OUTPUT.value:
        settings = {**size._asdict(), 'devices': mesh.size, 'naive_steps': _NAIVE_STEPS.value}
        report = {
            'machine': described,
            'settings': settings,
            'matmul_gflops': peak / 1e9,
            'gflop_per_step': gflop,
            'programs': entries,
        }
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')


if __name__ == '__main__':
    app.run(main)
