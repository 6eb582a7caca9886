"""Full gradients of a round's clients, whose examples come from the host a chunk at a time."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxfed.engine.devices import AXIS, fetch, split
from jaxfed.engine.evaluation import chunk_size, gradient_sum
from jaxfed.engine.stacking import row
from jaxfed.metrics.measures import Gradients
from jaxfed.runs.deal import Dealt
from jaxfed.runs.experiment import Experiment
from jaxfed.types import Array, PyTree

Weights = tuple[PyTree, PyTree]  # parameters and batch statistics


def make_gradients(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    weights: Weights,
    to_input: Callable[[Array], Array],
) -> tuple[list[Callable[[Weights, np.ndarray], Gradients]], Any]:
    """Makes what takes the gradients of a round's clients at a global model.

    f_i is the mean cross-entropy of all of client i's training examples, with the labels that it
    sees, not augmented, under the global batch statistics; without any, grad f_i = 0. Each device
    works on a client of its own.

    Args:
      experiments: X that share the program.
      mesh: the devices.
      weights: of any round, or their shapes.
      to_input: normalisation.

    Returns:
      (of each experiment (weights, [S] client ids) -> their gradients, the compiled program).
    """
    evaluate, devices = experiments[0].model.evaluate, mesh.size
    chunk = chunk_size(max(len(part) for e in experiments for part in e.dealt.partition))

    def add(total: PyTree, weights: Weights, x: Array, y: Array, mask: Array) -> PyTree:
        params, stats = weights
        more = gradient_sum(
            lambda params, x: evaluate(params, x, stats), params, x[0], y[0], mask[0], to_input
        )
        return jax.tree.map(lambda t, m: t + m[None], total, more)

    own, same = PartitionSpec(AXIS), PartitionSpec()
    over_devices = jax.shard_map(
        add, mesh=mesh, in_specs=(own, same, own, own, own), out_specs=own, check_vma=False
    )

    def examples_of(
        dealt: Dealt, clients: np.ndarray, begin: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.zeros((devices, chunk), np.int64)
        mask = np.zeros(rows.shape, bool)
        for place, client in enumerate(clients):
            part = dealt.partition[client][begin : begin + chunk]
            rows[place, : len(part)], mask[place, : len(part)] = part, True
        return dealt.dataset.x_train[rows], dealt.dataset.y_train[rows], mask

    zeros = jax.tree.map(lambda leaf: np.zeros((devices, *leaf.shape), leaf.dtype), weights[0])
    first = split((zeros, *examples_of(experiments[0].dealt, np.array([], int), 0)), mesh)
    program = jax.jit(over_devices).lower(first[0], weights, *first[1:]).compile()

    @np.errstate(over='ignore', invalid='ignore')  # of a run that diverges
    def of_cohort(dealt: Dealt, weights: Weights, cohort: np.ndarray) -> Gradients:
        size = np.array([len(dealt.partition[client]) for client in cohort])
        squares, mean = np.zeros(len(cohort)), jax.tree.map(np.zeros_like, row(zeros, 0))
        by_size = np.argsort(-size, kind='stable')  # so devices hardly wait for each other
        for begin in range(0, len(cohort), devices):
            slots = by_size[begin : begin + devices]
            total = split(zeros, mesh)
            for start in range(0, size[slots].max(), chunk):
                examples = split(examples_of(dealt, cohort[slots], start), mesh)
                total = program(total, weights, *examples)
            sums = fetch(total)
            for place, slot in enumerate(slots):
                n = max(int(size[slot]), 1)
                gradient = jax.tree.map(lambda leaf, n=n: leaf / n, row(sums, place))
                squares[slot] = _square(gradient)
                mean = jax.tree.map(lambda m, g: m + g / len(cohort), mean, gradient)
        return Gradients(squares, _square(mean))

    return [functools.partial(of_cohort, experiment.dealt) for experiment in experiments], program


def _square(tree: PyTree) -> float:
    return sum(float(np.vdot(leaf, leaf)) for leaf in jax.tree.leaves(tree))
