"""A grid of names: methods, partitions and other choices, and the parameters that each has."""

import csv
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import jaxfed
from jaxfed.config import Config
from jaxfed.internal import console
from jaxfed.partition import PARTITIONS
from jaxfed.sweeps import grid, outcomes, sweep

SMALL = {'model': 'mlp', 'rounds': 1, 'num_clients': 8, 'clients_per_round': 3, 'local_epochs': 1}


def members_of(text, folder=Path('x'), **settings):
    config = Config(**SMALL, **settings)
    return sweep.expand(config, grid.parse_grid(text, config), 1, folder)


def test_a_combination_has_only_the_parameters_of_its_method_and_partition():
    points = grid.parse_grid('method=fedavg,fedlmd beta=1,3 partition=iid,dirichlet', Config())
    iid, dirichlet = ('partition', 'iid'), ('partition', 'dirichlet')
    assert points == [
        (('method', 'fedavg'), iid),
        (('method', 'fedavg'), dirichlet),
        (('method', 'fedlmd'), ('beta', 1.0), iid),
        (('method', 'fedlmd'), ('beta', 1.0), dirichlet),
        (('method', 'fedlmd'), ('beta', 3.0), iid),
        (('method', 'fedlmd'), ('beta', 3.0), dirichlet),
    ]
    points = grid.parse_grid('alpha=.1,.5 partition=sharding,dirichlet', Config())
    assert points == [
        (('partition', 'sharding'),),
        (('alpha', 0.1), dirichlet),
        (('alpha', 0.5), dirichlet),
    ]


def test_hyperparameters_that_are_given_go_to_the_methods_that_take_them():
    given = {'tau': 2.0, 'fedprox.mu': 0.5}
    members = members_of('method=fedavg,fedprox,fedlmd+fedprox,kd', hyperparameters=given)
    assert [m.config.hyperparameters for m in members] == [
        {}, {'fedprox.mu': 0.5}, given, {'tau': 2.0}
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r'--tau=2\.0: no method or partition of --sweep takes it'):
        members_of('method=fedavg,fedprox', hyperparameters=given)
    with pytest.raises(ValueError, match=r'fedlmd,kd and the settings have no mu|no mu'):
        members_of('method=fedlmd,kd mu=1')


def test_settings_of_an_own_partition_go_to_it(monkeypatch):
    def blocks(labels, *, num_clients, seed, spread: int = 2):
        return np.array_split(np.arange(len(labels)), num_clients)

    monkeypatch.setitem(PARTITIONS, 'blocks', blocks)
    own = {'partition': 'blocks', 'partition_settings': {'spread': 3}}
    members = members_of('partition=iid,blocks', **own)
    assert [m.config.partition_settings for m in members] == [{}, {'spread': 3}]
    members = members_of('partition=iid,blocks spread=4,5')
    assert [m.config.partition_settings for m in members] == [{}, {'spread': 4}, {'spread': 5}]


def test_names_and_choices_are_values_of_their_kind():
    members = members_of('form=linear,squared balanced=true,False optimizer=adam', method='fedssd')
    settings = [
        (m.config.hyperparameters['form'], m.config.balanced, m.config.optimizer) for m in members
    ]
    assert settings == [(f, b, 'adam') for f in ('linear', 'squared') for b in (True, False)]
    assert [Path(m.config.workdir).name for m in members[:2]] == [
        'form-linear_balanced-true_optimizer-adam_seed0',
        'form-linear_balanced-false_optimizer-adam_seed0',
    ]
    (path,) = (m.config.workdir for m in members_of('dataset=hf:someone/set'))
    assert path == 'x/dataset-hf_someone_set_seed0'
    assert sweep.describe(members) == (
        'fedssd: form linear, squared, balanced false to true, optimizer adam, seed 0'
    )
    many = members_of('method=fedlmd beta=1,3 partition=iid,dirichlet')
    assert sweep.describe(many) == 'fedlmd: beta 1 to 3, partition iid, dirichlet, seed 0'


@pytest.mark.parametrize(
    'text, message',
    [
        ('method=fedavg,fedlmdd', r"unknown method 'fedlmdd'; did you mean fedlmd"),
        ('method=fedavg,fedavg', 'method has a value twice'),
        ('method=,fedavg', "unknown method ''"),
        ('partition=iid,shard', r"partition='shard' must be one of iid, dirichlet, client_dir"),
        ('partition=iid,sharding alpha=1', 'but --partition is iid or sharding; remove one'),
        ('method=fedavg,fedlmd beta=x', r"beta='x' must be a number"),
        ('balanced=yes,no', r"balanced='yes' must be true or false"),
        ('aggregation=mean', r"aggregation='mean' must be one of size, uniform"),
        ('augment=none,crop', r'augment is no parameter to sweep over; run once for each'),
        ('npz=a,b', r'npz is no parameter to sweep over'),
    ],
)
def test_invalid_names_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        grid.parse_grid(text, Config())


def outcome(point, final, **counts):
    counts = {'stopped': 0, 'failed': 0, **counts}
    return outcomes.Outcome(tuple(point.items()), final, final, [3] * len(final), **counts)


def test_problems_are_columns_where_they_fit(tmp_path, capsys, monkeypatch):
    results = [
        outcome({'method': 'fedavg', 'partition': 'iid'}, [0.5, 0.7]),
        outcome({'method': 'fedavg', 'partition': 'dirichlet', 'alpha': 0.1}, [0.25]),
        outcome({'method': 'fedlmd', 'beta': 3.0, 'partition': 'iid'}, [0.55, 0.57]),
        outcome(
            {'method': 'fedlmd', 'beta': 3.0, 'partition': 'dirichlet', 'alpha': 0.1},
            [0.75],
            failed=1,
        ),
    ]
    terminal = Console(width=80, highlight=False, markup=False)
    monkeypatch.setattr(console, 'TERMINAL', terminal)
    outcomes.show_outcomes(results, tmp_path, Config())
    shown = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip('┃│').replace('┃', '│').split('│')]
        for line in shown.splitlines()
        if line.startswith(('┃', '│'))
    ]
    assert rows == [
        ['', '', 'dirichlet'],
        ['', 'iid', 'alpha 0.1'],
        ['fedavg', '* 60.00 ± 14.14', '25.00'],
        ['fedlmd, beta 3', '56.00 ± 1.41', '1 failed: 75.00'],
    ]
    words = ' '.join(shown.split())
    assert 'methods on digits: final accuracy in percent on test examples' in words
    assert '*: the highest final accuracy for each value of partition, alpha' in words
    outcomes.write_table(tmp_path / 'sweep.csv', results)
    table = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
    assert [(row['method'], row['beta'], row['alpha']) for row in table] == [
        ('fedavg', '', ''), ('fedavg', '', '0.1'), ('fedlmd', '3', ''), ('fedlmd', '3', '0.1')
    ]  # fmt: skip
    # A narrow terminal has a row for each combination.
    monkeypatch.setattr(console, 'TERMINAL', Console(width=40, highlight=False, markup=False))
    outcomes.show_outcomes(results, tmp_path, Config())
    assert 'in percent' not in ' '.join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_each_run_of_a_grid_of_names_equals_a_single_run(cheap_runs, programs, tmp_path):
    text = 'method=fedavg,fedper partition=iid,dirichlet'
    settings = {'personal_test': 0.2, 'local_eval_every': 1}
    members = members_of(text, tmp_path / 'sweep', **settings)
    results = sweep.run(members, tmp_path / 'sweep')
    assert programs == [2, 2] and [r.judged for r in results] == ['personal'] * 4
    config = Config(
        **SMALL, **settings, method='fedper', partition='iid', workdir=str(tmp_path / 'a')
    )
    alone = jaxfed.simulate(config).summary
    np.testing.assert_allclose(results[2].personal, [alone['personal_accuracy']], 1e-6)
