"""Weights of the updates of a round."""

import jax.numpy as jnp

from jaxfed.methods.method import CohortView
from jaxfed.types import Array


def equal_weights(cohort: CohortView) -> Array:
    """The same weight for each client with an update; [S], sum 1, or 0 without any."""
    arrived = cohort.weights > 0
    return arrived / jnp.maximum(jnp.sum(arrived), 1)
