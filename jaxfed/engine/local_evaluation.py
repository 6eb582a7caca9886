"""Evaluation of each of a round's local models, on common test data or on the clients' own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxfed.engine.devices import AXIS
from jaxfed.engine.evaluation import evaluate, predict, without_stats
from jaxfed.engine.stacking import row
from jaxfed.metrics.accuracy import Evaluation, grade
from jaxfed.metrics.teacher import Agreement, Teacher, agreement
from jaxfed.types import Array, Outputs, PyTree


class Own(NamedTuple):
    """Examples that clients hold out for themselves, M clients on each of D devices."""

    x: Any  # array [D, M, n, H, W, channels]
    y: Any  # [D, M, n] int32
    mask: Any  # [D, M, n] bool, False for what fills up


def evaluate_locals(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    count: Array,
    x: Array,
    y: Array,
    teacher: Teacher | None = None,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    mesh: Mesh,
    lanes: int = 1,
) -> tuple[Evaluation, Agreement | None]:
    """Evaluates each of a round's local models on the same examples, in one pass over them.

    Args:
      apply: the network.
      params: the models' parameters, M on each of D devices, stacked [D, M, ...].
      count: [D] int32, models of each device; those behind them are not evaluated.
      x: [m, H, W, channels].
      y: [m] int32 labels.
      teacher: what the global model makes of the examples, if the models are compared with it.
      prepare: as in `predict`.
      mesh: the devices.
      lanes: models that a device evaluates side by side, mapped over.

    Returns:
      Evaluations [D, M, ...], the mean of whose accuracies is the average local accuracy, and
      agreements [D, M] with the teacher, None without one; 0 for models that are not evaluated.
    """

    def of_device(
        params: PyTree, count: Array, x: Array, y: Array, teacher: Teacher | None
    ) -> tuple[Evaluation, Agreement | None]:
        def of_model(model: PyTree) -> tuple[Evaluation, Agreement | None]:
            if teacher is None:
                return evaluate(apply, model, x, y, prepare), None
            outputs = predict(apply, model, x, prepare, take=without_stats)
            return grade(outputs.logits, y), agreement(teacher, outputs, y)

        found = _of_each(of_model, row(params, 0), count[0], lanes)
        return jax.tree.map(lambda leaf: leaf[None], found)

    same, split = PartitionSpec(), PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(split, split, same, same, same),
        out_specs=split,
        check_vma=False,
    )
    return over_devices(params, count, x, y, teacher)


def personal_accuracy(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    common: PyTree,
    count: Array,
    own: Own,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    mesh: Mesh,
    lanes: int = 1,
) -> tuple[Array, Array]:
    """Accuracy of local models, and of the global one, on what each client holds out for itself.

    Args:
      apply: the network.
      params: the local models' parameters, stacked [D, M, ...].
      common: the global model's.
      count: [D] int32, models of each device; those behind them are not evaluated.
      own: the clients' examples.
      prepare: as in `predict`.
      mesh: the devices.
      lanes: clients that a device evaluates side by side, mapped over.

    Returns:
      [D, M] of the local models and [D, M] of the global one; 0 for a client without examples.
    """

    def of_device(params: PyTree, common: PyTree, count: Array, own: Own) -> tuple[Array, Array]:
        def accuracy(client: tuple[PyTree, Own]) -> tuple[Array, Array]:
            model, (x, y, mask) = client

            def share(params: PyTree) -> Array:
                correct = jnp.argmax(predict(apply, params, x, prepare), axis=-1) == y
                return jnp.sum(correct & mask) / jnp.maximum(jnp.sum(mask), 1)

            return share(model), share(common)

        local, common_ = _of_each(accuracy, row((params, own), 0), count[0], lanes)
        return local[None], common_[None]

    same, split = PartitionSpec(), PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(split, same, split, split),
        out_specs=(split, split),
        check_vma=False,
    )
    return over_devices(params, common, count, own)


def _of_each(
    function: Callable[[PyTree], PyTree], stack: PyTree, count: Array, lanes: int
) -> PyTree:
    """Results [M, ...] for each entry of a stack [M, ...], 0 for those from `count` on."""
    room = jax.tree.leaves(stack)[0].shape[0]
    shapes = jax.eval_shape(function, jax.eval_shape(lambda stack: row(stack, 0), stack))

    def body(group: Array, results: PyTree) -> PyTree:
        rows = jnp.minimum(group * lanes + jnp.arange(lanes), room - 1)
        got = jax.vmap(function)(jax.tree.map(lambda leaf: leaf[rows], stack))
        return jax.tree.map(lambda all_, some: all_.at[rows].set(some), results, got)

    def cut(leaf: Array) -> Array:
        here = (jnp.arange(room) < count).reshape(room, *[1] * (leaf.ndim - 1))
        return jnp.where(here, leaf, 0)

    zeros = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), shapes)
    return jax.tree.map(cut, lax.fori_loop(0, -(-count // lanes), body, zeros))
