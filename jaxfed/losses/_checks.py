"""Checks of the losses' arguments; under jit they run only while tracing."""

from numbers import Real
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array

# argument -> the part of the logits' shape [..., B, C] that it must have
_SHAPES = {
    **dict.fromkeys(('teacher_logits', 'channel_weights'), slice(None)),
    **dict.fromkeys(('labels', 'where'), slice(-1)),
    **dict.fromkeys(('class_weights', 'class_margins', 'majority'), slice(-1, None)),
}
_TYPES: dict[str, tuple[Any, str]] = {
    'labels': (jnp.integer, 'integers'),
    'where': (jnp.bool_, 'boolean'),
    'majority': (jnp.bool_, 'boolean'),
}


def check_arrays(logits: ArrayLike, **arguments: ArrayLike | None) -> None:
    """Checks that arguments have the types that their names need, and match logits [B, C]."""
    shape = jnp.shape(logits)
    if not shape:
        raise ValueError('logits is a scalar; it must be an array [B, C].')
    for name, array in arguments.items():
        if array is None:
            continue
        kind, words = _TYPES.get(name, (jnp.generic, ''))
        if not jnp.issubdtype(jnp.result_type(array), kind):
            raise ValueError(f'{name} is {jnp.result_type(array)}; it must be {words}.')
        if jnp.shape(array) != shape[_SHAPES[name]]:
            raise ValueError(
                f'{name} has shape {jnp.shape(array)}; it must be {shape[_SHAPES[name]]} for '
                f'logits of shape {shape}.'
            )


def check_number(name: str, value: float | Array, low: float, high: float, range_: str) -> None:
    """Checks that low <= value <= high; skips arrays, which may be traced."""
    if isinstance(value, Real) and not low <= value <= high:
        raise ValueError(f'{name} must be {range_}, got {value}.')


# Of a temperature; beyond, a divergence times its square is rounding, or gradients are not finite.
TEMPERATURES = 1e-4, 1e3, 'above 0, from 1e-4 to 1e3'


def check_temperature(temperature: float | Array) -> None:
    """Checks that a temperature is in the range of `TEMPERATURES`."""
    check_number('temperature', temperature, *TEMPERATURES)
