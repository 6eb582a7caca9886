"""Milliseconds a client-step and memory of every network, next to a plain PyTorch loop.

A whole round of jaxfed's engine, without and with `--remat`, and PyTorch's loop over clients train
the same number of clients for the same number of steps on 32x32x3 images. PyTorch has as many
threads as this process has cores. The programs of a network take turns.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.local_step import (
    CLASSES,
    MATMUL,
    MATMUL_SIDE,
    SHAPE,
    TORCH,
    Program,
    Size,
    matmul_program,
    measure,
    operations,
    round_program,
    torch_program,
)
from experiments.benchmarks.machine import machine
from jaxfed.engine.devices import check_devices, make_mesh, use_every_core
from jaxfed.models import MODELS, make_model, options

REMAT = {'remat': True}

# The flags are those of `local_step`, which is imported, with defaults for deeper networks.
FLAGS = flags.FLAGS
_MODELS = flags.DEFINE_list('models', list(MODELS), f'Networks, of {", ".join(MODELS)}.')
for _name, _default in {'clients': 4, 'batch_size': 50, 'steps': 10, 'repeats': 3}.items():
    FLAGS.set_default(_name, _default)
for _name in ('clients', 'batch_size', 'steps', 'repeats', 'devices', 'output'):
    flags.declare_key_flag(_name)
NOT_READ = ('model', 'lanes', 'naive_steps')


def parameters(name: str) -> int:
    """The number of parameters of a network."""
    model = make_model(name, input_shape=SHAPE, num_classes=CLASSES)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def programs_of(size: Size, mesh: Mesh) -> list[Program]:
    """Makes all programs of a network.

    Args:
      size: how much to train.
      mesh: the devices.

    Returns:
      The programs.

    Raises:
      AssertionError: PyTorch's network has another number of parameters.
    """
    programs = []
    if importlib.util.find_spec('torch') is not None:
        from experiments.benchmarks.torch_networks import torch_network

        counted = sum(p.numel() for p in torch_network(size.model, CLASSES).parameters())
        assert counted == parameters(size.model), (size.model, counted)
        programs.append(torch_program(size))
    programs.append(round_program(size, mesh=mesh, lanes=1)._replace(name='round'))
    if 'remat' in options(size.model):
        again = round_program(size, mesh=mesh, lanes=1, options=REMAT)
        programs.append(again._replace(name='round, --remat'))
    programs.append(matmul_program(size))
    return programs


def measured(size: Size, mesh: Mesh) -> dict[str, Any]:
    """Measures the programs of a network.

    Args:
      size: how much to train.
      mesh: the devices.

    Returns:
      The entry of the network in the file.
    """
    programs = programs_of(size, mesh)
    timings = {timing.name: timing for timing in measure(programs, clients=size.clients)}
    memory = {program.name: program.memory for program in programs}
    product = timings.pop(MATMUL)
    peak = 2 * MATMUL_SIDE**3 / (product.median * size.clients * 1e-3) / 1e9
    gflop = operations(size) / 1e9
    reference = timings[TORCH].median if TORCH in timings else None
    rows = [
        {
            'program': name,
            'median_ms': timing.median,
            'measurements_ms': timing.milliseconds,
            'ratio_to_torch': None if reference is None else timing.median / reference,
            'share_of_matmul_peak': gflop / (timing.median * 1e-3) / peak,
            'memory_bytes_per_device': memory[name],
        }
        for name, timing in timings.items()
    ]
    return {
        'model': size.model,
        'parameters': parameters(size.model),
        'gflop_per_step': gflop,
        'matmul_gflops': peak,
        'programs': rows,
    }


def add_rows(table: Table, entry: dict[str, Any]) -> None:
    """Adds a network's measurements to the table."""
    for index, row in enumerate(entry['programs']):
        ratio, memory = row['ratio_to_torch'], row['memory_bytes_per_device']
        table.add_row(
            '' if index else entry['model'],
            '' if index else f'{entry["gflop_per_step"]:.2f}',
            row['program'],
            f'{row["median_ms"]:.1f}',
            '-' if ratio is None else f'{ratio:.2f}',
            f'{row["share_of_matmul_peak"]:.0%}',
            '-' if memory is None else f'{memory / 2**20:.0f}',
        )


def main(argv: list[str]) -> None:
    """Measures, prints the table and writes the file."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    for name in _MODELS.value:
        if name not in MODELS:
            raise app.UsageError(f'--models: {name!r} must be one of {", ".join(MODELS)}.')
    for name in NOT_READ:
        if FLAGS[name].present:
            raise app.UsageError(f'--{name} is not read here; choose networks with --models.')
    use_every_core()
    try:
        check_devices(FLAGS.devices)
    except ValueError as error:
        raise app.UsageError(str(error)) from None
    jax.config.update('jax_default_matmul_precision', 'float32')
    mesh = make_mesh(FLAGS.devices, most=FLAGS.clients)
    console = Console(highlight=False)
    described = machine()
    table = Table(
        title=f'{FLAGS.clients} clients, batches of {FLAGS.batch_size}, {mesh.size} device(s)',
        caption=', '.join(f'{key} {value}' for key, value in described.items()),
    )
    for column in ('network', 'GFLOP', 'program'):
        table.add_column(column, no_wrap=True)
    for column in ('ms a step', 'to PyTorch', 'to peak', 'MiB a device'):
        table.add_column(column, justify='right')
    entries = []
    for name in _MODELS.value:
        size = Size(name, FLAGS.clients, FLAGS.batch_size, FLAGS.steps, FLAGS.repeats)
        console.print(f'{name} ...')
        entries.append(measured(size, mesh))
        add_rows(table, entries[-1])
    console.print(table)
    if FLAGS.output:
        settings = {
            name: FLAGS[name].value for name in ('clients', 'batch_size', 'steps', 'repeats')
        }
        report = {
            'machine': described,
            'settings': {**settings, 'devices': mesh.size},
            'networks': entries,
        }
        Path(FLAGS.output).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {FLAGS.output}.')


if __name__ == '__main__':
    app.run(main)
