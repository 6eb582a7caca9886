"""Checks of hyper-parameters, with a common message."""

from typing import Any

import jax

from jaxfed.losses._checks import TEMPERATURES


def check(holds: bool | jax.Array, name: str, value: Any, range_: str) -> None:
    """Raises a ValueError with the hyper-parameter's name, value and range unless `holds`.

    Join conditions with `&`, which traced numbers support.
    """
    # Traced numbers were checked before.
    if not isinstance(holds, jax.core.Tracer) and not holds:
        raise ValueError(f'{name} must be {range_}, got {value}.')


def check_temperature(tau: Any) -> None:
    """Checks that a temperature is in the range of `TEMPERATURES`."""
    low, high, range_ = TEMPERATURES
    check((tau >= low) & (tau <= high), 'tau', tau, range_)
