"""The command line: its files and its errors."""

import dataclasses
import functools
import json
import math
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from jaxfed import Config, Method, main
from jaxfed.config import PATHS
from jaxfed.engine import devices
from jaxfed.internal import signals
from jaxfed.methods import METHODS
from jaxfed.metrics.measures import MEASURES
from jaxfed.recording import run_files
from jaxfed.report.__main__ import main as report
from jaxfed.runs import checks, config_flags, deal, simulate


@pytest.fixture(scope='module', autouse=True)
def defined_flags():
    if 'method' not in flags.FLAGS:
        config_flags.define_flags()


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs a command line in this process; returns its exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')  # nothing is left behind

    def run(*arguments):
        with flagsaver.flagsaver():
            flags.FLAGS.unparse_flags()
            left = flags.FLAGS(['jaxfed', *arguments])
            return main.main(left)

    return run


def make_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        'x_train': rng.integers(0, 256, (120, 6, 6, 1)).astype(np.uint8),
        'y_train': np.arange(120, dtype=np.int64) % 3,
        'x_test': rng.integers(0, 256, (30, 6, 6, 1)).astype(np.uint8),
        'y_test': np.arange(30, dtype=np.int64) % 3,
    }
    np.savez(path, **{**arrays, **changes})
    return path


SMALL = ('--model=mlp', '--rounds=3', '--num_clients=4', '--clients_per_round=2', '--alpha=1')


def test_a_run_writes_its_records(true_pictures, command, tmp_path, capsys):
    make_npz(tmp_path / 'tiny.npz')
    status = command(
        '--method=fedlmd+fedprox', '--tau=2', '--mu=.01', '--dataset=npz', '--npz=tiny.npz',
        '--workdir=out', '--target_accuracy=.01', '--lr_decay=.5', *SMALL,
    )  # fmt: skip
    assert status == 0
    out = tmp_path / 'out'
    names = {'config.json', 'metrics.jsonl', 'partition.json', 'summary.json', 'model.safetensors'}
    names |= {'accuracy.png', 'partition.png'}
    assert {path.name for path in out.glob('[!.]*')} == names
    settings = json.loads((out / 'config.json').read_text())
    assert settings['rounds'] == 3
    assert settings['seed'] == 0
    assert settings['versions']['jax']
    assert settings['device']['platform']
    assert settings['method_parts'] == [
        {'name': 'fedlmd', 'hyperparameters': {'beta': 1.0, 'tau': 2.0}, 'phase': 0},
        {'name': 'fedprox', 'hyperparameters': {'mu': 0.01}, 'phase': 0},
    ]
    lines = [json.loads(line) for line in (out / 'metrics.jsonl').read_text().splitlines()]
    assert [line['round'] for line in lines] == [1, 2, 3]
    assert [line['learning_rate'] for line in lines] == [0.01, 0.005, 0.0025]
    keys = {'round', 'test_accuracy', 'test_loss', 'class_accuracy', 'train_loss', 'seconds'}
    times = {'evaluation_seconds', 'local_evaluation_seconds'}
    local = {'local_accuracy', 'personal_accuracy', 'personal_global_accuracy'}
    assert set(lines[0]) == keys | times | local | {'learning_rate', 'clients'}
    assert len(lines[0]['class_accuracy']) == 3
    assert np.isclose(np.mean(lines[0]['class_accuracy']), lines[0]['test_accuracy'], atol=1e-5)
    summary = json.loads((out / 'summary.json').read_text())
    accuracies = [line['test_accuracy'] for line in lines]
    assert summary['final_accuracy'] == accuracies[-1]
    assert summary['best_accuracy'] == max(accuracies)
    assert summary['best_round'] == 1 + accuracies.index(max(accuracies))
    first, second, third = accuracies
    moving = [first, second := 0.6 * first + 0.4 * second, 0.6 * second + 0.4 * third]
    assert np.isclose(summary['last10_accuracy'], np.mean(accuracies))
    assert np.isclose(summary['moving_accuracy'], moving[-1])
    assert np.isclose(summary['best_moving_accuracy'], max(moving))
    assert summary['rounds_to_target'] == 1
    assert summary['method'] == 'fedlmd+fedprox'
    for key in ('dataset', 'rounds', 'seconds_total', 'seconds_per_round', 'compile_seconds'):
        assert summary[key]
    assert summary['client_steps_per_second'] > 0
    shown = capsys.readouterr().out
    assert 'round    3/3' in shown
    assert 'summary.json' in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_a_sweep_from_the_command_line(command, tmp_path, capsys):
    make_npz(tmp_path / 'tiny.npz')
    arguments = (
        '--method=fedprox', '--sweep=mu=.1,1 learning_rate=.01,.1', '--seeds=2', '--validation=.2',
        '--halving=1', '--dataset=npz', '--npz=tiny.npz', '--workdir=out', *SMALL,
    )  # fmt: skip
    assert command(*arguments, '--dry_run') == 0
    shown = ' '.join(capsys.readouterr().out.split())
    assert 'mu 0.1 to 1, learning_rate 0.01 to 0.1, 2 seeds: 8 experiments at once' in shown
    assert 'Nothing was trained' in shown and not (tmp_path / 'out').exists()
    assert command(*arguments) == 0
    assert len(re.findall(r' 1 │ stopped early │', capsys.readouterr().out)) == 2
    names = {path.name for path in (tmp_path / 'out').glob('[!.]*')}
    assert 'mu0.1_learning_rate0.01_seed1' in names and len(names) == 8 + 2
    assert {'sweep.csv', 'sweep.json'} <= names
    assert report([*map(str, (tmp_path / 'out').glob('*/')), '--output=page.html']) == 0
    page = (tmp_path / 'page.html').read_text()
    assert 'stopped early, 1 of 3 rounds' in page and 'mu' in page
    for flags_, message in (
        (('--together=-1',), '--together must be at least 1, or 0 to choose, got -1'),
        (('--resume',), '--resume=True: a sweep always continues'),
        (('--halving=3',), '--halving must be rounds below --rounds=3'),
    ):
        assert command(*arguments, *flags_) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ('settings', 'swept', 'message'),
    [
        ({'label_noise_form': 'uniform'}, 'label_noise=.2,.4', 'needs --label_noise'),
        ({'schedule': 'step', 'lr_decay': 0.5}, 'lr_step=1,2', 'needs --lr_step'),
        ({'attack_scale': 2.0}, 'malicious=.1,.3', 'is for malicious clients'),
        ({'clients_per_round': 30}, 'num_clients=40,50', 'must be at most --num_clients=20'),
    ],
)
def test_a_sweep_replaces_settings_before_they_are_checked(settings, swept, message):
    made = Config(**settings)
    main.check_settings(made, sweep_=swept)
    with pytest.raises(ValueError, match=message):
        main.check_settings(made, sweep_='')


@pytest.mark.slow
def test_a_sweep_with_recorded_divergence_ends_with_status_0(cheap_runs, command, tmp_path):
    arguments = '--method=fedavg', '--model=mlp', '--rounds=2', '--learning_rate=1e6', '--seeds=2'
    assert command(*arguments, '--workdir=ended') == 1
    assert command(*arguments, '--workdir=recorded', '--on_divergence=record') == 0


@pytest.mark.slow
def test_same_seed_same_metrics_other_method_same_partition(true_pictures, tmp_path):
    import jaxfed

    path = str(make_npz(tmp_path / 'tiny.npz'))

    def run(name, **changes):
        settings = {
            'dataset': 'npz', 'npz': path, 'model': 'mlp', 'rounds': 2, 'num_clients': 5,
            'clients_per_round': 2, 'alpha': 0.5, 'workdir': str(tmp_path / name), **changes,
        }  # fmt: skip
        made = jaxfed.Config(**settings)
        metrics = jaxfed.simulate(made).metrics
        return [{k: v for k, v in line.items() if 'seconds' not in k} for line in metrics]

    first = run('a')
    assert run('b') == first
    assert run('c', seed=1) != first
    assert run('d', method='fedprox') != first
    pictures = [(tmp_path / name / 'partition.png').read_bytes() for name in 'abd']
    assert pictures[0] == pictures[1] == pictures[2]


@pytest.mark.slow
def test_evaluation_runs_only_in_the_chosen_rounds(cheap_runs, command, tmp_path):
    make_npz(tmp_path / 'tiny.npz')
    arguments = ('--method=fedavg', '--dataset=npz', '--npz=tiny.npz', '--rounds=5', *SMALL[:1])
    arguments += SMALL[2:]
    assert command(*arguments, '--workdir=all') == 0
    assert command(*arguments, '--workdir=some', '--eval_every=2', '--local_eval_every=3') == 0
    every, some = (
        [json.loads(line) for line in (tmp_path / name / 'metrics.jsonl').read_text().splitlines()]
        for name in ('all', 'some')
    )
    # The last round is always evaluated, and what is evaluated does not change training.
    tested = [line['test_accuracy'] for line in every]
    assert [line['test_accuracy'] for line in some] == [None, tested[1], None, *tested[3:]]
    assert [line['train_loss'] for line in some] == [line['train_loss'] for line in every]
    assert [line['local_accuracy'] is None for line in some] == [True, True, False, True, False]
    summary = json.loads((tmp_path / 'some' / 'summary.json').read_text())
    assert summary['local_accuracy'] == some[-1]['local_accuracy']
    assert 0 < summary['local_evaluation_share'] < 1
    assert summary['final_accuracy'] == tested[-1]


def test_average_local_accuracy_of_one_client_is_the_servers(cheap_runs, command, tmp_path):
    make_npz(tmp_path / 'tiny.npz')
    status = command(
        '--method=fedavg', '--dataset=npz', '--npz=tiny.npz', '--model=mlp', '--rounds=2',
        '--num_clients=3', '--clients_per_round=1', '--partition=iid', '--local_eval_every=1',
        '--workdir=out',
    )  # fmt: skip
    assert status == 0
    for line in (tmp_path / 'out' / 'metrics.jsonl').read_text().splitlines():
        assert json.loads(line)['local_accuracy'] == json.loads(line)['test_accuracy']


@pytest.mark.slow
def test_compiled_programs_are_kept(tmp_path):
    def start(*flags, **environment):
        command = [sys.executable, '-m', 'jaxfed.main', '--method=fedavg', '--model=mlp']
        command += ['--devices=1', '--lanes=1', '--local_epochs=1']
        environment = {**os.environ, 'JAXFED_CACHE_DIR': str(tmp_path / 'cache'), **environment}
        environment.pop('JAX_COMPILATION_CACHE_DIR', None)
        subprocess.run([*command, '--rounds=1', *flags], cwd=tmp_path, env=environment, check=True)

    kept = tmp_path / 'cache' / 'compiled'
    start('--workdir=b')
    names = {path.name for path in kept.glob('*jit_train*')}
    assert names
    start('--workdir=c')
    assert {path.name for path in kept.glob('*jit_train*')} == names
    b, c = ((tmp_path / name / 'metrics.jsonl').read_text() for name in 'bc')
    assert json.loads(b)['test_loss'] == json.loads(c)['test_loss']


def test_compiled_programs_are_kept_only_if_requested(command, monkeypatch):
    kept = []
    monkeypatch.setattr(main, 'keep_programs', lambda: kept.append(True))
    wrong = '--workdir=/proc/jaxfed'  # so that nothing is trained
    assert command('--nocompilation_cache', wrong) == 2
    assert not kept
    assert command(wrong) == 2
    assert kept == [True]


def test_auxiliary_data_belongs_to_no_client(tmp_path):
    import jaxfed
    from jaxfed.runs.experiment import set_up

    path = str(make_npz(tmp_path / 'tiny.npz'))
    settings = jaxfed.Config(
        method='fedcad', dataset='npz', npz=path, model='mlp', num_clients=4, clients_per_round=2,
        alpha=1.0, auxiliary_per_class=5, workdir=str(tmp_path / 'out'),
    )  # fmt: skip
    experiment = set_up(settings).dealt
    held = np.concatenate([*experiment.partition, experiment.auxiliary])
    assert np.array_equal(np.sort(held), np.arange(120))
    labels = experiment.dataset.y_train[experiment.auxiliary]
    assert np.bincount(labels).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--method=fedlmb'], "unknown method 'fedlmb'"),
        (['--method=FedLMD'], "unknown method 'FedLMD'; did you mean fedlmd? --method=list"),
        (['--method=fedavg', '--mu=.1'], '--mu=0.1: --method=fedavg takes no such'),
        (['--method=fedlmd', '--fedprox.mu=.1'], '--fedprox.mu=0.1'),
        (['--method=fedlmd+kd', '--tau=2'], '--fedlmd.tau or --kd.tau'),
        (['--method=fedlmd', '--fedlmd.beta=1', '--beta=2'], '--fedlmd.beta=1.0'),
        (['--method=fedlmd', '--tau=inf'], 'tau must be a finite number'),
        (
            ['--method=fedlmd', '--tau=1e-320'],
            'tau must be above 0, from 1e-4 to 1e3, got 1e-320',
        ),
        (['--method=kd', '--beta=inf'], 'beta must be a finite number'),
        (['--learning_rate=inf'], '--learning_rate must be a finite number'),
        (['--method=fedlmd', '--tau=0'], 'tau must be above 0, from 1e-4 to 1e3, got 0.0'),
        (['--alpha=0'], '--alpha must be positive, got 0.0'),
        (['--alpha=-1'], '--alpha must be positive, got -1.0'),
        (['--alpha=.1', '--partition=iid'], '--alpha=0.1 belongs to --partition=dirichlet'),
        (['--partition=iid', '--num_clients=5000', '--clients_per_round=5'], 'num_clients=5000'),
        (['--min_size=400'], 'min_size=400'),
        (
            ['--clients_per_round=30'],
            '--clients_per_round must be at most --num_clients=20, got 30',
        ),
        (['--eval_every=0'], '--eval_every must be at least 1, got 0'),
        (
            ['--local_eval_every=-1'],
            '--local_eval_every must be at least 1, or 0 for never, got -1',
        ),
        (['--measure=drfit'], "--measure=drfit names 'drfit': choose from forgetting"),
        (['--measure=forgeting'], "'all' or 'none'; did you mean forgetting?"),
        (['--measure=drift'], '--measure=drift evaluates local models, but --local_eval_every=0'),
        (
            ['--confusion_clients=0'],
            '--confusion_clients=0 needs --measure=confusion, got --measure=none',
        ),
        (['--batch_size=0'], '--batch_size must be at least 1, got 0'),
        (['--rounds=0'], '--rounds must be at least 1, got 0'),
        (['--learning_rate=-1'], '--learning_rate must be positive, got -1.0'),
        (['--momentum=1'], '--momentum must be at least 0 and below 1, got 1.0'),
        (['--lanes=9'], '--lanes must be at most --clients_per_round=5, got 9'),
        (['--target_accuracy=80'], '--target_accuracy must be above 0 and at most 1, got 80.0'),
        (['--augment=crop,spin'], 'spin'),
        (['--augment=cutout'], '--augment=cutout: cutout blanks a square of 16 x 16'),
        (['--dataset=npz'], '--npz=FILE'),
        (['--npz=x.npz'], '--npz=x.npz needs --dataset=npz'),
        (['--dataset=hf:'], '--dataset=hf: names no dataset; write --dataset=hf:NAME.'),
        (['--dataset=npz', '--npz=absent.npz'], 'absent.npz'),
        (['--dataset=npz', '--npz=text.npz'], 'text.npz'),
        (['--dataset=npz', '--npz=short.npz'], 'y_train'),
        (['--dataset=npz', '--npz=range.npz'], 'y_test'),
        (['--dataset=npz', '--npz=shape.npz'], 'x_test'),
        (['--dataset=cifar10', '--data_dir=absent'], 'absent'),
        (['--dataset=no_such_set'], 'no_such_set'),
        (['--method=fedcad', '--auxiliary_per_class=0'], '--auxiliary_per_class=0'),
        (['--auxiliary_per_class=4000'], '4000'),
        (['--workdir='], '--workdir must name a folder, got an empty text; omit it'),
        (['--workdir=held'], '--workdir=held holds an unfinished run with other settings'),
        (['--workdir=text.npz'], '--workdir=text.npz is a file'),
        (['--workdir=/proc/jaxfed'], '--workdir=/proc/jaxfed cannot be'),
        (['stray'], 'unexpected arguments stray'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_bad_input_is_refused_before_training(arguments, message, command, tmp_path, capsys):
    (tmp_path / 'text.npz').write_text('not an archive')
    make_npz(tmp_path / 'short.npz', y_train=np.zeros(7, np.int64))
    make_npz(tmp_path / 'range.npz', y_test=np.full(30, 9))
    make_npz(tmp_path / 'shape.npz', x_test=np.zeros((30, 5, 5, 1), np.uint8))
    (tmp_path / 'held').mkdir()
    (tmp_path / 'held' / 'config.json').write_text('{"precious": 1}')
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
    assert command(*arguments) == 2
    shown = capsys.readouterr()
    assert 'error: ' in shown.err
    assert message in shown.err
    assert 'Traceback' not in shown.err + shown.out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')} == before


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'batch_size': '50'}, "--batch_size must be an integer, got '50'"),
        ({'rounds': 2.5}, '--rounds must be an integer, got 2.5'),
        ({'rounds': True}, '--rounds must be an integer, got True'),
        ({'seed': None}, '--seed must be an integer, got None'),
        ({'balanced': 1}, '--balanced must be True or False, got 1'),
        ({'learning_rate': '1'}, "--learning_rate must be a number, got '1'"),
        ({'learning_rate': np.ones(2)}, 'number, got array([1., 1.]): pass a plain Python value'),
        ({'method': Method()}, 'got a Method: pass a method object as simulate(config, method=..'),
        ({'workdir': 3}, '--workdir must be a string or None, got 3'),
        ({'partition': None}, '--partition must be one of iid'),
        ({'hyperparameters': 3}, '--hyperparameters must be a mapping'),
    ],
)
def test_values_of_a_wrong_type_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        checks.check(Config(**settings))


@pytest.mark.parametrize('value', [math.inf, -math.inf, math.nan, 1e39])
@pytest.mark.parametrize(
    'name', [f.name for f in dataclasses.fields(Config) if f.type in (float, float | None)]
)
def test_every_float_must_be_finite(name, value):
    with pytest.raises(
        ValueError, match=rf'--{name} must be a finite number.* got {re.escape(str(value))}'
    ):
        checks.check(Config(**{name: value}))


def test_an_integer_is_accepted_for_a_float():
    checks.check(Config(alpha=1, learning_rate=1, target_accuracy=1))


def test_paths_begin_at_the_home_folder(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    given = {name: f'~/{name}' for name in PATHS}
    config = Config(**given)
    assert {name: getattr(config, name) for name in PATHS} == {n: f'/home/me/{n}' for n in PATHS}
    assert Config(workdir='a/~').workdir == 'a/~'


def test_config_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='not JSON compliant'):
        run_files.make_workdir(Config(workdir=str(tmp_path / 'a'), alpha=math.inf), [])
    assert not (tmp_path / 'a').exists()

    def full(*_):
        raise OSError('no space left')

    settings = Config(workdir=str(tmp_path / 'b'))
    with monkeypatch.context() as patch:
        patch.setattr(run_files.os, 'replace', full)
        with pytest.raises(ValueError, match='cannot be used: no space left'):
            run_files.make_workdir(settings, [])
    assert not list((tmp_path / 'b').glob('[!.]*'))
    settings = Config(workdir=str(tmp_path / 'b'), resume=False)
    run_files.make_workdir(settings, [])
    assert [path.name for path in (tmp_path / 'b').glob('[!.]*')] == ['config.json']
    written = (tmp_path / 'b' / 'config.json').read_text()
    assert json.loads(written)['method'] == 'fedavg'
    with pytest.raises(ValueError, match='already holds a run'):
        run_files.make_workdir(settings, [])
    # The same error if another run starts after the first check.
    with monkeypatch.context() as patch:
        patch.setattr(run_files, 'check_workdir', look_late(run_files.check_workdir))
        with pytest.raises(ValueError, match='already holds a run'):
            run_files.make_workdir(settings, [])
    assert (tmp_path / 'b' / 'config.json').read_text() == written
    assert [path.name for path in (tmp_path / 'b').glob('[!.]*')] == ['config.json']


def look_late(check):
    """The check without its first call."""
    calls = []

    def late(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            check(*arguments)

    return late


def test_help_shows_the_flags_of_jaxfed():
    # absl's --help shows the flags of the module that called define_flags.
    module = flags.FLAGS.find_module_defining_flag('method')
    assert module != 'jaxfed.config'
    shown = flags.FLAGS.module_help(module)
    mappings = ('hyperparameters', 'partition_settings')
    for field in dataclasses.fields(Config):
        assert re.search(rf'--(\[no\])?{field.name}:', shown) or field.name in mappings
    assert '--fedlsd.alpha' in shown
    assert 'verbosity' not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_divergence_is_reported_and_earlier_rounds_are_kept(command, tmp_path, capsys):
    make_npz(tmp_path / 'tiny.npz')
    status = command(
        '--dataset=npz', '--npz=tiny.npz', '--workdir=out', '--learning_rate=1e12', *SMALL
    )
    assert status == 1
    assert 'training diverged' in capsys.readouterr().err
    assert (tmp_path / 'out' / 'metrics.jsonl').exists()
    assert not (tmp_path / 'out' / 'summary.json').exists()


@pytest.mark.parametrize(
    'program, shown',
    [
        ('/somewhere/bin/jaxfed', 'jaxfed'),
        ('/somewhere/jaxfed/__main__.py', 'python -m jaxfed'),
        ('/somewhere/jaxfed/main.py', 'python -m jaxfed'),
        ('mine.py', 'python mine.py'),
        ('/somewhere/jaxfed/mine.py', 'python /somewhere/jaxfed/mine.py'),
    ],
)
def test_the_command_that_continues_a_run(program, shown, monkeypatch, tmp_path):
    flags.FLAGS.mark_as_parsed()
    arguments = ['--sweep=beta=1 tau=2', '--noresume']
    monkeypatch.setattr(sys, 'argv', [program, *arguments])
    with flagsaver.flagsaver(workdir=None, resume=False):
        assert main.resume_command(tmp_path) == (
            f"{shown} '--sweep=beta=1 tau=2' --noresume --workdir={tmp_path} --resume"
        )
    with flagsaver.flagsaver(workdir='out', resume=None):
        assert main.resume_command(tmp_path) == f"{shown} '--sweep=beta=1 tau=2' --noresume"


def test_settings_are_checked_before_jax_starts(command, monkeypatch, capsys):
    def start():
        raise AssertionError('JAX has started')

    monkeypatch.setattr(devices.jax, 'devices', start)
    for flags_, message in (
        (['--alpha=-1'], 'error: --alpha must be positive, got -1.0.'),
        (['--method=fedlmb'], "unknown method 'fedlmb'; did you mean fedlmd"),
        (['--method=fedlmd', '--tau=0'], 'tau must be above 0'),
        (['--method=fedlmd_tf,fedlmd'], 'need --switch_round, the last round of the first'),
        (['--augment=spin'], 'spin'),
    ):
        assert command(*flags_) == 2
        shown = capsys.readouterr()
        assert message in shown.err and not shown.out


@pytest.mark.slow
def test_list_shows_every_method(command, capsys):
    assert command('--method=list') == 0
    shown = capsys.readouterr().out
    for name in ('fedavg', 'fedlmd_tf', '--fedlsd.alpha', 'fedssd', '--max_weight', 'ACM MM'):
        assert name in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_list_shows_a_method_that_needs_another_network(command, capsys, monkeypatch):
    def unfit():
        """Needs text."""
        raise TypeError('no text')

    monkeypatch.setitem(METHODS, 'mybn', functools.partial(METHODS['fedbn']))
    monkeypatch.setitem(METHODS, 'unfit', unfit)
    assert command('--method=list') == 0
    shown = capsys.readouterr().out
    text = ' '.join(shown.partition('mybn')[2].replace('│', ' ').split())
    assert text.startswith(METHODS['mybn'].func.__doc__.split('\n')[0])
    assert 'Costs: not known for the networks cnn and resnet8' in text
    assert text.count('not known') == 1


def test_list_shows_every_measure(command, capsys):
    assert command('--measure=list') == 0
    shown = capsys.readouterr().out
    for name, measure in MEASURES.items():
        assert name in shown
        assert all(field in shown for field in measure.fields)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_messages_of_the_log_are_plain_lines(tmp_path):
    make_npz(tmp_path / 'tiny.npz')
    mine = tmp_path / 'mine.py'
    run = ['--include=mine.py', '--method=mine', '--workdir=run', '--dataset=npz', '--npz=tiny.npz']
    call = [sys.executable, '-m', 'jaxfed', *run, *SMALL]
    for last, status in ((2, 1), (4, 0)):  # the second continues with other code
        mine.write_text(
            'import jaxfed, jax.numpy as jnp\n'
            f'fails = lambda view: jnp.where(view.round.number > {last}, jnp.nan, 0.0)\n'
            'jaxfed.methods.METHODS["mine"] = lambda: jaxfed.Method(penalty=fails)\n'
        )
        stop = ['--rounds=4', '--checkpoint_every=1']
        done = subprocess.run([*call, *stop], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if 'other code' in line]
    assert re.fullmatch(r'warning: --workdir=run was begun with other code .* \(mine.py .*', line)


@pytest.mark.slow
def test_exit_status_of_the_real_process(tmp_path):
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    call = [sys.executable, '-m', 'jaxfed.main']

    def run(*arguments):
        return subprocess.run(
            [*call, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    bad = run('--method=fedlmb')
    assert bad.returncode == 2
    assert bad.stderr.startswith('error: --method=fedlmb: unknown method')
    version = subprocess.run(
        [sys.executable, '-m', 'jaxfed', '--version'], capture_output=True, text=True
    )
    assert version.stdout.startswith('jaxfed ') and not version.returncode
    unknown = run('--bta=1')
    assert unknown.returncode == 2
    assert unknown.stderr == (
        'error: --bta is not a flag; did you mean --beta or --tau? --help shows the flags.\n'
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='only Linux has a full device')
def test_training_continues_without_output(tmp_path):
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    arguments = [*SMALL, '--num_clients=4', '--clients_per_round=2']
    reader, closed = os.pipe()
    os.close(reader)
    with open('/dev/full', 'w') as full:
        for name, output, error in (('full', full, full), ('pipe', closed, subprocess.PIPE)):
            command = [sys.executable, '-m', 'jaxfed.main', *arguments, f'--workdir={name}']
            ended = subprocess.run(
                command, cwd=tmp_path, env=environment, stdout=output, stderr=error
            )
            assert ended.returncode == 0
            assert not ended.stderr
            assert (tmp_path / name / 'summary.json').exists()
    os.close(closed)


class Ended(BaseException):
    """The process was ended."""


@pytest.mark.slow
@pytest.mark.parametrize(
    'number, word', [(signal.SIGINT, 'interrupted'), (signal.SIGTERM, 'terminated')]
)
def test_a_signal_before_the_first_round_ends_with_a_line(
    number, word, cheap_runs, command, tmp_path, monkeypatch, capsys
):
    def end(status):
        raise Ended(status)

    def stop(*_, **__):
        signal.raise_signal(number)  # another thread could receive a signal to the process

    make_npz(tmp_path / 'tiny.npz')
    monkeypatch.setattr(signals.os, '_exit', end)
    monkeypatch.setattr(sys, 'argv', ['jaxfed'])
    before = signal.getsignal(number)
    arguments = ('--dataset=npz', '--npz=tiny.npz', '--workdir=out', *SMALL)

    def ended(module, place):
        with monkeypatch.context() as patch:
            patch.setattr(module, place, stop)
            with pytest.raises(Ended, match=str(128 + number)):
                command(*arguments)
        assert signal.getsignal(number) == before
        return capsys.readouterr().err

    # While data is loaded or programs are compiled, the process removes its folder.
    for module, place in (deal, 'load_dataset'), (simulate, 'prepare'):
        assert ended(module, place) == f'error: {word}; no round was trained.\n'
        assert not (tmp_path / 'out').exists()
    # A resumed run keeps its records, and the same command completes it.
    with monkeypatch.context() as patch:
        patch.setattr(simulate, '_finish', lambda *_, **__: (_ for _ in ()).throw(OSError('full')))
        assert command(*arguments) == 1
    for module, place in (deal, 'load_dataset'), (simulate, 'prepare'):
        capsys.readouterr()
        kept = 'out holds the rounds done; to continue: jaxfed'
        assert ended(module, place) == f'error: {word}; {kept}\n'
    assert len((tmp_path / 'out' / 'metrics.jsonl').read_text().splitlines()) == 3
    assert command(*arguments) == 0


def test_halving_looks_at_every_experiment(command, tmp_path, capsys):
    arguments = ('--model=mlp', '--rounds=3', f'--workdir={tmp_path / "s"}', '--validation=0.1')
    assert command('--sweep=validation=0,0.1', '--halving=1', *arguments) == 2
    assert (
        'validation decides on which examples the accuracy is measured' in capsys.readouterr().err
    )
    assert command('--sweep=rounds=1,3', '--halving=1', *arguments) == 2
    assert '--halving=1 compares settings of one problem, but --sweep varies rounds' in (
        capsys.readouterr().err
    )
    assert command('--seeds=2', '--halving=1', *arguments) == 2
    assert '--halving=1 compares settings; name several, as in --sweep=' in capsys.readouterr().err
    assert not (tmp_path / 's').exists()
