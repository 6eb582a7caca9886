"""Consistency of the global model's predictions between rounds."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.metrics._ratio import ratio
from jaxfed.types import Array


def class_consistency(before: ArrayLike, now: ArrayLike) -> Array:
    """Cosine similarity of the class accuracies of two rounds.

    <A, A'> / (||A|| ||A'||)

    The result is 1 if both vectors are zero and 0 if one of them is.

    Args:
      before: A [C], class accuracies after the earlier round.
      now: A' [C], after the later one.

    Returns:
      [], in 0..1.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 2.1.
    """
    before, now = jnp.asarray(before), jnp.asarray(now)
    lengths = jnp.sqrt(jnp.sum(before**2) * jnp.sum(now**2))
    same = jnp.all(before == now).astype(lengths.dtype)
    return ratio(jnp.sum(before * now), lengths, same)


def same_predictions(before: ArrayLike, now: ArrayLike) -> Array:
    """Share of the test examples with the same prediction in two rounds.

    Args:
      before: [m] int32, the predicted classes after the earlier round.
      now: [m] int32, after the later one.

    Returns:
      [], in 0..1.
    """
    return jnp.mean((jnp.asarray(before) == jnp.asarray(now)).astype(jnp.float32))
