"""A grid of names: methods, partitions and other choices, and the parameters that each has."""

import csv
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from rich.console import Console

import jaxfed
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.partition import PARTITIONS
from jaxfed.report.reading import read_run
from jaxfed.runs import config_flags
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
    with pytest.raises(
        ValueError, match=r'--tau=2\.0, .*: no method or partition of --sweep takes it'
    ):
        members_of('method=fedavg,fedprox', hyperparameters=given)
    with pytest.raises(ValueError, match=r'--method=fedlmd or kd and the settings have no mu\.'):
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
        'fedssd: form linear, squared, balanced true, false, optimizer adam, seed 0'
    )
    many = members_of('method=fedlmd beta=1,3 partition=iid,dirichlet')
    assert sweep.describe(many) == 'fedlmd: beta 1 to 3, partition iid, dirichlet, seed 0'


def test_a_setting_of_a_partition_that_no_swept_one_has_is_refused():
    for given, text in (({'alpha': 0.3}, 'iid,sharding'), ({'shards_per_client': 3}, 'dirichlet')):
        ((name, value),) = given.items()
        with pytest.raises(ValueError, match=f'--{name}={value}, .*: no method or partition of'):
            members_of(f'partition={text}', **given)
        members_of('partition=sharding,dirichlet', **given)
    # Of the flags of a command, those of all partitions are read if partitions are swept over.
    values = flags.FlagValues()
    config_flags.define_flags(values)
    values(['', '--shards_per_client=3', '--sweep=partition=iid,sharding'])
    assert config_flags.from_flags(values).shards_per_client == 3
    values(['', '--sweep=beta=1'])
    with pytest.raises(ValueError, match=r'--shards_per_client=3 belongs to --partition=sharding'):
        config_flags.from_flags(values)


def test_two_values_with_one_work_directory_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r'two experiments would have the work directory .*hf_a_b'):
        members_of('dataset=hf:a/b,hf:a_b', tmp_path)
    assert not list(tmp_path.iterdir())


def test_personal_accuracies_are_those_on_the_examples_of_the_clients(tmp_path, capsys):
    results = [
        outcome({'method': method, 'partition': partition}, [0.5], personal=[0.6 + i / 10])
        for i, method in enumerate(('fedavg', 'ditto'))
        for partition in ('iid', 'dirichlet')
    ]
    judged = [result._replace(judged='personal') for result in results]
    outcomes.show_outcomes(judged, tmp_path, Config())
    words = ' '.join(capsys.readouterr().out.split())
    assert "methods on digits: personal accuracy in percent on the clients' test examples" in words
    assert '70.00' in words and "A choice among these settings uses the clients' test" in words


@pytest.mark.parametrize(
    'text, message',
    [
        ('method=fedavg,fedlmdd', r"unknown method 'fedlmdd'; did you mean fedlmd"),
        ('method=fedavg,fedavg', 'method has a value twice'),
        ('method=,fedavg', "unknown method ''"),
        ('partition=iid,shard', r"partition='shard' must be one of iid, dirichlet, client_dir"),
        ('partition=iid,sharding alpha=1', 'but --partition is iid or sharding; remove one'),
        ('method=fedavg,fedlmd beta=x', r"beta='x' must be a number"),
        ('method=fedlmd,fedlmd+kd tau=1,3', r'2 parts of --method=fedlmd\+kd have tau; use fed'),
        (
            'method=fedssd,feddecorr form=paper',
            "form='paper' must be one of linear, squared for",
        ),
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


def test_one_method_with_personal_models_makes_all_compared_by_them(tmp_path):
    members = members_of('method=fedavg,ditto', tmp_path)

    def judged(personal):
        for member in members:
            folder = Path(member.config.workdir)
            folder.mkdir(exist_ok=True)
            numbers = {'final_accuracy': 0.5, 'best_accuracy': 0.5, 'personal_accuracy': personal}
            files.write_json(folder / 'summary.json', {'failed': False, 'rounds': 1, **numbers})
        return [result.judged for result in outcomes.summarise(members)]

    assert judged(0.6) == ['personal'] * 2
    assert judged(None) == ['final'] * 2
    members = members[:1]  # of FedAvg alone
    assert judged(0.6) == ['final']


@pytest.mark.slow
def test_each_run_of_a_grid_of_names_equals_a_single_run(cheap_runs, programs, tmp_path):
    members = members_of('method=fedavg,kd partition=iid,dirichlet', tmp_path / 'sweep')
    results = sweep.run(members, tmp_path / 'sweep')
    assert programs == [2, 2]
    config = Config(**SMALL, method='kd', partition='iid', workdir=str(tmp_path / 'alone'))
    alone = jaxfed.simulate(config).metrics[-1]['test_loss']
    (ours,) = read_run(Path(members[2].config.workdir)).values('test_loss').values()
    np.testing.assert_allclose(ours, alone, 1e-5)
    assert [result.failed for result in results] == [0] * 4
