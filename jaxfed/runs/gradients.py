"""Full gradients of a round's clients; the host sends their examples in chunks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine.devices import REPLICATED, SPLIT, fetch, map_devices, split
from jaxfed.engine.evaluation import chunk_size, gradient_sum
from jaxfed.engine.stacking import row
from jaxfed.internal.backend import lower
from jaxfed.metrics.measures import Gradients
from jaxfed.runs.client_images import client_images
from jaxfed.runs.deal import padded
from jaxfed.runs.experiment import Experiment
from jaxfed.types import Array, PyTree

Weights = tuple[PyTree, PyTree]  # parameters and batch statistics


def largest_chunk(experiments: Sequence[Experiment]) -> int:
    """Examples of a client that the program of X experiments adds at once."""
    return chunk_size(max(len(part) for e in experiments for part in e.dealt.partition))


def lower_gradients(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    weights: Weights,
    to_input: Callable[[Array], Array],
) -> Any:
    """Lowers the program of `gradients_of`.

    Args:
      experiments: X that share the program.
      mesh: the devices.
      weights: of any round, or their shapes.
      to_input: normalisation.
    """
    evaluate = experiments[0].model.evaluate

    def add(total: PyTree, weights: Weights, x: Array, y: Array, mask: Array) -> PyTree:
        params, stats = weights
        more = gradient_sum(
            lambda params, x: evaluate(params, x, stats), params, x[0], y[0], mask[0], to_input
        )
        return jax.tree.map(lambda t, m: t + m[None], total, more)

    add_on_devices = map_devices(add, mesh, (SPLIT, REPLICATED, SPLIT, SPLIT, SPLIT))
    chunk = largest_chunk(experiments)
    examples = _chunk(experiments[0], np.array([], int), 0, mesh.size, chunk)
    total, *placed = split((_zeros(weights, mesh.size), *examples), mesh)
    return lower(add_on_devices, total, weights, *placed)


@np.errstate(over='ignore', invalid='ignore')  # if training diverges
def gradients_of(
    experiment: Experiment,
    mesh: Mesh,
    program: Any,
    chunk: int,
    weights: Weights,
    cohort: np.ndarray,
) -> Gradients:
    """Gradients of the local objectives f_i of a cohort at the global parameters.

    f_i is the mean cross-entropy of the training examples of client i under the global batch
    statistics, with label noise and without augmentation; without examples, grad f_i = 0. Each
    device computes the gradient of another client.

    Args:
      experiment: of the cohort.
      mesh: the devices.
      program: from `lower_gradients`, compiled.
      chunk: from `largest_chunk`.
      weights: of the global model.
      cohort: [S] client ids.
    """
    partition, devices, zeros = experiment.dealt.partition, mesh.size, _zeros(weights, mesh.size)
    size = np.array([len(partition[client]) for client in cohort])
    squares, mean = np.zeros(len(cohort)), jax.tree.map(np.zeros_like, row(zeros, 0))
    by_size = np.argsort(-size, kind='stable')  # so that devices finish together
    for first in range(0, len(cohort), devices):
        slots = by_size[first : first + devices]
        total = split(zeros, mesh)
        for start in range(0, size[slots].max(), chunk):
            examples = _chunk(experiment, cohort[slots], start, devices, chunk)
            total = program(total, weights, *split(examples, mesh))
        sums = fetch(total)
        for place, slot in enumerate(slots):
            n = max(int(size[slot]), 1)
            gradient = jax.tree.map(lambda leaf, n=n: leaf / n, row(sums, place))
            squares[slot] = _square(gradient)
            mean = jax.tree.map(lambda m, g: m + g / len(cohort), mean, gradient)
    return Gradients(squares, _square(mean))


def _chunk(
    of: Experiment, clients: np.ndarray, start: int, devices: int, chunk: int
) -> tuple[np.ndarray, ...]:
    """Images, labels and mask [D, chunk, ...] of clients from the example `start`."""
    parts = [of.dealt.partition[client][start : start + chunk] for client in clients]
    rows, mask = padded(parts, devices, chunk)
    return client_images(of, clients, rows), of.dealt.dataset.y_train[rows], mask


def _zeros(weights: Weights, devices: int) -> PyTree:
    return jax.tree.map(lambda leaf: np.zeros((devices, *leaf.shape), leaf.dtype), weights[0])


def _square(tree: PyTree) -> float:
    return sum(float(np.vdot(leaf, leaf)) for leaf in jax.tree.leaves(tree))
