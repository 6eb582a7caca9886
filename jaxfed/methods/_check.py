"""Checks of hyper-parameters, with a common message."""

from typing import Any

import jax


def check(holds: bool | jax.Array, name: str, value: Any, range_: str) -> None:
    """Raises a ValueError with the hyper-parameter's name, value and range unless `holds`.

    Join conditions with `&`, which traced numbers support.
    """
    # Traced numbers were checked before.
    if not isinstance(holds, jax.core.Tracer) and not holds:
        raise ValueError(f'{name} must be {range_}, got {value}.')


def check_temperature(tau: Any) -> None:
    """Checks that a temperature, its square and their inverses are normal float32 numbers."""
    check((tau >= 1e-18) & (tau <= 1e18), 'tau', tau, 'above 0, from 1e-18 to 1e18')
