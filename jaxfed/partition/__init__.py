"""Partitions of the training examples among clients, pure functions of data and seed.

`PARTITIONS` maps a name to a function. The keyword-only parameters of the function are its settings
and flags, except `num_clients`, `seed`, `users` and `dealt`, which the caller passes. To add a
partition, register a function: `PARTITIONS['mine'] = mine`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxfed.internal.messages import locate_errors
from jaxfed.internal.type_checks import checked_parameters
from jaxfed.partition.checks import Seed, checked_parts
from jaxfed.partition.client_dirichlet import client_dirichlet
from jaxfed.partition.counts import LabelSkew, label_counts, label_skew, one_class_share
from jaxfed.partition.dirichlet import dirichlet
from jaxfed.partition.extended_dirichlet import extended_dirichlet
from jaxfed.partition.fedntd import fedntd_dirichlet, fedntd_sharding
from jaxfed.partition.file import file, read_indices
from jaxfed.partition.flower import from_flower, to_flower
from jaxfed.partition.hold_out import hold_out
from jaxfed.partition.iid import iid
from jaxfed.partition.label_noise import NoiseForm, label_noise
from jaxfed.partition.label_quantity import label_quantity
from jaxfed.partition.long_tail import long_tail
from jaxfed.partition.natural import natural
from jaxfed.partition.quantity import quantity
from jaxfed.partition.sharding import sharding

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    function.__name__: function
    for function in (
        iid, dirichlet, client_dirichlet, extended_dirichlet, sharding, label_quantity, quantity,
        natural, fedntd_dirichlet, fedntd_sharding, file,
    )
}  # fmt: skip

_COMMON = ('labels', 'num_clients', 'seed', 'users', 'dealt')  # the caller passes these


def partition_settings(name: str) -> Mapping[str, inspect.Parameter]:
    """Lists the settings of a partition, with their types and defaults.

    Args:
      name: a key of PARTITIONS.

    Returns:
      Name -> inspect.Parameter, in the order of the function's signature.

    Raises:
      ValueError: if a setting has a type that a flag cannot have.
    """
    return checked_parameters(PARTITIONS[name], f'PARTITIONS[{name!r}]', without=_COMMON)


def make_partition(
    name: str,
    labels: np.ndarray,
    *,
    num_clients: int,
    seed: Seed,
    users: np.ndarray | None = None,
    dealt: np.ndarray | None = None,
    **settings: Any,
) -> list[np.ndarray]:
    """Partitions the examples by the partition `name`.

    Args:
      name: a key of PARTITIONS.
      labels: [n] integers, the class of each training example.
      num_clients: number of clients N.
      seed: random seed of the partition.
      users: [n] integers, the user of each training example; None if the dataset has no users.
      dealt: [m] bool, which examples of the training data `labels` has; None for all.
      **settings: settings of the partition, see `partition_settings`.

    Returns:
      N int64 arrays, the examples of each client. Every example has one client, except with
      `natural`, which may omit users, and with `file` and registered functions, which may omit
      examples.

    Raises:
      ValueError: if the name is unknown, a setting is unknown or missing, the partition is
        impossible, or the function fails or returns anything else than disjoint index arrays.
    """
    if name not in PARTITIONS:
        raise ValueError(f'--partition={name} is unknown: choose one of {", ".join(PARTITIONS)}.')
    known = partition_settings(name)
    required = {key for key, p in known.items() if p.default is p.empty}
    if not required <= settings.keys() <= known.keys():
        raise ValueError(
            f'--partition={name} got {", ".join(settings) or "no settings"}: it takes '
            f'{", ".join(known) or "none"}, and requires those without a default.'
        )
    function = PARTITIONS[name]
    arguments = {'num_clients': num_clients, 'seed': seed, **settings}
    everything = np.ones(len(labels), bool) if dealt is None else dealt
    passed = {'users': users, 'dealt': everything}
    arguments |= {k: v for k, v in passed.items() if k in inspect.signature(function).parameters}
    try:
        inspect.signature(function).bind(labels, **arguments)
    except TypeError as error:
        raise ValueError(
            f'--partition={name} must take labels and, as keywords, num_clients, seed and its '
            f'settings: {error}.'
        ) from error
    with locate_errors(f'PARTITIONS[{name!r}]'):
        parts = function(labels, **arguments)
    return checked_parts(name, parts, num_clients, len(labels))


__all__ = [
    'PARTITIONS',
    'LabelSkew',
    'NoiseForm',
    'client_dirichlet',
    'dirichlet',
    'extended_dirichlet',
    'fedntd_dirichlet',
    'fedntd_sharding',
    'file',
    'from_flower',
    'hold_out',
    'iid',
    'label_counts',
    'label_noise',
    'label_quantity',
    'label_skew',
    'long_tail',
    'make_partition',
    'natural',
    'one_class_share',
    'partition_settings',
    'quantity',
    'read_indices',
    'sharding',
    'to_flower',
]
