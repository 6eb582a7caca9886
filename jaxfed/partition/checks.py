"""Checks of partitions; each raises a ValueError that names the flag to change."""

from typing import Any

import numpy as np

Seed = int | np.random.SeedSequence


def check_least(name: str, value: float, least: int = 1) -> None:
    """Checks that a setting is not below its least value."""
    if value < least:
        raise ValueError(f'--{name} must be at least {least}, got {value}.')


def checked_labels(labels: np.ndarray, num_clients: int) -> np.ndarray:
    """Returns the labels as int64 [n], after checking that each client can have one."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f'labels has shape {labels.shape} and dtype {labels.dtype}: it must be [n] integers.'
        )
    check_least('num_clients', num_clients)
    if num_clients > labels.size:
        raise ValueError(
            f'--num_clients={num_clients} is more than the {labels.size} training examples: choose '
            f'--num_clients from 1 to {labels.size}.'
        )
    if labels.min() < 0:
        raise ValueError(f'labels has the value {labels.min()}: classes must be numbered from 0.')
    return labels.astype(np.int64)


def check_concentration(name: str, alpha: float) -> None:
    """Checks a Dirichlet concentration that the flag `name` sets."""
    # The limits keep 1 / alpha and num_clients * alpha finite.
    if not 1e-100 < alpha < 1e100:
        raise ValueError(
            f'--{name}={alpha} must be a positive, finite number: choose --{name} from about 0.05 '
            '(very skewed) to 100 (hardly skewed).'
        )


def check_min_size(min_size: int, num_clients: int, num_examples: int) -> None:
    """Checks that every client can have `min_size` examples."""
    check_least('min_size', min_size)
    if min_size * num_clients > num_examples:
        raise ValueError(
            f'--min_size={min_size} for each of --num_clients={num_clients} is more than the '
            f'{num_examples} examples: lower --min_size to at most {num_examples // num_clients} '
            'or lower --num_clients.'
        )


def check_labels_per_client(labels_per_client: int, num_clients: int, num_classes: int) -> None:
    """Checks that clients with this number of classes each can hold all classes."""
    if not 1 <= labels_per_client <= num_classes:
        raise ValueError(
            f'--labels_per_client={labels_per_client} with {num_classes} classes: choose '
            f'--labels_per_client from 1 to {num_classes}.'
        )
    if num_clients * labels_per_client < num_classes:
        raise ValueError(
            f'--num_clients={num_clients} with --labels_per_client={labels_per_client} cannot hold '
            f'all {num_classes} classes: raise --labels_per_client to at least '
            f'{-(-num_classes // num_clients)}.'
        )


def check_holders(holds: np.ndarray, classes: np.ndarray, class_sizes: np.ndarray) -> None:
    """Checks that each class [C] has an example for each of its holders, `holds` [N, C] bool."""
    holders = holds.sum(axis=0)
    c = np.argmax(holders - class_sizes)
    if holders[c] > class_sizes[c]:
        raise ValueError(
            f'class {classes[c]} has {class_sizes[c]} examples for the {holders[c]} of '
            f'--num_clients={len(holds)} that hold it with --labels_per_client='
            f'{holds[0].sum()}: lower --num_clients or --labels_per_client.'
        )


def generator(seed: Seed) -> np.random.Generator:
    """Makes the NumPy generator of a seed."""
    if isinstance(seed, int | np.integer):
        check_least('seed', int(seed), 0)
    return np.random.default_rng(seed)


def checked_parts(name: str, parts: Any, num_clients: int, num_examples: int) -> list[np.ndarray]:
    """Returns the result of the partition `name` as int64 arrays, after checking it."""
    rule = f'--partition={name} must return {num_clients} index arrays, one per client'
    if not isinstance(parts, list | tuple | np.ndarray):
        raise ValueError(f'{rule}, got {type(parts).__name__}.')
    if len(parts) != num_clients:
        raise ValueError(f'{rule}, got {len(parts)}.')
    arrays = []
    for i, part in enumerate(parts):
        array = np.asarray(part)
        # NumPy makes a float array of an empty list.
        if array.ndim != 1 or (array.size and array.dtype.kind not in 'iu'):
            raise ValueError(
                f'--partition={name} must return integer arrays [n_i], got shape {array.shape} '
                f'and dtype {array.dtype} for client {i}.'
            )
        arrays.append(array.astype(np.int64, copy=False))
    indices = np.concatenate(arrays)
    if not indices.size:
        raise ValueError(f'--partition={name} must give examples to the clients, got none.')
    outside = indices[(indices < 0) | (indices >= num_examples)]
    if outside.size:
        raise ValueError(
            f'--partition={name} must return indices from 0 to {num_examples - 1}, got '
            f'{outside[0]}.'
        )
    times = np.bincount(indices)
    if times.max() > 1:
        example = times.argmax()
        raise ValueError(
            f'--partition={name} must give an example to one client only, but gives example '
            f'{example} {times[example]} times.'
        )
    return arrays
