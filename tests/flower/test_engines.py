"""Flower's own engines, as processes on this machine, give the result of a simulation."""

import pytest

from experiments.stress import flower


@pytest.mark.slow
@pytest.mark.parametrize(
    ('engine', 'method'), [('simulation', 'fedcad'), ('deployment', 'scaffold')]
)
def test_engine_equals_simulation(engine, method, tmp_path, cheap_runs):
    assert flower.compare(engine, [method], tmp_path)[method] < 1e-5
