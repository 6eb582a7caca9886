"""Partitions of the training examples among clients, pure functions of labels and seed."""

from collections.abc import Callable

import numpy as np

from jaxfed.partition.checks import Seed
from jaxfed.partition.counts import label_counts
from jaxfed.partition.dirichlet import dirichlet
from jaxfed.partition.heatmap import draw_heatmap, print_heatmap
from jaxfed.partition.iid import iid
from jaxfed.partition.label_quantity import label_quantity
from jaxfed.partition.sharding import sharding

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    'iid': iid,
    'dirichlet': dirichlet,
    'sharding': sharding,
    'label_quantity': label_quantity,
}


def make_partition(
    name: str,
    labels: np.ndarray,
    *,
    num_clients: int,
    seed: Seed,
    alpha: float,
    min_size: int,
    balanced: bool,
    shards_per_client: int,
    labels_per_client: int,
) -> list[np.ndarray]:
    """Partitions the examples by the name of a partition.

    Args:
      name: a key of PARTITIONS.
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      seed: of the partition.
      alpha: of `dirichlet`.
      min_size: of `dirichlet`.
      balanced: of `dirichlet`.
      shards_per_client: of `sharding`.
      labels_per_client: of `label_quantity`.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example once.

    Raises:
      ValueError: if the name is unknown or the partition is impossible.
    """
    own: dict[str, dict[str, float]] = {
        'iid': {},
        'dirichlet': {'alpha': alpha, 'min_size': min_size, 'balanced': balanced},
        'sharding': {'shards_per_client': shards_per_client},
        'label_quantity': {'labels_per_client': labels_per_client},
    }
    if name not in PARTITIONS:
        raise ValueError(f'partition={name!r} is unknown: choose one of {", ".join(PARTITIONS)}.')
    return PARTITIONS[name](labels, num_clients=num_clients, seed=seed, **own[name])


__all__ = [
    'PARTITIONS',
    'dirichlet',
    'draw_heatmap',
    'iid',
    'label_counts',
    'label_quantity',
    'make_partition',
    'print_heatmap',
    'sharding',
]
