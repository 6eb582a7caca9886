"""Parameters of tests that only the full suite tries."""

import pytest


def only_fast(values, *fast):
    """The values as parameters; those that are not in `fast` are marked slow."""
    slow = pytest.mark.slow
    return [v if v in fast else pytest.param(v, marks=slow) for v in values]
