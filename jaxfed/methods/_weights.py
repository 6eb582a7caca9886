"""Weights of the updates of a round, and whether there is one that is finite."""

import jax
import jax.numpy as jnp

from jaxfed.methods.method import CohortView
from jaxfed.types import Array, PyTree


def equal_weights(cohort: CohortView) -> Array:
    """The same weight for each client with an update; [S], sum 1, or 0 without any."""
    arrived = cohort.weights > 0
    return arrived / jnp.maximum(jnp.sum(arrived), 1)


def has_arrived(update: PyTree) -> Array:
    """Whether the mean update is not 0; it is 0 in a round in which `fedbuff` receives none."""
    return jnp.any(jnp.stack([jnp.any(u != 0) for u in jax.tree.leaves(update)]))


def keep_if_finite(new: PyTree, old: PyTree, values: PyTree) -> PyTree:
    """The new state of a client, or the old one if any of the values is not finite.

    Where other clients outvote a client that diverges in a round, it takes part in later ones.
    """
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(values)]))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)
