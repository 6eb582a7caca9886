"""Krum: the update that is nearest to most others."""

import jax.numpy as jnp

from jaxfed.methods._check import check
from jaxfed.methods._robust import krum_scores, mean_of_best
from jaxfed.methods.method import CombineView, Method
from jaxfed.types import PyTree


def krum(*, byzantine: float = 0.2, selected: int = 1) -> Method:
    """The updates with the smallest distances to their nearest n - f - 2 others, without weights.

    score_i = sum of ||u_i - u_j||^2 over the n - f - 2 nearest u_j, f = floor(byzantine n);
    update = mean of the `selected` updates with the smallest scores

    Every device keeps the updates of the whole cohort.

    Args:
      byzantine: share of malicious clients that is tolerated, in [0, 0.5).
      selected: updates to average, >= 1; 1 is Krum, more is multi-Krum; 0 for n - f.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range, or the cohort is too small for it.

    Reference:
      Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
      NeurIPS 2017, sections 3 and 5.
    """
    check((byzantine >= 0) & (byzantine < 0.5), 'byzantine', byzantine, 'in [0, 0.5)')
    check(selected >= 0, 'selected', selected, 'at least 0')

    def combine(view: CombineView) -> PyTree:
        sampled = len(view.arrived)
        check(
            selected <= sampled, '--selected', selected,
            f'at most the {sampled} clients of a round',
        )  # fmt: skip
        tolerated = (byzantine * sampled + 1e-4) // 1
        check(
            2 * tolerated + 2 < sampled, '--byzantine', byzantine,
            f'such that 2 floor(byzantine * {sampled}) + 2 is below the {sampled} clients of a '
            'round',
        )  # fmt: skip
        arrived = jnp.sum(view.arrived)
        # A product such as 0.29 * 100 may be just below the integer.
        malicious = jnp.floor(byzantine * arrived + 1e-4).astype(jnp.int32)
        number = jnp.where(selected == 0, arrived - malicious, selected)
        return mean_of_best(view, krum_scores(view, malicious), number)

    return Method(combine=combine, alters_messages=True, ignores_weights=True)
