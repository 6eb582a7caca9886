"""Milliseconds of a client-step and memory of every network, beside a plain PyTorch loop.

A whole round of jaxfed's engine, without and with `--remat`, and PyTorch's loop over clients train
the same number of clients for the same number of steps on 32x32x3 images. PyTorch has as many
threads as this process has cores. The programs of a network take turns.

python -m experiments.benchmarks.networks --output=experiments/results/networks_cpu.json
"""

from collections.abc import Callable
from typing import Any

import jax
from absl import flags
from jax.sharding import Mesh

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.programs import local_steps
from experiments.benchmarks.programs.local_steps import TORCH, Size, network, round_program
from experiments.benchmarks.programs.rounds import CLASSES, IMAGE_NETWORKS, check_networks
from jaxfed.internal import console
from jaxfed.models import options


def count_parameters(name: str) -> int:
    """Number of parameters of a network."""
    shapes = jax.eval_shape(network(name).init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def torch_program(size: Size) -> Callable[[], None]:
    """PyTorch's loop, whose network must have as many parameters as jaxfed's."""
    from experiments.benchmarks.programs.torch_networks import torch_network

    count = sum(p.numel() for p in torch_network(size.model, CLASSES).parameters())
    assert count == count_parameters(size.model), (size.model, count)
    return local_steps.torch_program(size)


def measure(size: Size, mesh: Mesh, repeats: int) -> dict[str, Any]:
    """Measures the programs of a network; returns its entry in the file."""
    rounds = {'round': round_program(size, network(size.model), mesh=mesh, lanes=1)}
    if 'remat' in options(size.model):
        model = network(size.model, remat=True)
        rounds['round, --remat'] = round_program(size, model, mesh=mesh, lanes=1)
    runs: dict[str, Callable[[], Any]] = {name: compiled.run for name, compiled in rounds.items()}
    if reporting.has('torch'):
        runs = {TORCH: torch_program(size), **runs}
    comparison = local_steps.compare(size, runs, repeats=repeats)
    memory = {name: compiled.memory for name, compiled in rounds.items()}
    return {
        'model': size.model,
        'parameters': count_parameters(size.model),
        'gflop_per_step': comparison.gflop,
        'matmul_gflops': comparison.matmul_gflops,
        'programs': [
            comparison.entry(name) | {'memory_bytes_per_device': memory.get(name)} for name in runs
        ],
    }


def rows(entry: dict[str, Any]) -> list[list[str]]:
    """The rows of a network in the table."""
    first, cells = [entry['model'], f'{entry["gflop_per_step"]:.2f}'], []
    for program in entry['programs']:
        ratio, memory = program['ratio_to_torch'], program['memory_bytes_per_device']
        numbers = [
            f'{program["median_ms"]:.1f}',
            '-' if ratio is None else f'{ratio:.2f}',
            f'{program["share_of_matmul_peak"]:.0%}',
            '-' if memory is None else f'{memory / 2**20:.0f}',
        ]
        cells.append([*first, program['program'], *numbers])
        first = ['', '']
    return cells


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    check_networks(args.models)
    mesh = local_steps.use_devices(args.devices, most=args.clients)
    jax.config.update('jax_default_matmul_precision', 'float32')
    entries = []
    for name in args.models:
        reporting.console.print(f'{name} ...')
        size = Size(name, args.clients, args.batch_size, args.steps)
        entries.append(measure(size, mesh, args.repeats))
    report = {
        'machine': reporting.machine(),
        'settings': reporting.settings(args, 'clients', 'batch_size', 'steps', 'repeats')
        | {'devices': mesh.size},
        'networks': entries,
    }
    table = reporting.make_table(
        f'{args.clients} clients, batches of {args.batch_size}, '
        f'{console.counted(mesh.size, "device")}',
        ('network', 'GFLOP', 'program', 'ms a step', 'to PyTorch', 'to peak', 'MiB a device'),
        [row for entry in entries for row in rows(entry)],
        caption=reporting.caption(reporting.machine()),
        left=3,
    )
    reporting.console.print(table)
    reporting.write(report, args.output)


if __name__ == '__main__':
    flags.DEFINE_list('models', IMAGE_NETWORKS, f'Networks, of {", ".join(IMAGE_NETWORKS)}.')
    reporting.define_positive('clients', 4, 'Clients in training.')
    reporting.define_positive('batch_size', 50, 'Examples in a batch.')
    reporting.define_positive('steps', 10, 'Local steps in one measurement.')
    reporting.define_positive('repeats', 3, 'Measurements of each program.')
    flags.DEFINE_string('devices', 'all', "Number of devices, or 'all'.")
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
