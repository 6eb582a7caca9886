"""Every test of datasets has a separate cache."""

import pytest


@pytest.fixture(autouse=True)
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    return tmp_path / 'cache'
