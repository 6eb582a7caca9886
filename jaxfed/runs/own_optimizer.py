"""Optimizers that a Python program passes as functions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.engine.optimizers import BUILT_IN, OPTIMIZERS, of_gradient
from jaxfed.internal.messages import one_line, user_line


def name_optimizers(configs: Iterable[Config]) -> list[Config]:
    """Registers the functions in `Config.optimizer`; returns the settings with their names.

    Raises:
      ValueError: if an optimizer is neither a name nor a function, a function makes no optimizer,
        or two functions have one name.
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
        _check_steps(f'optimizer: {name}', 'the learning rate', function)
        OPTIMIZERS[name] = of_gradient(function)
    return named


def check_registered(config: Config) -> None:
    """Raises a ValueError if the entry of `OPTIMIZERS` of the settings makes no optimizer."""
    name, function = str(config.optimizer), OPTIMIZERS[str(config.optimizer)]
    if function not in BUILT_IN:
        _check_steps(
            f'OPTIMIZERS[{name!r}]',
            'learning rate, momentum and weight decay',
            lambda rate: function(rate, config.momentum, config.weight_decay),
        )


def _check_steps(place: str, parameters: str, function: Callable[..., Any]) -> None:
    """Traces a step of an optimizer; raises a ValueError in one line if that fails."""

    def step(rate: jax.Array, params: jax.Array) -> Any:
        made = function(rate)
        return made.update(params, made.init(params), params)

    number = jax.ShapeDtypeStruct((), np.float32)
    try:
        jax.eval_shape(step, number, jax.ShapeDtypeStruct((2,), np.float32))
    except Exception as error:  # of any kind, from the user's function
        raise ValueError(
            f'{place}{user_line(error)} must be a function of {parameters} that returns an '
            'optimizer of optax, whose update takes gradients, state and parameters '
            f'({one_line(error)}).'
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
