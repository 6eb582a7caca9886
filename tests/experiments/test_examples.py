"""The example scripts run, and stay short."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from experiments import examples
from jaxfed.methods import METHODS
from jaxfed.models import MODELS

FOLDER = Path(examples.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob('*.py') if path.stem != '__init__')


@pytest.fixture
def run(cheap_runs, tmp_path, monkeypatch):
    """Runs the main function of an example in a new folder."""
    monkeypatch.chdir(tmp_path)
    for registry in (METHODS, MODELS):
        for name in ('confidence', 'residual'):
            monkeypatch.setitem(registry, name, None)
            monkeypatch.delitem(registry, name)
    return lambda name, **keywords: importlib.import_module(f'experiments.examples.{name}').main(
        **keywords
    )


@pytest.mark.parametrize('name', NAMES)
def test_every_example_is_short_and_names_its_command(name):
    lines = (FOLDER / f'{name}.py').read_text().splitlines()
    assert len(lines) < 60
    assert lines[0].endswith(f'python -m experiments.examples.{name}."""')


@pytest.mark.slow
def test_own_data(run, capsys):
    result = run('own_data', rounds=3)
    assert len(result.metrics) == 3
    assert 'final accuracy' in capsys.readouterr().out


@pytest.mark.slow
def test_own_network(run):
    assert run('own_network', rounds=1).keys() == {'mlp', 'residual'}


@pytest.mark.slow
def test_own_method(run, capsys):
    accuracies = run('own_method', rounds=1, seeds=2)
    assert [len(values) for values in accuracies.values()] == [2, 2, 2]
    assert 'confidence   final accuracy' in capsys.readouterr().out
    again = run('own_method', rounds=1, seeds=2)  # reads the finished runs
    np.testing.assert_array_equal(list(again.values()), list(accuracies.values()))


@pytest.mark.slow
def test_sweep_report(run, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(FOLDER.parents[1]))
    page = run('sweep_report', rounds=1, seeds=1)
    assert page.read_text().startswith('<!DOCTYPE html>')


def test_partition_map(run, tmp_path):
    counts = run('partition_map')
    assert counts.shape == (3, 20, 10)
    assert len(set(counts.sum(axis=(1, 2)))) == 1  # every example is dealt once
    assert (tmp_path / 'runs/partition_map.png').stat().st_size > 5000


@pytest.mark.slow
def test_load_model(run, capsys):
    assert run('load_model', rounds=2).sum() > 0
    assert 'are taken for a' in capsys.readouterr().out
