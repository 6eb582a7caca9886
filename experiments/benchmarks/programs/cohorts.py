"""Cohorts of clients with unequal numbers of examples, and the useful share of their work."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.benchmarks.programs.rounds import CLASSES
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local import steps_per_epoch
from jaxfed.partition import make_partition

CLIENTS, COHORT = 100, 10
BATCH_SIZE, EPOCHS = 50, 5
ALPHAS = (0.05, 0.1, 0.5)


def partition_sizes(alpha: float, seed: int) -> np.ndarray:
    """Examples of each client, [N], of CIFAR-10 partitioned with this alpha."""
    labels = np.repeat(np.arange(CLASSES), 5000)
    parts = make_partition(
        'dirichlet', labels, num_clients=CLIENTS, seed=seed, alpha=alpha, min_size=10
    )
    return np.array([len(part) for part in parts])


def client_steps(sizes: np.ndarray) -> np.ndarray:
    """Local steps of clients with `sizes` examples."""
    return EPOCHS * steps_per_epoch(sizes, BATCH_SIZE)


def shares_of(
    plans: Sequence[Schedule], real: float, *, lanes: int, devices: int
) -> dict[str, Any]:
    """The share of `real` steps in the executed ones, and in the capacity of lanes and devices."""
    capacity = sum(plan.length for plan in plans) * lanes * devices
    return {
        'lanes': lanes,
        'devices': devices,
        'executed': float(real / sum(plan.executed for plan in plans)),
        'busy': float(real / capacity),
    }
