"""All lowerings of a convolution on the shapes of the networks: the fastest one for each shape.

A program computes a convolution and both of its gradients for several clients, each with its own
kernel, in a compiled loop over devices and lanes as in the engine. The programs of a shape take
turns. The last column is the choice of `jaxfed.models.ops.lowering`.

python -m experiments.benchmarks.convolutions --output=experiments/results/convolutions_cpu.json
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from rich.table import Table

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import time_in_turns
from jaxfed.engine.devices import AXIS, cores, make_mesh, replicate, split, use_every_core
from jaxfed.engine.stacking import stacking
from jaxfed.models.ops import LOWERINGS, conv_general_dilated, conv_max_pool, lowering
from jaxfed.models.ops.conv import LAYOUT
from jaxfed.types import Array


class Shape(NamedTuple):
    """A convolution; SAME padding."""

    side: int  # of the square image
    kernel: int
    inputs: int  # channels
    outputs: int
    stride: int = 1
    pooled: bool = False  # whether a 2x2 max-pool follows

    @property
    def name(self) -> str:
        """Name in the table."""
        pool = '+pool' if self.pooled else f'/{self.stride}' if self.stride > 1 else ''
        return f'{self.kernel}x{self.kernel}{pool} {self.inputs}-{self.outputs}, {self.side}'


SHAPES = {
    'small': [
        Shape(32, 5, 3, 32, pooled=True),
        Shape(16, 5, 32, 64, pooled=True),
        Shape(32, 5, 3, 6, pooled=True),
        Shape(14, 5, 6, 16, pooled=True),
        Shape(16, 5, 32, 64),
        Shape(14, 5, 6, 16),
        Shape(32, 3, 3, 32),
        Shape(30, 3, 32, 64, pooled=True),
    ],
    'resnet': [
        Shape(32, 3, 3, 16),
        Shape(32, 3, 3, 64),
        Shape(32, 3, 16, 16),
        Shape(32, 3, 64, 64),
        Shape(32, 3, 16, 32, 2),
        Shape(32, 3, 64, 128, 2),
        Shape(16, 3, 32, 32),
        Shape(16, 3, 128, 128),
        Shape(16, 3, 128, 256, 2),
        Shape(8, 3, 64, 64),
        Shape(8, 3, 256, 256),
        Shape(8, 3, 256, 512, 2),
        Shape(4, 3, 512, 512),
        Shape(32, 1, 64, 256),
        Shape(32, 1, 256, 64),
        Shape(16, 1, 512, 128),
        Shape(8, 1, 256, 512),
        Shape(32, 1, 16, 32, 2),
        Shape(32, 1, 64, 128, 2),
        Shape(16, 1, 128, 256, 2),
        Shape(8, 1, 256, 512, 2),
    ],
}

TORCH = 'PyTorch'


def gflop(shape: Shape, batch_size: int) -> float:
    """GFLOP of a client-step, forward and both gradients."""
    places = (-(-shape.side // shape.stride)) ** 2
    products = batch_size * places * shape.kernel**2 * shape.inputs * shape.outputs
    return 3 * 2 * products / 1e9


def arrays(shape: Shape, clients: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images [clients, B, side, side, in] and kernels [clients, k, k, in, out]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, batch_size, shape.side, shape.side, shape.inputs), np.float32)
    kernel = (clients, shape.kernel, shape.kernel, shape.inputs, shape.outputs)
    return x, rng.standard_normal(kernel, np.float32) / shape.kernel


def jax_program(
    shape: Shape, use: str, *, mesh: Mesh, lanes: int, batch_size: int, steps: int
) -> Callable[[], Any]:
    """The compiled loop of `steps` turns of one lowering, with `lanes` kernels on each device."""
    stack = stacking()

    def convolve(x: Array, w: Array) -> Array:
        if shape.pooled:
            return conv_max_pool(x, w, 'SAME', use=use)
        strides = (shape.stride, shape.stride)
        return conv_general_dilated(x, w, strides, 'SAME', dimension_numbers=LAYOUT, use=use)

    def step(client: tuple[Array, Array]) -> tuple[Array, Array]:
        x, w = client
        y, gradients = jax.vjp(convolve, x, w)
        dx, dw = gradients(y)
        # The next turn depends on all three results, which hardly change it.
        return x, w + 1e-20 * dw * jnp.max(dx)

    def train(x: Array, w: Array, steps: Array) -> Array:
        clients = stack.from_stack((x, w))
        trained = lax.fori_loop(0, steps, lambda _, c: stack.map(step, c), clients)
        return jnp.stack([w for _, w in trained]) if isinstance(trained, list) else trained[1]

    dealt = PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        train, mesh=mesh, in_specs=(dealt, dealt, PartitionSpec()), out_specs=dealt, check_vma=False
    )
    x, w = split(arrays(shape, lanes * mesh.size, batch_size), mesh)
    arguments = (x, w, replicate(np.int32(steps), mesh))
    compiled = jax.jit(over_devices).lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments))


def torch_program(shape: Shape, *, clients: int, batch_size: int, steps: int) -> Callable[[], None]:
    """PyTorch's loop over the kernels of clients, one after another."""
    import torch

    torch.set_num_threads(cores())
    x, w = (torch.from_numpy(array) for array in arrays(shape, clients, batch_size))
    x = x.permute(0, 1, 4, 2, 3).contiguous()
    w = w.permute(0, 4, 3, 1, 2).contiguous()

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        x.requires_grad_(), w.requires_grad_()
        # The padding of SAME at stride 2 is one-sided; the arithmetic is the same.
        y = torch.nn.functional.conv2d(x, w, stride=shape.stride, padding=(shape.kernel - 1) // 2)
        if shape.pooled:
            y = torch.nn.functional.max_pool2d(y, 2)
        torch.autograd.grad(y, (x, w), y.detach())

    def run() -> None:
        for _ in range(steps):
            for client in range(clients):
                step(x[client].detach(), w[client].detach())

    return run


def lowerings_of(shape: Shape, wanted: list[str] | None) -> list[str]:
    """The lowerings to measure: those wanted, or all that differ for a shape."""
    if wanted:
        return wanted
    excluded = {'grouped'} if jax.default_backend() == 'cpu' else set()
    # A kernel of one pixel gains nothing from frequencies, and blocks need a pool.
    excluded |= {'blocks'} if not shape.pooled else set()
    excluded |= {'fourier'} if shape.kernel == 1 else set()
    return [use for use in LOWERINGS if use not in excluded]


def measure(shape: Shape, args: flags.FlagValues, *, mesh: Mesh, lanes: int) -> dict[str, Any]:
    """Measures the programs of a shape in turns; returns its entry in the file."""
    clients, work = lanes * mesh.size, {'batch_size': args.batch_size, 'steps': args.steps}
    programs = {
        use: jax_program(shape, use, mesh=mesh, lanes=lanes, **work)
        for use in lowerings_of(shape, args.lowerings)
    }
    if reporting.has('torch') and jax.default_backend() == 'cpu':
        programs[TORCH] = torch_program(shape, clients=clients, **work)
    seconds = time_in_turns(programs, args.repeats, description=shape.name)
    client_steps = clients * args.steps
    medians = {use: statistics.median(values) for use, values in seconds.items() if use != TORCH}
    return {
        **shape._asdict(),
        'milliseconds': {
            name: [1e3 * value / client_steps for value in values]
            for name, values in seconds.items()
        },
        'fastest': min(medians, key=lambda use: medians[use]),
        'chosen': lowering(
            (shape.side,) * 2,
            (shape.kernel, shape.kernel, shape.inputs, shape.outputs),
            (shape.stride,) * 2,
            batch=args.batch_size,
            pooled=shape.pooled,
        ),
        'gflop_per_step': gflop(shape, args.batch_size),
    }


def make_table(report: dict[str, Any]) -> Table:
    """The table of all shapes, the fastest lowering of each in bold."""
    settings, entries = report['settings'], report['convolutions']
    measured = {name for entry in entries for name in entry['milliseconds']}
    columns = [name for name in (TORCH, *LOWERINGS) if name in measured]

    def cells(entry: dict[str, Any]) -> list[str]:
        medians = {name: statistics.median(ms) for name, ms in entry['milliseconds'].items()}
        fastest = entry['fastest']
        texts = {name: f'{median:.2f}' for name, median in medians.items()}
        texts[fastest] = f'[bold]{texts[fastest]}[/]'
        speed = entry['gflop_per_step'] / (medians[fastest] * 1e-3)
        shape = Shape(**{name: entry[name] for name in Shape._fields})
        numbers = [texts.get(name, '-') for name in columns]
        return [shape.name, *numbers, f'{speed:.0f}', entry['chosen']]

    clients = settings['lanes'] * settings['devices']
    return reporting.make_table(
        f'ms a client-step, {clients} clients, batches of {settings["batch_size"]}',
        ('convolution', *columns, 'GFLOP/s', 'chosen'),
        map(cells, entries),
        caption=reporting.caption(report['machine']),
    )


def main(args: flags.FlagValues) -> None:
    """Measures, prints the table and writes the file."""
    for name in args.lowerings or ():
        if name not in LOWERINGS:
            raise app.UsageError(f'--lowerings: {name!r} must be one of {", ".join(LOWERINGS)}.')
    use_every_core()
    mesh = make_mesh()
    lanes = args.lanes or (1 if jax.default_backend() == 'cpu' else 10)
    names = SHAPES if args.shapes == 'all' else [args.shapes]
    shapes = [shape for name in names for shape in SHAPES[name]]
    report = {
        'machine': reporting.machine(),
        'settings': {'devices': mesh.size, 'lanes': lanes}
        | reporting.settings(args, 'batch_size', 'steps', 'repeats'),
        'convolutions': [measure(shape, args, mesh=mesh, lanes=lanes) for shape in shapes],
    }
    reporting.console.print(make_table(report))
    reporting.write(report, args.output)


if __name__ == '__main__':
    flags.DEFINE_enum('shapes', 'all', ['all', *SHAPES], 'Which convolutions.')
    flags.DEFINE_list(
        'lowerings', None, f'Of {", ".join(LOWERINGS)} [all; on a CPU without grouped, a slow one].'
    )
    positive = reporting.define_positive
    positive('lanes', None, 'Clients side by side on a device [1 on a CPU, 10 elsewhere].')
    positive('batch_size', 32, 'Images of each client.')
    positive('steps', 3, 'Turns of the compiled loop.')
    positive('repeats', 5, 'Measurements of each program.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
