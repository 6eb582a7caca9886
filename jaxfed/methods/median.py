"""Coordinate-wise median of the updates."""

import jax.numpy as jnp

from jaxfed.methods._robust import mean_of_ranks
from jaxfed.methods.method import CombineView, Method
from jaxfed.types import PyTree


def median() -> Method:
    """The median of the round's updates in every coordinate, without weights.

    update[j] = median_i (w_i - w_g)[j]; of an even number the mean of the middle two

    Every device keeps the updates of the whole cohort.

    Returns:
      The method.

    Reference:
      Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML
      2018, definition 1.
    """

    def combine(view: CombineView) -> PyTree:
        arrived = jnp.sum(view.arrived)
        return mean_of_ranks(view, (arrived - 1) // 2, arrived // 2)

    return Method(combine=combine, alters_messages=True, ignores_weights=True)
