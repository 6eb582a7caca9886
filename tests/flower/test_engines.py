"""Flower's own engines, as processes on this machine, give the result of a simulation."""

import pytest

from experiments.stress import flower


@pytest.mark.slow
@pytest.mark.parametrize(
    ('engine', 'method'), [('simulation', 'fedcad'), ('deployment', 'scaffold')]
)
def test_engine_equals_simulation(engine, method, tmp_path, cheap_runs, monkeypatch):
    # Every message to a client starts a process. One client is in both rounds.
    monkeypatch.setitem(flower.SETTINGS, 'rounds', 2)
    monkeypatch.setitem(flower.SETTINGS, 'clients_per_round', 2)
    assert flower.compare(engine, [method], tmp_path)[method] < 1e-5
