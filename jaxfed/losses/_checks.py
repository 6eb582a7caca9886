"""Checks of the losses' arguments; all are static, so they cost nothing under jit."""

import sys
from numbers import Real

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array


def check_shapes(
    logits: ArrayLike,
    *,
    same: dict[str, ArrayLike] | None = None,
    labels: ArrayLike | None = None,
    classes: dict[str, ArrayLike] | None = None,
    where: ArrayLike | None = None,
) -> None:
    """Checks that `same` [B, C], labels [B], `classes` [C] and where [B] match logits [B, C]."""
    shape = jnp.shape(logits)
    if not shape:
        raise ValueError('logits is a scalar; it must be an array [B, C].')
    expected = {name: (array, shape) for name, array in (same or {}).items()}
    expected |= {name: (array, shape[-1:]) for name, array in (classes or {}).items()}
    if labels is not None:
        expected['labels'] = labels, shape[:-1]
        if not jnp.issubdtype(jnp.result_type(labels), jnp.integer):
            raise ValueError(f'labels is {jnp.result_type(labels)}; it must be integers.')
    if where is not None:
        expected['where'] = where, shape[:-1]
        check_bool(where=where)
    for name, (array, expected_shape) in expected.items():
        if jnp.shape(array) != expected_shape:
            raise ValueError(
                f'{name} has shape {jnp.shape(array)}; it must be {expected_shape} for logits of '
                f'shape {shape}.'
            )


def check_bool(**arguments: ArrayLike) -> None:
    """Checks that the named arguments are boolean."""
    for name, array in arguments.items():
        if not jnp.issubdtype(jnp.result_type(array), jnp.bool_):
            raise ValueError(f'{name} is {jnp.result_type(array)}; it must be boolean.')


def check_number(name: str, value: float | Array, low: float, high: float, range_: str) -> None:
    """Checks that low <= value <= high; arrays, which may be traced, are not checked."""
    if isinstance(value, Real) and not low <= value <= high:
        raise ValueError(f'{name}={value} must be {range_}.')


def check_temperature(temperature: float | Array) -> None:
    """Checks that a temperature is finite and above 0."""
    tiny, huge = sys.float_info.min, sys.float_info.max
    check_number('temperature', temperature, tiny, huge, 'finite and above 0')
