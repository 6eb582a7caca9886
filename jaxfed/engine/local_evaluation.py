"""Evaluation of the local models of a round, on common test data or on the clients' own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxfed.engine.devices import REPLICATED, SPLIT, map_devices
from jaxfed.engine.evaluation import Apply, Prepare, evaluate, predict, without_stats
from jaxfed.engine.stacking import row
from jaxfed.metrics.accuracy import Evaluation, grade
from jaxfed.metrics.teacher import Agreement, Teacher, agreement
from jaxfed.types import Array, PyTree


class HeldOut(NamedTuple):
    """The clients' own test examples, M clients on each of D devices."""

    x: Any  # array [D, M, n, H, W, channels]
    y: Any  # [D, M, n] int32
    mask: Any  # [D, M, n] bool, False for padding


def evaluate_locals(
    apply: Apply,
    params: PyTree,
    count: Array,
    x: Array,
    y: Array,
    teacher: Teacher | None = None,
    prepare: Prepare = lambda x: x,
    *,
    mesh: Mesh,
    lanes: int = 1,
) -> tuple[Evaluation, Agreement | None]:
    """Evaluates the local models of a round on the same examples, in one pass over them.

    Args:
      apply: the network.
      params: [D, M, ...] parameters of M models on each of D devices.
      count: [D] int32, models to evaluate on each device, the first of M.
      x: [m, H, W, channels].
      y: [m] int32 labels.
      teacher: outputs of the global model on x, for comparison.
      prepare: as in `predict`.
      mesh: the devices.
      lanes: models that a device evaluates at once, by `vmap`.

    Returns:
      Evaluations [D, M, ...], and agreements [D, M] with the teacher, None without one; 0 for
      models that are not evaluated.
    """

    def of_device(
        params: PyTree, count: Array, x: Array, y: Array, teacher: Teacher | None
    ) -> tuple[Evaluation, Agreement | None]:
        def of_model(model: PyTree) -> tuple[Evaluation, Agreement | None]:
            if teacher is None:
                return evaluate(apply, model, x, y, prepare), None
            outputs = predict(apply, model, x, prepare, take=without_stats)
            return grade(outputs.logits, y), agreement(teacher, outputs, y)

        return _map_first(of_model, params, count, lanes)

    in_specs = (SPLIT, SPLIT, REPLICATED, REPLICATED, REPLICATED)
    return map_devices(of_device, mesh, in_specs)(params, count, x, y, teacher)


def personal_accuracy(
    apply: Apply,
    params: PyTree,
    common: PyTree,
    count: Array,
    held_out: HeldOut,
    prepare: Prepare = lambda x: x,
    *,
    mesh: Mesh,
    lanes: int = 1,
) -> tuple[Array, Array]:
    """Accuracy of the local models and of the global one on each client's own test examples.

    Args:
      apply: the network.
      params: [D, M, ...] parameters of the local models.
      common: parameters of the global model.
      count: [D] int32, models to evaluate on each device, the first of M.
      held_out: the clients' test examples.
      prepare: as in `predict`.
      mesh: the devices.
      lanes: clients that a device evaluates at once, by `vmap`.

    Returns:
      [D, M] of the local models and [D, M] of the global one; 0 for a client without examples.
    """

    def of_device(
        params: PyTree, common: PyTree, count: Array, held_out: HeldOut
    ) -> tuple[Array, Array]:
        def accuracies(client: tuple[PyTree, HeldOut]) -> tuple[Array, Array]:
            model, (x, y, mask) = client

            def accuracy(params: PyTree) -> Array:
                correct = jnp.argmax(predict(apply, params, x, prepare), axis=-1) == y
                return jnp.sum(correct & mask) / jnp.maximum(jnp.sum(mask), 1)

            return accuracy(model), accuracy(common)

        return _map_first(accuracies, (params, held_out), count, lanes)

    in_specs = (SPLIT, REPLICATED, SPLIT, SPLIT)
    return map_devices(of_device, mesh, in_specs)(params, common, count, held_out)


def _map_first(
    function: Callable[[PyTree], PyTree], stack: PyTree, count: Array, lanes: int
) -> PyTree:
    """Results [1, M, ...] for the first `count` [1] entries of a stack [1, M, ...], else 0."""
    stack, count = row((stack, count), 0)
    room = len(jax.tree.leaves(stack)[0])
    shapes = jax.eval_shape(function, jax.eval_shape(lambda stack: row(stack, 0), stack))

    def add_group(group: Array, results: PyTree) -> PyTree:
        rows = jnp.minimum(group * lanes + jnp.arange(lanes), room - 1)
        found = jax.vmap(function)(jax.tree.map(lambda leaf: leaf[rows], stack))
        return jax.tree.map(lambda all_, some: all_.at[rows].set(some), results, found)

    def cut(leaf: Array) -> Array:
        used = (jnp.arange(room) < count).reshape(room, *[1] * (leaf.ndim - 1))
        return jnp.where(used, leaf, 0)

    zeros = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), shapes)
    results = jax.tree.map(cut, lax.fori_loop(0, -(-count // lanes), add_group, zeros))
    return jax.tree.map(lambda leaf: leaf[None], results)
