"""Checks of the arguments that the losses share; all are static and cost nothing under jit."""

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
    """Raises a ValueError that names the first argument whose shape does not go with `logits`.

    Args:
      logits: [B, C].
      same: arguments that must be [B, C], by name.
      labels: integers [B].
      classes: arguments that must be [C], by name.
      where: bool [B].
    """
    shape = jnp.shape(logits)
    if not shape:
        raise ValueError('logits is a scalar; give an array [B, C].')
    wanted = {name: (array, shape) for name, array in (same or {}).items()}
    wanted |= {name: (array, shape[-1:]) for name, array in (classes or {}).items()}
    if labels is not None:
        wanted['labels'] = (labels, shape[:-1])
        if not jnp.issubdtype(jnp.result_type(labels), jnp.integer):
            raise ValueError(f'labels is {jnp.result_type(labels)}; give class numbers (integers).')
    if where is not None:
        wanted['where'] = (where, shape[:-1])
        check_bool(where=where)
    for name, (array, expected) in wanted.items():
        if jnp.shape(array) != expected:
            raise ValueError(
                f'{name} has shape {jnp.shape(array)}; logits of shape {shape} need {expected}.'
            )


def check_bool(**arguments: ArrayLike) -> None:
    """Raises a ValueError that names an argument which is not boolean."""
    for name, array in arguments.items():
        if not jnp.issubdtype(jnp.result_type(array), jnp.bool_):
            raise ValueError(f'{name} is {jnp.result_type(array)}; give booleans.')


def check_number(name: str, value: float | Array, low: float, high: float, range_: str) -> None:
    """Raises a ValueError unless low <= value <= high; arrays, which may be traced, pass unchecked.

    Args:
      name: of the argument.
      value: a Python number or an array.
      low: least value.
      high: greatest value.
      range_: in words, as it follows 'must be'.
    """
    if isinstance(value, Real) and not low <= value <= high:
        raise ValueError(f'{name}={value} must be {range_}.')


def check_temperature(temperature: float | Array) -> None:
    """Raises a ValueError if `temperature` is a Python number that is not finite and above 0."""
    tiny, huge = sys.float_info.min, sys.float_info.max
    check_number('temperature', temperature, tiny, huge, 'finite and above 0')
