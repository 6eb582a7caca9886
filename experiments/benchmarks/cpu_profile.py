"""Where the time of a local step goes on a CPU: products, copies and the rest, beside PyTorch.

Core-milliseconds of a client-step, summed over the cores. An operation of a program belongs to
`products` if it or its fusion computes matrix products or convolutions, to `copies` if it only
moves numbers (as the shifted images of a convolution), and to `the rest` otherwise: normalisation,
activations, sums, the optimiser. `outside` is the time of the clock that the profiler gives to no
operation: waiting, the start of operations, and what a product does after its event has ended.
PyTorch's convolutions contain their copies. Profilers may slow down what they measure.

python -m experiments.benchmarks.cpu_profile --models=resnet8,resnet18
"""

import re
import time
from collections.abc import Mapping

import jax
from absl import flags

from experiments.benchmarks.measuring import compiled, reporting
from experiments.benchmarks.measuring.profiling import trace
from experiments.benchmarks.programs import local_steps
from experiments.benchmarks.programs.local_steps import Size
from experiments.benchmarks.programs.rounds import check_networks
from jaxfed.engine.devices import cores

PRODUCTS, COPIES, REST = ('products', 'copies', 'the rest')
OUTSIDE = 'outside'
KINDS = (PRODUCTS, COPIES, REST, OUTSIDE)
_PRODUCT = re.compile(r'^(dot|convolution|fft|custom-call)')
_COPY = {
    'bitcast', 'broadcast', 'concatenate', 'constant', 'copy', 'dynamic-slice',
    'dynamic-update-slice', 'gather', 'get-tuple-element', 'iota', 'pad', 'parameter', 'reshape',
    'reverse', 'slice', 'transpose', 'tuple',
}  # fmt: skip
_WAIT = re.compile(r'^(all-reduce|all-gather|collective|reduce-scatter)')
_TORCH_PRODUCT = re.compile(r'conv|addmm|::mm|bmm|linear')
_TORCH_COPY = re.compile(r'copy_|cat|clone|contiguous|fill_|zero_')


def kinds(text: str) -> dict[str, str]:
    """The kind of each instruction of a compiled program, '' for waiting; see above."""

    def kind(operations: set[str]) -> str:
        if any(map(_PRODUCT.match, operations)):
            return PRODUCTS
        return COPIES if operations <= _COPY else REST

    return {
        name: '' if _WAIT.match(operation) else kind(parts)
        for name, operation, parts in compiled.contents(text)
    }


def profile_round(size: Size, devices: str) -> dict[str, float]:
    """Core-milliseconds of a client-step of jaxfed's engine by kind."""
    mesh = local_steps.use_devices(devices, most=size.clients)
    compiled_round = local_steps.round_program(
        size, local_steps.network(size.model), mesh=mesh, lanes=1
    )
    of_instruction = kinds(compiled_round.train.as_text())
    compiled_round.run()
    spent = dict.fromkeys((PRODUCTS, COPIES, REST), 0.0)
    times, elapsed = trace(compiled_round.run)
    for name, nanoseconds in times.items():
        kind = of_instruction.get(name, REST)  # of the program that merges the updates
        if kind:
            spent[kind] += nanoseconds
    return per_step(spent, elapsed * mesh.size, size)


def profile_torch(size: Size) -> dict[str, float]:
    """Core-milliseconds of a client-step of PyTorch's loop by kind."""
    import torch.profiler

    run = local_steps.torch_program(size)
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter_ns()
        run()
        elapsed = time.perf_counter_ns() - start
    spent = dict.fromkeys((PRODUCTS, COPIES, REST), 0.0)
    for operation in profiler.key_averages():
        product, copy = (r.search(operation.key) for r in (_TORCH_PRODUCT, _TORCH_COPY))
        kind = PRODUCTS if product else COPIES if copy else REST
        # Its operations occupy all cores.
        spent[kind] += operation.self_cpu_time_total * 1e3 * cores()
    return per_step(spent, elapsed * cores(), size)


def per_step(spent: Mapping[str, float], elapsed: float, size: Size) -> dict[str, float]:
    """Milliseconds of a client-step by kind; with `outside` they sum to those of the clock."""
    complete = {**spent, OUTSIDE: elapsed - sum(spent.values())}
    return {kind: nanoseconds / 1e6 / size.client_steps for kind, nanoseconds in complete.items()}


def rows(model: str, profiles: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """The rows of a network in the table."""
    cells = []
    for name, spent in profiles.items():
        numbers = [f'{spent[kind]:.1f}' for kind in KINDS]
        cells.append([model, name, *numbers, f'{sum(spent.values()):.1f}'])
        model = ''
    return cells


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    jax.config.update('jax_default_matmul_precision', 'float32')
    check_networks(args.models)
    profiles: dict[str, dict[str, dict[str, float]]] = {}
    for model in args.models:
        reporting.console.print(f'{model} ...')
        size = Size(model, args.clients, args.batch_size, args.steps)
        profiles[model] = {'jaxfed': profile_round(size, args.devices)}
        if reporting.has('torch'):
            profiles[model][local_steps.TORCH] = profile_torch(size)
    machine = reporting.machine()
    table = reporting.make_table(
        'core-milliseconds of a client-step',
        ('network', 'program', *KINDS, 'sum'),
        [row for model, measured in profiles.items() for row in rows(model, measured)],
        caption=reporting.caption(machine),
        left=2,
    )
    reporting.console.print(table)
    settings = reporting.settings(args, 'clients', 'batch_size', 'steps', 'devices')
    reporting.write({'machine': machine, 'settings': settings, 'networks': profiles}, args.output)


if __name__ == '__main__':
    flags.DEFINE_list('models', ['resnet8', 'resnet18'], 'Networks.')
    reporting.define_positive('clients', 2, 'Clients in training.')
    reporting.define_positive('batch_size', 50, 'Examples in a batch.')
    reporting.define_positive('steps', 2, 'Local steps of each client.')
    flags.DEFINE_string('devices', 'all', "Number of devices, or 'all'.")
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
