"""Warnings before training."""

import dataclasses
from unittest import mock

import pytest

import jaxfed
from jaxfed import Config
from jaxfed.runs import dry_run, notices
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.notices import ineffective, show_notices
from jaxfed.sweeps import grid, sweep

SWITCHED = {'method': 'fedavg,fedlmd', 'model': 'mlp'}


def shown(capsys):
    return [' '.join(line.split()) for line in capsys.readouterr().err.splitlines()]


def test_what_never_trains_or_is_read_is_named():
    def warned(**settings):
        return ineffective(make_experiment(Config(model='mlp', **settings)))

    assert not warned() and not warned(accumulate_steps=5)  # an epoch has a batch or more
    (text,) = warned(accumulate_steps=10)
    sizes = make_experiment(Config(model='mlp')).dealt.size
    still = sum(5 * -(-sizes // Config.batch_size) < 10)
    assert 0 < still < 20
    assert text.startswith(f'--accumulate_steps=10 is more than the batches of {still} of 20 cl')
    assert warned(data_dir='DIR') == ['--data_dir=DIR is not read: --dataset=digits.']
    both = {'method': 'fedavg,fedlmd', 'rounds': 3}
    assert not warned(switch_round=2, **both)
    assert warned(switch_round=3, **both) == [
        '--switch_round=3 is not below --rounds=3, so the second method does not train.'
    ]


def test_each_warning_of_a_sweep_is_shown_once(capsys):
    late = [
        make_experiment(Config(rounds=rounds, switch_round=5, data_dir='DIR', **SWITCHED))
        for rounds in (4, 4, 6)
    ]
    show_notices(late)
    text = ' '.join(shown(capsys))
    assert text.count('warning: ') == 2
    assert '2 of 3 experiments: --switch_round=5 is not below --rounds=4, so' in text
    assert 'warning: --data_dir=DIR is not read: --dataset=digits.' in text  # of all three


def test_few_warnings_are_shown(capsys, monkeypatch):
    monkeypatch.setattr(notices, 'missing_classes', lambda dealt: [])
    monkeypatch.setattr(notices, 'ineffective', lambda number: [f'text {number}'])

    class Numbered(int):
        dealt = None

    show_notices([Numbered(i) for i in range(8)])
    lines = shown(capsys)
    assert lines[0] == 'warning: 1 of 8 experiments: text 0' and len(lines) == 6
    assert lines[-1] == 'warning: 3 more warnings not shown.'


def simulate_both(config, folder, quiet):
    configs = {'a': config, 'b': dataclasses.replace(config, learning_rate=0.02)}
    jaxfed.simulate_all(configs, folder, quiet=quiet)


def sweep_both(config, folder, quiet):
    points = grid.parse_grid('learning_rate=0.01,0.02', config)
    sweep.run(sweep.expand(config, points, 1, folder), folder, quiet=quiet)


@pytest.mark.slow
@pytest.mark.parametrize('train', [simulate_both, sweep_both])
def test_experiments_that_share_a_program_are_warned_of(train, cheap_runs, tmp_path, capsys):
    config = Config(rounds=1, switch_round=1, num_clients=3, clients_per_round=2, **SWITCHED)
    train(config, tmp_path / 'quiet', quiet=True)
    assert not shown(capsys)
    train(config, tmp_path / 'shown', quiet=False)
    assert ' '.join(shown(capsys)).count('so the second method does not train') == 1


@pytest.mark.parametrize('leads', [True, False])
def test_one_of_several_processes_warns_in_a_dry_run(leads, monkeypatch, capsys):
    for name in ('prepare', 'memory_errors', 'time_round', 'describe_dry_run'):
        monkeypatch.setattr(dry_run, name, mock.MagicMock())
    monkeypatch.setattr(dry_run.display, 'show_dry_run', mock.MagicMock())
    monkeypatch.setattr(dry_run.distributed, 'is_leader', lambda: leads)
    dry_run.show_dry_run(make_experiment(Config(model='mlp', data_dir='DIR')))
    assert ' '.join(shown(capsys)).count('--data_dir=DIR is not read') == leads
