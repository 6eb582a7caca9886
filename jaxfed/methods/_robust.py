"""Sums of a cohort's updates that a few of its clients cannot move far."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxfed.methods.method import CombineView
from jaxfed.types import Array, PyTree


def mean_of_ranks(view: CombineView, first: Array, last: Array) -> PyTree:
    """The mean of the arrived values of each coordinate, sorted, from rank `first` to `last`."""
    rank = jnp.arange(len(view.arrived))
    kept = (rank >= first) & (rank <= last)

    def of_array(rows: Array) -> Array:
        shape = (len(rows), *[1] * (rows.ndim - 1))
        # NaN sorts behind the inf of lost rows, which then has its rank: neither mean is finite.
        ordered = jnp.sort(jnp.where(view.arrived.reshape(shape), rows, jnp.inf), axis=0)
        total = jnp.sum(jnp.where(kept.reshape(shape), ordered, 0), axis=0)
        return total / jnp.maximum(jnp.sum(kept), 1)

    return jax.tree.map(of_array, view.updates)


def _distances(rows: Array, one: Array) -> Array:
    """Squared distances of one row to all."""
    return jnp.sum(jnp.square(rows - one), axis=1)


def krum_scores(view: CombineView, byzantine: Array) -> Array:
    """Sum of the squared distances to the n - f - 2 nearest arrived updates; inf where lost."""
    count = len(view.arrived)
    distance = jnp.zeros((count, count))
    for rows in jax.tree.leaves(view.updates):
        flat = rows.reshape(count, -1)
        distance += jax.lax.map(partial(_distances, flat), flat)
    distance = jnp.where(jnp.isnan(distance), jnp.inf, distance)
    other = view.arrived & ~jnp.eye(count, dtype=bool)
    ordered = jnp.sort(jnp.where(other, distance, jnp.inf), axis=1)
    nearest = jnp.maximum(jnp.sum(view.arrived) - byzantine - 2, 1)
    near = jnp.arange(count) < jnp.minimum(nearest, jnp.sum(view.arrived) - 1)
    return jnp.where(view.arrived, jnp.sum(jnp.where(near, ordered, 0), axis=1), jnp.inf)


def mean_of_best(view: CombineView, scores: Array, number: Array) -> PyTree:
    """The mean of the arrived updates with the smallest scores."""
    rank = jnp.argsort(jnp.lexsort((scores, ~view.arrived)))  # scores may be inf, as those of lost
    chosen = (rank < number) & view.arrived
    total = jnp.maximum(jnp.sum(chosen), 1)

    def of_array(rows: Array) -> Array:
        of_chosen = chosen.reshape(len(rows), *[1] * (rows.ndim - 1))
        return jnp.sum(jnp.where(of_chosen, rows, 0), axis=0) / total

    return jax.tree.map(of_array, view.updates)
