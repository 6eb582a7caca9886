"""Optimizers that a Python program passes as functions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.engine.optimizers import OPTIMIZERS, of_gradient
from jaxfed.internal.messages import first_line


def name_optimizers(configs: Iterable[Config]) -> list[Config]:
    """Registers the functions in `Config.optimizer`; returns the settings with their names.

    Raises:
      ValueError: if an optimizer is neither a name nor a function, or two functions have one name.
    """
    functions: dict[str, Any] = {}
    named = []
    for config in configs:
        if not isinstance(config.optimizer, str):
            name = _name_of(config.optimizer)
            if functions.setdefault(name, config.optimizer) is not config.optimizer:
                raise ValueError(
                    f'optimizer: two functions have the name {name}; give each one its own.'
                )
            config = dataclasses.replace(config, optimizer=name)
        named.append(config)
    for name, function in functions.items():
        _check_steps(name, function)
        OPTIMIZERS[name] = of_gradient(function)
    return named


def _check_steps(name: str, function: Callable[..., Any]) -> None:
    """Traces a step of an optimizer; raises a ValueError in one line if that fails."""

    def step(rate: jax.Array, params: jax.Array) -> Any:
        made = function(rate)
        return made.update(params, made.init(params), params)

    number = jax.ShapeDtypeStruct((), np.float32)
    try:
        jax.eval_shape(step, number, jax.ShapeDtypeStruct((2,), np.float32))
    except Exception as error:  # of any kind, from the user's function
        reason = first_line(error)
        raise ValueError(
            f'optimizer: {name} must be a function of the learning rate that returns an optimizer '
            f'of optax, whose update takes gradients, state and parameters ({reason}).'
        ) from error


def _name_of(optimizer: Callable[..., Any]) -> str:
    """'optax.lion', or 'optax.lion(b1=0.8)' for a partial of it."""
    if not callable(optimizer):
        raise ValueError(
            'optimizer must be a name or a function of the learning rate, as optax.lion or '
            f'functools.partial(optax.lion, b1=0.8), got a {type(optimizer).__name__}.'
        )
    made = functools.partial(optimizer)  # flattens a partial
    values = [*map(str, made.args), *(f'{name}={value}' for name, value in made.keywords.items())]
    package = (getattr(made.func, '__module__', None) or '').partition('.')[0]
    name = getattr(made.func, '__qualname__', type(made.func).__name__)
    return f'{package}.{name}' + (f'({", ".join(values)})' if values else '')
