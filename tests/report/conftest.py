"""Shared by the tests of the report."""

import pytest
from markupsafe import Markup

from jaxfed.report import pictures


@pytest.fixture
def no_pictures(monkeypatch):
    """Pages have empty pictures; drawing takes most of a test's time."""
    empty = pictures.SvgPicture(Markup('<svg></svg>'))
    monkeypatch.setattr(pictures, '_svg', lambda figure, words: empty)
