"""Accuracy and loss of one model on many examples, in chunks of fixed size."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.types import Array, Outputs, PyTree

CHUNK = 500


class Evaluation(NamedTuple):
    """How a model does on a labelled set of m examples."""

    accuracy: Array  # [] share of correct predictions
    loss: Array  # [] mean cross-entropy
    class_accuracy: Array  # [C] share of correct predictions in each class, 0 where none is held


def predict(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """Logits of many examples, computed in chunks so that memory does not grow with them.

    Args:
      apply: the network.
      params: its parameters.
      x: [m, H, W, channels].
      prepare: applied to each chunk first, for instance a normalisation of uint8 images.

    Returns:
      [m, C] logits.
    """
    m = x.shape[0]
    chunk = min(CHUNK, m)
    chunks = -(-m // chunk)
    # The last chunk is filled with repeated examples, which are cut off again.
    index = jnp.minimum(jnp.arange(chunks * chunk), m - 1).reshape(chunks, chunk)
    logits = jax.lax.map(lambda rows: apply(params, prepare(x[rows])).logits, index)
    return logits.reshape(chunks * chunk, -1)[:m]


def evaluate(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    y: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
) -> Evaluation:
    """Accuracy, loss and accuracy by class.

    Args:
      apply: the network.
      params: its parameters.
      x: [m, H, W, channels].
      y: [m] int32 labels.
      prepare: as in `predict`.

    Returns:
      The evaluation.
    """
    logits = predict(apply, params, x, prepare)
    correct = (jnp.argmax(logits, axis=-1) == y).astype(jnp.float32)
    member = jax.nn.one_hot(y, logits.shape[-1])
    return Evaluation(
        accuracy=jnp.mean(correct),
        loss=jnp.mean(losses.cross_entropy(logits, y)),
        class_accuracy=correct @ member / jnp.maximum(jnp.sum(member, axis=0), 1),
    )


def local_accuracy(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    y: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
    *,
    lanes: int = 1,
) -> Array:
    """Accuracy of each of S local models on the same examples.

    Args:
      apply: the network.
      params: the models' parameters, stacked [S, ...].
      x: [m, H, W, channels].
      y: [m] int32 labels.
      prepare: as in `predict`.
      lanes: models evaluated side by side, mapped over.

    Returns:
      [S]; its mean is the average local accuracy.
    """
    return jax.lax.map(
        lambda own: evaluate(apply, own, x, y, prepare).accuracy, params, batch_size=lanes
    )
