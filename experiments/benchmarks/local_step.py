"""Milliseconds of a client's local step: jaxfed beside a plain PyTorch loop.

Every program trains the same number of clients for the same number of steps on 32x32x3 images:
forward pass, backward pass and SGD with momentum. The rows of jaxfed add one part after another to
the bare step, up to a round as users run it.

python -m experiments.benchmarks.local_step --output=experiments/results/local_step_cpu_cnn.json
"""

import functools
from collections.abc import Callable
from typing import Any

from absl import app, flags
from jax.sharding import Mesh

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import seconds
from experiments.benchmarks.programs import local_steps
from experiments.benchmarks.programs.local_steps import (
    TORCH,
    Comparison,
    Size,
    network,
    round_program,
    step_program,
)
from jaxfed.engine.devices import make_mesh
from jaxfed.engine.stacking import STACKED
from jaxfed.internal import console
from jaxfed.models.ops import convolution

BATCH_SIZES = {'cnn': 50, 'lenet': 64}  # of the papers
NAIVE = 'vmap of lax.conv'


def make_programs(size: Size, mesh: Mesh, lanes: list[int]) -> dict[str, Callable[[], Any]]:
    """PyTorch's program if it is installed, and those of jaxfed for each number of lanes."""
    model = network(size.model)
    runs = {TORCH: local_steps.torch_program(size)} if reporting.has('torch') else {}
    for number in lanes:
        step = functools.partial(step_program, model, size, mesh=mesh, lanes=number)
        whole = functools.partial(round_program, size, model, mesh=mesh, lanes=number)
        augment = ('crop', 'flip')
        bare, full = _names(number)
        runs[bare] = step()
        runs[full] = whole().run
        runs[f'{full}, crop+flip'] = whole(augment=augment).run
        runs[f'{bare}, fedlmd'] = step(method='fedlmd')
        runs[f'{full}, crop+flip, fedlmd'] = whole(augment=augment, method='fedlmd').run
    return runs


def _names(lanes: int) -> tuple[str, str]:
    """The names of the bare step and of the round."""
    words = console.counted(lanes, 'lane')
    return f'bare step, {words}', f'round, {words}'


def measure_naive(size: Size) -> list[float]:
    """Milliseconds of a client-step with stacked plain convolutions on one device, once."""
    model = network(size.model, convolution=convolution('grouped'))
    run = step_program(model, size, mesh=make_mesh(1), lanes=size.clients, stack=STACKED)
    return [1e3 * seconds(run) / size.client_steps]


def describe(comparison: Comparison, name: str) -> dict[str, Any]:
    """A program's entry in the file."""
    entry, measured = comparison.entry(name), comparison.milliseconds[name]
    entry |= {'min_ms': min(measured), 'max_ms': max(measured)}
    # A teacher's forward pass is not in the count of operations.
    return entry | ({'share_of_matmul_peak': None} if 'fedlmd' in name else {})


def cells(entry: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ratio, share = entry['ratio_to_torch'], entry['share_of_matmul_peak']
    return [
        entry['program'],
        f'{entry["median_ms"]:.2f}',
        f'{entry["min_ms"]:.2f}-{entry["max_ms"]:.2f}',
        '-' if ratio is None else f'{ratio:.2f}',
        '-' if share is None else f'{share:.0%}',
    ]


def show(report: dict[str, Any], lanes: list[int]) -> None:
    """Prints the table, and how much longer a round takes than its bare steps."""
    settings = report['settings']
    table = reporting.make_table(
        f'{settings["model"]}, {settings["clients"]} clients, batches of {settings["batch_size"]}',
        ('program', 'ms a step', 'min-max', 'to PyTorch', 'to peak'),
        map(cells, report['programs']),
        caption=f'{report["gflop_per_step"]:.2f} GFLOP a step; a matrix product reaches '
        f'{report["matmul_gflops"]:.0f} GFLOP/s; {reporting.caption(report["machine"])}',
    )
    reporting.console.print(table)
    median = {entry['program']: entry['median_ms'] for entry in report['programs']}
    for number in lanes:
        bare, full = _names(number)
        ratio, fedlmd = (
            median[f'{full}, crop+flip{end}'] / median[bare + end] for end in ('', ', fedlmd')
        )
        reporting.console.print(
            f'{console.counted(number, "lane")} a device: a whole round takes {ratio:.2f} times '
            f'its bare steps, with FedLMD {fedlmd:.2f}.'
        )


def parse_lanes(texts: list[str], mesh: Mesh, clients: int) -> list[int]:
    """Reads --lanes: numbers of lanes for which the devices have enough clients."""
    for text in texts:
        if not text.isdecimal() or not 1 <= int(text) * mesh.size <= clients:
            raise app.UsageError(
                f'--lanes={",".join(texts)} must be numbers from 1 on, and lanes on all '
                f'{mesh.size} devices no more than --clients={clients}.'
            )
    return [int(text) for text in texts]


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    batch_size = args.batch_size or BATCH_SIZES[args.model]
    size = Size(args.model, args.clients, batch_size, args.steps)
    mesh = local_steps.use_devices(args.devices, most=size.clients)
    lanes = parse_lanes(args.lanes, mesh, size.clients)
    if not reporting.has('torch'):
        hint = "PyTorch is not installed and is left out: pip install -e '.[bench]'."
        reporting.console.print(hint, markup=False)
    with reporting.console.status('compiling'):
        runs = make_programs(size, mesh, lanes)
    comparison = local_steps.compare(size, runs, repeats=args.repeats)
    if args.naive_steps:
        comparison.milliseconds[NAIVE] = measure_naive(size._replace(steps=args.naive_steps))
    report = {
        'machine': reporting.machine(),
        'settings': {**size._asdict(), 'devices': mesh.size}
        | reporting.settings(args, 'repeats', 'naive_steps'),
        'matmul_gflops': comparison.matmul_gflops,
        'gflop_per_step': comparison.gflop,
        'programs': [describe(comparison, name) for name in comparison.milliseconds],
    }
    show(report, lanes)
    reporting.write(report, args.output)


if __name__ == '__main__':
    flags.DEFINE_enum('model', 'cnn', list(BATCH_SIZES), 'Network.')
    positive = reporting.define_positive
    positive('clients', 10, 'Clients in training.')
    positive('batch_size', None, "Examples in a batch [the papers': 50 for cnn, 64 for lenet].")
    positive('steps', 10, 'Local steps in one measurement.')
    flags.DEFINE_integer('naive_steps', 1, 'Steps of the naive program; 0 skips it.', lower_bound=0)
    positive('repeats', 7, 'Measurements of each program.')
    flags.DEFINE_string('devices', 'all', "Number of devices, or 'all'.")
    flags.DEFINE_list('lanes', ['1'], 'Clients side by side on a device, rows for each number.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
