"""Statistics of whole runs: rounds to a target, averages, speed-up, mean over seeds."""

import itertools
from collections.abc import Sequence

import numpy as np

Curve = tuple[Sequence[int], Sequence[float | None]]  # rounds, ascending, and their accuracies


def rounds_to_target(curve: Curve, target: float) -> int | None:
    """Finds the first round with a test accuracy of at least the target.

    min {t : A^t >= target}

    Args:
      curve: rounds and accuracies; None for a round without evaluation.
      target: in the same unit as the accuracies.

    Returns:
      The round; None if the run does not reach the target.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, table 1.
    """
    reached = (t for t, a in zip(*curve, strict=True) if a is not None and a >= target)
    return next(reached, None)


def moving_average(values: Sequence[float | None], past: float = 0.6) -> list[float]:
    """Computes the exponential moving average of a curve.

    m_1 = v_1,  m_t = past m_{t-1} + (1 - past) v_t

    Args:
      values: by evaluated round; None is left out.
      past: the weight of the past, in 0..1.

    Returns:
      m_t, one number for each value that is not None.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022: its first author names the last m_t as the reported accuracy
      (github.com/Lee-Gihun/FedNTD, issue 4).
    """
    known = (value for value in values if value is not None)
    return list(itertools.accumulate(known, lambda m, value: past * m + (1 - past) * value))


def mean_of_last(curve: Curve, rounds: int = 10) -> float | None:
    """Computes the mean accuracy of the last rounds.

    (1 / |T'|) sum_{t in T'} A^t,  T' = the evaluated rounds among the last R

    Args:
      curve: all rounds and their accuracies; None for a round without evaluation.
      rounds: R, >= 1; a shorter run counts as a whole.

    Returns:
      The mean, in the unit of the accuracies; None if none of these rounds was evaluated.
    """
    known = [accuracy for accuracy in curve[1][-rounds:] if accuracy is not None]
    return float(np.mean(known)) if known else None


def speed_up(reference: Curve, curve: Curve, target: float | None = None) -> float | None:
    """Computes the factor by which a run needs fewer rounds than a reference for an accuracy.

    (reference's rounds to the target) / (this run's rounds to the target)

    Args:
      reference: rounds and accuracies of the run to compare with, for instance FedAvg's.
      curve: rounds and accuracies of this run.
      target: the accuracy; None for the reference's best.

    Returns:
      The factor; None if one of the two does not reach the target.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, table 3.
    """
    if target is None:
        target = max((a for a in reference[1] if a is not None), default=None)
    if target is None:
        return None
    slow, fast = rounds_to_target(reference, target), rounds_to_target(curve, target)
    return None if slow is None or fast is None else slow / fast


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation of the values that are not None.

    m = sum_i v_i / n,  s = sqrt(sum_i (v_i - m)^2 / (n - 1))

    Args:
      values: one number for each seed.

    Returns:
      (m, s); m is None without values, s is None with fewer than two.
    """
    known = [value for value in values if value is not None]
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return (float(np.mean(known)) if known else None), deviation
