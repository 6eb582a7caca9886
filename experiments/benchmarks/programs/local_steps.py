"""Programs that train the same clients for the same number of local steps, and their comparison."""

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.timing import time_in_turns
from experiments.benchmarks.programs import rounds
from experiments.benchmarks.programs.rounds import CLASSES, LEARNING_RATE, MOMENTUM, SHAPE
from jaxfed import losses
from jaxfed.engine.devices import (
    AXIS,
    check_devices,
    cores,
    make_mesh,
    replicate,
    split,
    use_every_core,
)
from jaxfed.engine.lanes import schedule
from jaxfed.engine.optimizers import local_optimizer
from jaxfed.engine.stacking import Stacking, row, stacking
from jaxfed.internal.backend import compile_program
from jaxfed.models import make_model
from jaxfed.models.ops import convolution
from jaxfed.types import Array, Model, PyTree

TORCH = 'PyTorch'
MATMUL = 'matrix product'
MATMUL_SIDE = 2048

network = functools.partial(make_model, input_shape=SHAPE, num_classes=CLASSES)


class Size(NamedTuple):
    """The work of every program."""

    model: str
    clients: int
    batch_size: int
    steps: int  # local steps of each client

    @property
    def client_steps(self) -> int:
        """Local steps of all clients."""
        return self.clients * self.steps


class Comparison(NamedTuple):
    """Measurements of programs."""

    milliseconds: dict[str, list[float]]  # a client-step, by program
    gflop: float  # of a client-step
    matmul_gflops: float  # GFLOP/s of a large matrix product

    def entry(self, name: str) -> dict[str, Any]:
        """A program's entry in the file; its operations are counted as those of a plain step."""
        medians = {key: statistics.median(values) for key, values in self.milliseconds.items()}
        return {
            'program': name,
            'median_ms': medians[name],
            'measurements_ms': self.milliseconds[name],
            'ratio_to_torch': medians[name] / medians[TORCH] if TORCH in medians else None,
            'share_of_matmul_peak': self.gflop / (medians[name] * 1e-3) / self.matmul_gflops,
        }


def use_devices(wanted: str, *, most: int) -> Mesh:
    """The devices that --devices selects, at most `most`; each core of a CPU is a device."""
    use_every_core()
    with reporting.usage_errors():
        check_devices(wanted)
    return make_mesh(wanted, most=most)


def random_images(clients: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [clients, examples, 32, 32, 3] float32 and labels [clients, examples] int32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, examples, *SHAPE), np.float32)
    return x, rng.integers(0, CLASSES, (clients, examples), np.int32)


def torch_program(size: Size, device: str = 'cpu') -> Callable[[], None]:
    """The loop over clients that a researcher would write in PyTorch, on all cores or a GPU."""
    import torch
    from torch import nn

    from experiments.benchmarks.programs.torch_networks import torch_network

    torch.set_num_threads(cores())
    x, y = random_images(size.clients, size.batch_size)
    images = torch.from_numpy(x).permute(0, 1, 4, 2, 3).contiguous().to(device)
    labels = torch.from_numpy(y).long().to(device)
    networks = [torch_network(size.model, CLASSES).to(device) for _ in range(size.clients)]

    def run() -> None:
        for client, model in enumerate(networks):
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
            for _ in range(size.steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[client]), labels[client]).backward()
                optimizer.step()
        if device != 'cpu':
            torch.cuda.synchronize()

    return run


def step_program(
    model: Model,
    size: Size,
    *,
    mesh: Mesh,
    lanes: int,
    method: str = 'fedavg',
    stack: Stacking | None = None,
) -> Callable[[], Any]:
    """Bare local steps in a compiled loop, as many on each device and lane as in a round.

    Args:
      model: the network.
      size: the work.
      mesh: the devices.
      lanes: clients side by side on each device.
      method: 'fedavg', or 'fedlmd' for its loss with a teacher's forward pass.
      stack: how lanes are held; None for the device's default.

    Returns:
      A function that runs them and waits.
    """
    stack = stack or stacking()
    # Two batches in turn, so that the compiler cannot move work out of the loop.
    images = random_images(lanes, 2 * size.batch_size)
    x, y = (a.reshape(lanes, 2, size.batch_size, *a.shape[2:]) for a in map(jnp.asarray, images))
    optimizer = local_optimizer('sgd', LEARNING_RATE, momentum=MOMENTUM, weight_decay=0.0)
    majority = jnp.arange(CLASSES) < 3

    def loss(params: PyTree, teacher: PyTree, x: Array, y: Array) -> Array:
        logits = model.apply(params, x).logits
        supervised = jnp.mean(losses.cross_entropy(logits, y))
        if method == 'fedavg':
            return supervised
        taught = lax.stop_gradient(model.apply(teacher, x).logits)
        return supervised + jnp.mean(
            losses.label_masking_distillation(logits, taught, y, majority, temperature=1.0)
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
    whole, dealt = PartitionSpec(), PartitionSpec(AXIS)
    specs = (whole, whole, dealt, whole, whole)
    over_devices = jax.shard_map(train, mesh=mesh, in_specs=specs, out_specs=dealt, check_vma=False)
    params, teacher, x, y = replicate((params, model.init(jax.random.key(1)), x, y), mesh)
    arguments = (params, teacher, split(plan.steps.sum(axis=1), mesh), x, y)
    compiled = compile_program(over_devices, *arguments)
    return lambda: jax.block_until_ready(compiled(*arguments))


def round_program(size: Size, model: Model, **keywords: Any) -> rounds.CohortRound:
    """A whole round of jaxfed's engine, with `keywords` as for `compile_cohort`."""
    sizes = np.full(size.clients, size.batch_size * size.steps)
    return rounds.compile_cohort(model, sizes, batch_size=size.batch_size, **keywords)


def matrix_product(
    side: int = MATMUL_SIDE, *, dtype: Any = jnp.float32, precision: str | None = None
) -> Callable[[], Any]:
    """A large matrix product, which shows the peak of the machine's arithmetic.

    `precision` is that of `jax.lax.dot`; None for JAX's default.
    """
    a = jnp.asarray(np.random.default_rng(0).standard_normal((side, side), np.float32), dtype)
    compiled = jax.jit(lambda a: jnp.matmul(a, a, precision=precision)).lower(a).compile()
    return lambda: jax.block_until_ready(compiled(a))


def plain_gradient(model: str, batch_size: int) -> tuple[Callable[..., PyTree], PyTree, Any]:
    """The gradient of a network with plain convolutions, and the shapes of its arguments."""
    plain = network(model, convolution=convolution('grouped'))
    params = jax.eval_shape(plain.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, *SHAPE), jnp.float32)

    def loss(params: PyTree, x: Array) -> Array:
        real = jnp.ones(batch_size, bool)
        return jnp.sum(plain.train(params, x, plain.stats, real).logits)

    return jax.grad(loss), params, x


def flops(size: Size) -> float:
    """FLOP of a client-step with plain convolutions; XLA counts no products with padding."""
    gradient, params, x = plain_gradient(size.model, size.batch_size)
    analysis = jax.jit(gradient).lower(params, x).cost_analysis()
    assert analysis is not None
    return float(analysis['flops'])


def compare(size: Size, runs: Mapping[str, Callable[[], Any]], *, repeats: int) -> Comparison:
    """Measures programs and a large matrix product in turns."""
    seconds = time_in_turns({**runs, MATMUL: matrix_product()}, repeats)
    peak = 2 * MATMUL_SIDE**3 / statistics.median(seconds.pop(MATMUL)) / 1e9
    milliseconds = {
        name: [1e3 * value / size.client_steps for value in values]
        for name, values in seconds.items()
    }
    return Comparison(milliseconds, flops(size) / 1e9, peak)
