"""Partitions of the training examples among clients, pure functions of data and seed.

`PARTITIONS` maps a name to a function whose keyword-only parameters, but for those that every
partition may be told (`num_clients`, `seed` and `users`), are its settings and flags. To add a
partition of your own, put its function here: `PARTITIONS['mine'] = mine`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxfed.partition.checks import Seed
from jaxfed.partition.client_dirichlet import client_dirichlet
from jaxfed.partition.counts import label_counts
from jaxfed.partition.dirichlet import dirichlet
from jaxfed.partition.extended_dirichlet import extended_dirichlet
from jaxfed.partition.hold_out import hold_out
from jaxfed.partition.iid import iid
from jaxfed.partition.label_noise import NoiseForm, label_noise
from jaxfed.partition.label_quantity import label_quantity
from jaxfed.partition.natural import natural
from jaxfed.partition.quantity import quantity
from jaxfed.partition.sharding import sharding

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    'iid': iid,
    'dirichlet': dirichlet,
    'client_dirichlet': client_dirichlet,
    'extended_dirichlet': extended_dirichlet,
    'sharding': sharding,
    'label_quantity': label_quantity,
    'quantity': quantity,
    'natural': natural,
}

_TOLD = ('labels', 'num_clients', 'seed', 'users')


def partition_settings(name: str) -> dict[str, inspect.Parameter]:
    """The settings of a partition, with their types and defaults.

    Args:
      name: a key of PARTITIONS.

    Returns:
      Name -> inspect.Parameter, in the order of the function's signature.
    """
    parameters = inspect.signature(PARTITIONS[name]).parameters
    return {key: parameter for key, parameter in parameters.items() if key not in _TOLD}


def make_partition(
    name: str,
    labels: np.ndarray,
    *,
    num_clients: int,
    seed: Seed,
    users: np.ndarray | None = None,
    **settings: Any,
) -> list[np.ndarray]:
    """Partitions the examples by the name of a partition.

    Args:
      name: a key of PARTITIONS.
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      seed: of the partition.
      users: [n] integers, who made each training example; None if the dataset does not tell.
      **settings: of the partition, as `partition_settings` lists them.

    Returns:
      N sorted int64 arrays, the examples of each client; together every example once, but for
      `natural`, which may leave users out.

    Raises:
      ValueError: if the name is unknown, a setting is not the partition's or lacks, or the
        partition is impossible.
    """
    if name not in PARTITIONS:
        raise ValueError(f'partition={name!r} is unknown: choose one of {", ".join(PARTITIONS)}.')
    own = partition_settings(name)
    stray = [key for key in settings if key not in own]
    lacking = [key for key, p in own.items() if p.default is p.empty and key not in settings]
    if stray or lacking:
        raise ValueError(
            f'partition={name!r} was given {", ".join(settings) or "no settings"}: it takes '
            f'{", ".join(own) or "none"}, and needs those without a default.'
        )
    if 'users' in inspect.signature(PARTITIONS[name]).parameters:
        settings['users'] = users
    return PARTITIONS[name](labels, num_clients=num_clients, seed=seed, **settings)


__all__ = [
    'PARTITIONS',
    'NoiseForm',
    'client_dirichlet',
    'dirichlet',
    'extended_dirichlet',
    'hold_out',
    'iid',
    'label_counts',
    'label_noise',
    'label_quantity',
    'make_partition',
    'natural',
    'partition_settings',
    'quantity',
    'sharding',
]
