"""Full gradients of a round's clients; the host sends their examples in chunks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxfed.engine.devices import AXIS, fetch, split
from jaxfed.engine.evaluation import chunk_size, gradient_sum
from jaxfed.engine.stacking import row
from jaxfed.internal.backend import compile_program
from jaxfed.metrics.measures import Gradients
from jaxfed.runs.client_images import client_images
from jaxfed.runs.deal import padded
from jaxfed.runs.experiment import Experiment
from jaxfed.types import Array, PyTree

Weights = tuple[PyTree, PyTree]  # parameters and batch statistics
GradientsOf = Callable[[Weights, np.ndarray], Gradients]  # (weights, [S] client ids)


def make_gradients(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    weights: Weights,
    to_input: Callable[[Array], Array],
) -> tuple[list[GradientsOf], Any]:
    """Makes for each of X experiments the function that computes its clients' gradients.

    f_i is the mean cross-entropy of the training examples of client i under the global batch
    statistics, with label noise and without augmentation; without examples, grad f_i = 0. Each
    device computes the gradient of another client.

    Args:
      experiments: X that share the program.
      mesh: the devices.
      weights: of any round, or their shapes.
      to_input: normalisation.

    Returns:
      (a function for each experiment, the compiled program).
    """
    evaluate, devices = experiments[0].model.evaluate, mesh.size
    chunk = chunk_size(max(len(part) for e in experiments for part in e.dealt.partition))

    def add(total: PyTree, weights: Weights, x: Array, y: Array, mask: Array) -> PyTree:
        params, stats = weights
        more = gradient_sum(
            lambda params, x: evaluate(params, x, stats), params, x[0], y[0], mask[0], to_input
        )
        return jax.tree.map(lambda t, m: t + m[None], total, more)

    over, same = PartitionSpec(AXIS), PartitionSpec()
    add_on_devices = jax.shard_map(
        add, mesh=mesh, in_specs=(over, same, over, over, over), out_specs=over, check_vma=False
    )

    def chunk_of(of: Experiment, clients: np.ndarray, start: int) -> tuple[np.ndarray, ...]:
        parts = [of.dealt.partition[client][start : start + chunk] for client in clients]
        rows, mask = padded(parts, devices, chunk)
        return client_images(of, clients, rows), of.dealt.dataset.y_train[rows], mask

    zeros = jax.tree.map(lambda leaf: np.zeros((devices, *leaf.shape), leaf.dtype), weights[0])
    total, *examples = split((zeros, *chunk_of(experiments[0], np.array([], int), 0)), mesh)
    program = compile_program(add_on_devices, total, weights, *examples)

    @np.errstate(over='ignore', invalid='ignore')  # if training diverges
    def of_cohort(of: Experiment, weights: Weights, cohort: np.ndarray) -> Gradients:
        size = np.array([len(of.dealt.partition[client]) for client in cohort])
        squares, mean = np.zeros(len(cohort)), jax.tree.map(np.zeros_like, row(zeros, 0))
        by_size = np.argsort(-size, kind='stable')  # so that devices finish together
        for first in range(0, len(cohort), devices):
            slots = by_size[first : first + devices]
            total = split(zeros, mesh)
            for start in range(0, size[slots].max(), chunk):
                total = program(total, weights, *split(chunk_of(of, cohort[slots], start), mesh))
            sums = fetch(total)
            for place, slot in enumerate(slots):
                n = max(int(size[slot]), 1)
                gradient = jax.tree.map(lambda leaf, n=n: leaf / n, row(sums, place))
                squares[slot] = _square(gradient)
                mean = jax.tree.map(lambda m, g: m + g / len(cohort), mean, gradient)
        return Gradients(squares, _square(mean))

    return [functools.partial(of_cohort, experiment) for experiment in experiments], program


def _square(tree: PyTree) -> float:
    return sum(float(np.vdot(leaf, leaf)) for leaf in jax.tree.leaves(tree))
