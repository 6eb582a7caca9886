"""Accuracy and loss of a model on a labelled set."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.types import Array


class Evaluation(NamedTuple):
    """Results of a model on a labelled set of m examples."""

    accuracy: Array  # [] share of correct predictions
    loss: Array  # [] mean cross-entropy
    class_accuracy: Array  # [C] share of correct predictions; 0 for a class without examples
    predicted: Array  # [m] int32, the class with the largest logit
    logits: Array | tuple[()] = ()  # [m, C] of the global model, if a measure needs them


def grade(logits: Array, y: Array) -> Evaluation:
    """Computes accuracy, loss and class accuracies from logits.

    Args:
      logits: [m, C].
      y: [m] int32 labels.

    Returns:
      The evaluation.
    """
    predicted = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    correct = (predicted == y).astype(jnp.float32)
    member = jax.nn.one_hot(y, logits.shape[-1])
    return Evaluation(
        accuracy=jnp.mean(correct),
        loss=jnp.mean(losses.cross_entropy(logits, y)),
        class_accuracy=correct @ member / jnp.maximum(jnp.sum(member, axis=0), 1),
        predicted=predicted,
    )
