"""One sentence for a hyper-parameter outside its range.

Several conditions are joined with `&`, which traced numbers have as well.
"""

from typing import Any

import jax


def check(holds: bool | jax.Array, name: str, value: Any, range_: str) -> None:
    """Raise a ValueError that names the hyper-parameter, its value and its range unless it holds.

    Args:
      holds: whether the value is in range; a traced one passes, its number was checked before.
      name: of the hyper-parameter.
      value: it was given.
      range_: in words, as it follows 'must be'.

    Raises:
      ValueError: if `holds` is false.
    """
    if not isinstance(holds, jax.core.Tracer) and not holds:
        raise ValueError(f'{name}={value} must be {range_}.')


def check_temperature(tau: Any) -> None:
    """Check that a temperature, its square and their inverses are normal float32 numbers.

    Args:
      tau: the temperature.

    Raises:
      ValueError: if it is out of range.
    """
    check((tau >= 1e-18) & (tau <= 1e18), 'tau', tau, 'above 0, from 1e-18 to 1e18')
