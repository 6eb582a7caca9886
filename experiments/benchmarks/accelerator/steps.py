"""Parts of `accelerator` without data: agreement, local steps, determinism, evaluation."""

import functools
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.accelerator.work import PRODUCTS, Row, Work
from experiments.benchmarks.measuring import reporting
from experiments.benchmarks.measuring.operations import products
from experiments.benchmarks.measuring.timing import seconds
from experiments.benchmarks.programs.local_steps import (
    Size,
    network,
    plain_gradient,
    step_program,
    torch_program,
)
from experiments.benchmarks.programs.plain_loop import PLAIN, Optimizer, make_step, train_round
from experiments.benchmarks.programs.rounds import (
    LEARNING_RATE,
    MOMENTUM,
    SHAPE,
    CohortRound,
    compile_cohort,
    largest_difference,
    random_data,
)
from jaxfed.data.augment import normalise
from jaxfed.engine import evaluation
from jaxfed.engine.devices import replicate
from jaxfed.internal import console
from jaxfed.internal.backend import compile_program
from jaxfed.models import Precision, with_precision
from jaxfed.models.ops import LOWERINGS
from jaxfed.types import Outputs, PyTree

Cases = dict[str, Callable[[], list[Row]]]  # name -> measurement, which returns rows
# Largest difference of float32, relative to the changes in the same array. Rounding moves maxima of
# pooling, which gives up to 1.4e-3 on a CPU and 2.3e-3 on an H200; tf32 gives 2e-2 on both.
TOLERANCE = 5e-3
EPOCHS = 5
# The images of `compile_cohort` are normalised with these numbers.
MEAN, STD = np.full(3, 128.0, np.float32), np.full(3, 64.0, np.float32)
to_input = functools.partial(normalise, mean=MEAN, std=STD)


@functools.cache
def cohort_round(work: Work, lowering: str, precision: Precision) -> CohortRound:
    """A round of equal clients, each with one batch; half as many lanes as clients."""
    return compile_cohort(
        work.model(lowering, precision), cohort_sizes(work), mesh=work.mesh, lanes=work.sizes.lanes,
        batch_size=work.sizes.batch_size, local_epochs=EPOCHS,
    )  # fmt: skip


def cohort_sizes(work: Work) -> np.ndarray:
    """Examples of the clients of `cohort_round`."""
    return np.full(2 * work.sizes.lanes, work.sizes.batch_size)


@functools.cache
def loop_round(work: Work) -> tuple[PyTree, PyTree]:
    """The parameters before and after the same round in a plain loop over clients."""
    sizes = cohort_sizes(work)
    data, ends = random_data(sizes), np.cumsum(sizes)
    model = with_precision(network(work.sizes.model, convolution=PLAIN), 'float32')
    params = model.init(jax.random.key(0))
    optimizer = Optimizer(LEARNING_RATE, MOMENTUM)
    images = jnp.asarray(data.x).reshape(-1, *SHAPE)
    step = make_step(model, images, data.y[0], to_input, optimizer)
    real = np.ones(work.sizes.batch_size, bool)
    clients = [[(np.arange(end - n, end), real)] * EPOCHS for n, end in zip(sizes, ends)]  # noqa: B905
    return params, train_round(step, params, clients, [1 / len(sizes)] * len(sizes))


def agreement(work: Work) -> Cases:
    """The round of the engine beside a plain loop over clients."""

    def compare(lowering: str, precision: Precision) -> list[Row]:
        before, expected = loop_round(work)
        after = jax.tree.map(lambda leaf: leaf[0], cohort_round(work, lowering, precision).run())
        relative = relative_difference(after, expected, before)
        agrees = relative < TOLERANCE if precision == 'float32' else None
        return [{'relative': relative, 'agrees': agrees}]

    cases: Cases = {name: functools.partial(compare, name, 'float32') for name in LOWERINGS}
    return cases | {'grouped in tf32': functools.partial(compare, 'grouped', 'tf32')}


def relative_difference(after: PyTree, expected: PyTree, before: PyTree) -> float:
    """The largest ||after - expected|| / ||expected - before|| of an array.

    Of an array that does not change, ||after - expected|| counts; NaN if there is one.
    """
    trees = [map(np.float64, jax.tree.leaves(tree)) for tree in (after, expected, before)]
    norm = np.linalg.norm
    ratios = [norm(a - b) / (norm(b - start) or 1.0) for a, b, start in zip(*trees, strict=True)]
    return float(np.max(ratios))


def local_steps(work: Work) -> Cases:
    """Bare local steps by lowering and precision, and with the chosen lowering by lanes."""
    usual = work.sizes.lanes
    cases: Cases = {
        f'matrix product, {precision}': functools.partial(time_product, work, precision)
        for precision in PRODUCTS
    }
    factors: list[tuple[str, int, Precision]] = [
        *((name, usual, precision) for precision in PRODUCTS for name in LOWERINGS),
        *(('auto', lanes, 'float32') for lanes in work.sizes.other_lanes),
    ]
    for lowering, lanes, precision in factors:
        name = f'{lowering}, {console.counted(lanes, "lane")}, {precision}'
        cases[name] = functools.partial(time_step, work, lowering, lanes, precision)
    if jax.default_backend() == 'gpu' and reporting.has('torch'):
        for precision in ('float32', 'tf32'):
            cases[f'PyTorch, {precision}'] = functools.partial(time_torch, work, precision, 'cuda')
    return cases


def time_product(work: Work, precision: Precision) -> list[Row]:
    """The rate of a large matrix product."""
    return [{'tflops': work.product_rate(precision) / 1e12}]


def time_step(work: Work, lowering: str, lanes: int, precision: Precision) -> list[Row]:
    """Times local steps of clients side by side."""
    sizes, compiled = work.sizes, list[Callable[[], object]]()
    size = Size(sizes.model, lanes, sizes.batch_size, sizes.steps)
    model = work.model(lowering, precision)
    compile_s = seconds(
        lambda: compiled.append(step_program(model, size, mesh=work.mesh, lanes=lanes))
    )
    step_s = work.median(compiled[0]) / size.client_steps
    return [describe_step(work, step_s, precision) | {'compile_s': compile_s}]


def time_torch(work: Work, precision: Precision, device: str) -> list[Row]:
    """Times the same local steps in PyTorch, one client after another."""
    import torch

    sizes, backends = work.sizes, torch.backends
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = precision == 'tf32'
    if device != 'cpu' and not torch.cuda.is_available():
        raise RuntimeError('PyTorch sees no GPU')
    size = Size(sizes.model, sizes.lanes, sizes.batch_size, sizes.steps)
    step_s = work.median(torch_program(size, device)) / size.client_steps
    return [describe_step(work, step_s, precision)]


def describe_step(work: Work, step_s: float, precision: Precision) -> Row:
    """The time of a client-step and its rate of arithmetic."""
    rate = direct_flops(work.sizes.model, work.sizes.batch_size) / step_s
    share = rate / work.product_rate(precision)
    return {'ms': 1e3 * step_s, 'tflops': rate / 1e12, 'share': share}


@functools.cache
def direct_flops(model: str, batch_size: int) -> int:
    """FLOP of a client-step with direct convolutions, products with padding included."""
    gradient, *arguments = plain_gradient(model, batch_size)
    return products(jax.make_jaxpr(gradient)(*arguments).jaxpr)


def same(first: PyTree, second: PyTree) -> Row:
    """Whether two trees of arrays are equal in every bit, and their largest difference."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    equal = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return {'equal': equal, 'difference': largest_difference(first, second)}


def repeat_round(work: Work, lowering: str) -> list[Row]:
    """Runs the same round of equal clients twice."""
    run = cohort_round(work, lowering, 'float32').run
    return [same(run(), run())]


def evaluations(work: Work) -> Cases:
    """Evaluation of all test images in chunks of different sizes."""
    return {
        f'{chunk} at once': functools.partial(time_evaluation, work, chunk)
        for chunk in work.sizes.chunks
    }


def time_evaluation(work: Work, chunk: int) -> list[Row]:
    """Times the evaluation of all test images."""
    model, data = work.model(), work.dataset
    params = model.init(jax.random.key(0))
    arguments = replicate((params, data.x_test, data.y_test), work.mesh)

    def apply(params: PyTree, x: jax.Array) -> Outputs:
        return model.evaluate(params, x, model.stats)

    function = functools.partial(evaluation.evaluate, apply, prepare=to_input, mesh=work.mesh)
    with mock.patch.multiple(evaluation, CHUNK=chunk, CPU_CHUNK=chunk):
        program = compile_program(function, *arguments)
    run_s = work.median(lambda: jax.block_until_ready(program(*arguments)))
    return [{'images': len(data.x_test), 'ms': 1e3 * run_s}]
