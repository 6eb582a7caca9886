"""Evaluation of one model on many examples, in chunks of fixed size."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxfed.engine.devices import AXIS
from jaxfed.metrics.accuracy import Evaluation, grade
from jaxfed.metrics.teacher import Teacher, as_teacher
from jaxfed.types import Array, Outputs, PyTree

# Examples evaluated at once. A core's cache holds the inside of a network for few; measured on the
# CPU only: cnn and resnet8 take 0.6-0.7 of the time with 100 instead of 500.
CHUNK = 500
CPU_CHUNK = 100


def chunk_size(n: int) -> int:
    """How many of n examples are evaluated at once.

    Args:
      n: examples.

    Returns:
      The number, at most n.
    """
    return min(CPU_CHUNK if jax.default_backend() == 'cpu' else CHUNK, n)


def predict(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    mesh: Mesh | None = None,
    take: Callable[[Outputs], PyTree] = lambda outputs: outputs.logits,
) -> PyTree:
    """Logits of many examples, computed in chunks so that memory does not grow with them.

    Args:
      apply: the network.
      params: its parameters.
      x: [m, H, W, channels].
      prepare: applied to each chunk first, for instance a normalisation of uint8 images.
      mesh: devices that share the examples out among them; None for the one at work.
      take: what of the outputs is given.

    Returns:
      [m, C] logits, or what `take` takes, [m, ...].
    """
    m = x.shape[0]

    def of_rows(params: PyTree, x: Array, rows: Array) -> PyTree:
        n = rows.shape[0]
        chunk = chunk_size(n)
        chunks = -(-n // chunk)
        # The last chunk is filled with repeated examples, which are cut off again.
        rows = rows[jnp.minimum(jnp.arange(chunks * chunk), n - 1)].reshape(chunks, chunk)
        taken = lax.map(lambda chunk: take(apply(params, prepare(x[chunk]))), rows)
        return jax.tree.map(lambda leaf: leaf.reshape(rows.size, -1)[:n], taken)

    if mesh is None:
        return of_rows(params, x, jnp.arange(m))
    share = -(-m // mesh.size)

    def of_device(params: PyTree, x: Array) -> PyTree:
        rows = lax.axis_index(AXIS) * share + jnp.arange(share)
        return of_rows(params, x, jnp.minimum(rows, m - 1))

    same, split = PartitionSpec(), PartitionSpec(AXIS)
    over_devices = jax.shard_map(
        of_device, mesh=mesh, in_specs=same, out_specs=split, check_vma=False
    )
    return jax.tree.map(lambda leaf: leaf[:m], over_devices(params, x))


def evaluate(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    y: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    mesh: Mesh | None = None,
) -> Evaluation:
    """Accuracy, loss and accuracy by class.

    Args:
      apply: the network.
      params: its parameters.
      x: [m, H, W, channels].
      y: [m] int32 labels.
      prepare: as in `predict`.
      mesh: as in `predict`.

    Returns:
      The evaluation.
    """
    return grade(predict(apply, params, x, prepare, mesh=mesh), y)


def without_stats(outputs: Outputs) -> Outputs:
    """What of a network's outputs has a row for each example.

    Args:
      outputs: of the network.

    Returns:
      Logits and features.
    """
    return Outputs(outputs.logits, outputs.features)


def evaluate_teacher(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    y: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    mesh: Mesh | None = None,
) -> tuple[Evaluation, Teacher]:
    """Evaluates a global model that local ones are compared with, in one pass.

    Args:
      apply: the network.
      params: its parameters.
      x: [m, H, W, channels].
      y: [m] int32 labels.
      prepare: as in `predict`.
      mesh: as in `predict`.

    Returns:
      The evaluation and the teacher.
    """
    outputs = predict(apply, params, x, prepare, mesh=mesh, take=without_stats)
    return grade(outputs.logits, y), as_teacher(outputs, y)
