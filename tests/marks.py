"""Parameters of tests that only the full suite tries."""

import pytest


def slow(*values):
    """The values of a parameter set that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def only_fast(values, *fast):
    """The values as parameters; those that are not in `fast` are marked slow."""
    return [value if value in fast else slow(value) for value in values]
