"""The only access to JAX's private modules."""

import importlib
import operator
from typing import Any

import jax


def private_attribute(module: str, name: str) -> Any:
    """An attribute of a module of `jax._src`, by its dotted name.

    Raises:
      ValueError: if the installed JAX does not have it.
    """
    try:
        return operator.attrgetter(name)(importlib.import_module(f'jax._src.{module}'))
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f'--num_processes and --distributed need jax._src.{module}.{name}, which jax '
            f'{jax.__version__} lacks; install jax 0.10.'
        ) from error
