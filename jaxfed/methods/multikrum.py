"""Multi-Krum: the mean of the updates that Krum prefers."""

from jaxfed.methods.krum import krum
from jaxfed.methods.method import Method


def multikrum(*, byzantine: float = 0.2) -> Method:
    """The mean of the n - f updates with the best scores of Krum, without weights.

    update = mean of the n - f updates with the smallest scores of Krum, f = floor(byzantine n)

    Every device keeps the updates of the whole cohort.

    Args:
      byzantine: share of malicious clients that is tolerated, in [0, 0.5).

    Returns:
      The method.

    Raises:
      ValueError: if byzantine is out of range, or the cohort is too small for it.

    Reference:
      Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
      NeurIPS 2017, section 5.
    """
    return krum(byzantine=byzantine, selected=0)
