"""Every way to compute a convolution, on the shapes of the networks: which one is fastest where.

A program computes a convolution and both its gradients for several clients, each with a kernel of
its own, in a compiled loop, shared out to devices and lanes as the engine does. The programs of a
shape take turns. The last column says what `jaxfed.models.ops.lowering` chooses.
"""

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.machine import machine
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
        """As the table says it."""
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

_SET = flags.DEFINE_enum('shapes', 'all', ['all', *SHAPES], 'Which convolutions.')
_LOWERINGS = flags.DEFINE_list(
    'lowerings',
    None,
    f'Of {", ".join(LOWERINGS)} [all that differ; grouped takes very long on a CPU and is left '
    'out there].',
)
_LANES = flags.DEFINE_integer(
    'lanes', None, 'Clients side by side on a device [1 on a CPU, 10 elsewhere].', lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Images of each client.', lower_bound=1)
_STEPS = flags.DEFINE_integer('steps', 3, 'Turns of the compiled loop.', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Measurements of each program.', lower_bound=1)
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the measurements to, as JSON.')

TORCH = 'PyTorch'


def gflop(shape: Shape, batch_size: int) -> float:
    """Operations of a client's step in thousand millions, forward and both gradients."""
    places = (-(-shape.side // shape.stride)) ** 2
    products = batch_size * places * shape.kernel**2 * shape.inputs * shape.outputs
    return 3 * 2 * products / 1e9


def arrays(shape: Shape, clients: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random images [clients, B, side, side, in] and kernels [clients, k, k, in, out]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, batch_size, shape.side, shape.side, shape.inputs), np.float32)
    kernel = (clients, shape.kernel, shape.kernel, shape.inputs, shape.outputs)
    return x, rng.standard_normal(kernel, np.float32) / shape.kernel


def jax_program(
    shape: Shape, use: str, *, mesh: Mesh, lanes: int, batch_size: int, steps: int
) -> Callable[[], None]:
    """Makes the compiled loop of one lowering.

    Args:
      shape: the convolution.
      use: one of `LOWERINGS`.
      mesh: the devices.
      lanes: kernels on each.
      batch_size: images of each.
      steps: turns of the loop.

    Returns:
      A function that runs it to its end.
    """
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
        # All three results are needed for the next turn, and change it by next to nothing.
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
    """Makes a loop of PyTorch over clients, one after another.

    Args:
      shape: the convolution.
      clients: kernels.
      batch_size: images of each.
      steps: turns of the loop.

    Returns:
      A function that runs it to its end.
    """
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


def differing(shape: Shape, wanted: list[str] | None) -> list[str]:
    """The lowerings that differ for a shape, of those wanted."""
    names = wanted or [u for u in LOWERINGS if u != 'grouped' or jax.default_backend() != 'cpu']
    # A kernel of one pixel has no frequencies to gain from, and blocks are made for pools.
    same = {'blocks'} if not shape.pooled else set()
    same |= {'fourier'} if shape.kernel == 1 else set()
    return [name for name in names if wanted or name not in same]


def measure(
    programs: dict[str, Callable[[], None]], *, repeats: int, each: int
) -> dict[str, list[float]]:
    """Measures programs in turn, after one run of each.

    Args:
      programs: by name.
      repeats: measurements of each.
      each: client-steps of a run.

    Returns:
      Milliseconds a client and step, by name.
    """
    for run in programs.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, run in programs.items():
            began = time.perf_counter()
            run()
            taken[name].append(1e3 * (time.perf_counter() - began) / each)
    return taken


def main(argv: list[str]) -> None:
    """Measures, prints the table and writes the file."""
    if len(argv) > 1:
        raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
    for name in _LOWERINGS.value or ():
        if name not in LOWERINGS:
            raise app.UsageError(f'--lowerings: {name!r} must be one of {", ".join(LOWERINGS)}.')
    use_every_core()
    console = Console(highlight=False)
    mesh, batch_size, steps = make_mesh(), _BATCH_SIZE.value, _STEPS.value
    lanes = _LANES.value or (1 if jax.default_backend() == 'cpu' else 10)
    clients = lanes * mesh.size
    has_torch = importlib.util.find_spec('torch') is not None and jax.default_backend() == 'cpu'
    names = SHAPES if _SET.value == 'all' else [_SET.value]
    shapes = [shape for name in names for shape in SHAPES[name]]
    columns = [TORCH] * has_torch + [
        use for use in LOWERINGS if any(use in differing(s, _LOWERINGS.value) for s in shapes)
    ]
    described = machine()
    table = Table(
        title=f'ms a client-step, {clients} clients, batches of {batch_size}',
        caption=', '.join(f'{key} {value}' for key, value in described.items()),
    )
    table.add_column('convolution', no_wrap=True)
    for column in (*columns, 'GFLOP/s', 'chosen'):
        table.add_column(column, justify='right')
    entries = []
    for shape in track(shapes, 'measuring', console=console, transient=True):
        programs = {
            use: jax_program(shape, use, mesh=mesh, lanes=lanes, batch_size=batch_size, steps=steps)
            for use in differing(shape, _LOWERINGS.value)
        }
        if has_torch:
            programs[TORCH] = torch_program(
                shape, clients=clients, batch_size=batch_size, steps=steps
            )
        taken = measure(programs, repeats=_REPEATS.value, each=clients * steps)
        medians = {name: statistics.median(times) for name, times in taken.items()}
        fastest = min((name for name in medians if name != TORCH), key=lambda name: medians[name])
        chosen = lowering(
            (shape.side,) * 2,
            (shape.kernel, shape.kernel, shape.inputs, shape.outputs),
            (shape.stride,) * 2,
            pooled=shape.pooled,
        )
        speed = gflop(shape, batch_size) / (medians[fastest] * 1e-3)
        cells = [f'{medians[name]:.2f}' if name in medians else '-' for name in columns]
        cells = [
            f'[bold]{cell}[/]' if name == fastest else cell
            for name, cell in zip(columns, cells, strict=True)
        ]
        table.add_row(shape.name, *cells, f'{speed:.0f}', chosen)
        entries.append(
            {
                **shape._asdict(),
                'milliseconds': taken,
                'fastest': fastest,
                'chosen': chosen,
                'gflop_per_step': gflop(shape, batch_size),
            }
        )
    console.print(table)
    if _OUTPUT.value:
        report = {
            'machine': described,
            'settings': {
                'devices': mesh.size,
                'lanes': lanes,
                'batch_size': batch_size,
                'steps': steps,
                'repeats': _REPEATS.value,
            },
            'convolutions': entries,
        }
        Path(_OUTPUT.value).write_text(json.dumps(report, indent=2) + '\n')
        console.print(f'Written to {_OUTPUT.value}.')


if __name__ == '__main__':
    app.run(main)
