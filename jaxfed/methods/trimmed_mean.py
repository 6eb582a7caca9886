"""Coordinate-wise trimmed mean of the updates."""

import jax.numpy as jnp

from jaxfed.methods._check import check
from jaxfed.methods._robust import mean_of_ranks
from jaxfed.methods.method import CombineView, Method
from jaxfed.types import PyTree


def trimmed_mean(*, trim: float = 0.2) -> Method:
    """The mean of the round's updates without the extremes of every coordinate, without weights.

    update[j] = mean of (w_i - w_g)[j] without the floor(trim n) smallest and largest of n

    Every device keeps the updates of the whole cohort.

    Args:
      trim: share of the updates that is removed at each end, in [0, 0.5); 0 is the plain mean.

    Returns:
      The method.

    Raises:
      ValueError: if trim is out of range, or the cohort is too small for it.

    Reference:
      Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML
      2018, definition 2.
    """
    check((trim >= 0) & (trim < 0.5), 'trim', trim, 'in [0, 0.5)')

    def combine(view: CombineView) -> PyTree:
        sampled = len(view.arrived)
        check(
            (trim == 0) | (trim * sampled + 1e-4 >= 1), '--trim', trim,
            f'0, or enough to remove one of the {sampled} clients of a round at each end',
        )  # fmt: skip
        arrived = jnp.sum(view.arrived)
        # A product such as 0.29 * 100 may be just below the integer.
        cut = jnp.floor(trim * arrived + 1e-4).astype(jnp.int32)
        return mean_of_ranks(view, cut, arrived - 1 - cut)

    return Method(combine=combine, alters_messages=True, ignores_weights=True)
