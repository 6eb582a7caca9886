"""Many experiments in one program: each gives the results of a single run."""

import contextlib
import csv
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import threading
import traceback
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filelock import FileLock
from rich.console import Console
from safetensors.numpy import load_file, save_file

import jaxfed
from jaxfed import methods
from jaxfed.config import Config
from jaxfed.internal import console, files
from jaxfed.internal.locks import exclusive_lock, lock_file
from jaxfed.internal.signals import Interrupted
from jaxfed.methods.method import Method
from jaxfed.recording import run_files
from jaxfed.report.reading import read_run
from jaxfed.runs import feed, rounds, simulate
from jaxfed.runs.experiment import make_experiment, set_up
from jaxfed.runs.tensors import init_digest
from jaxfed.sweeps import claims, grid, runner, sweep, training
from jaxfed.sweeps import outcomes as results
from jaxfed.sweeps.halving import halving, parse_halving

SMALL = {
    'model': 'mlp',
    'rounds': 3,
    'num_clients': 8,
    'clients_per_round': 3,
    'local_epochs': 1,
    'alpha': 0.5,
}
SPLITS = ('train', 'test')
TIMES = ('seconds', 'evaluation_seconds', 'local_evaluation_seconds')


def small(**changes):
    return Config(**{**SMALL, **changes})


def lines(folder):
    return [json.loads(line) for line in (folder / 'metrics.jsonl').open()]


def assert_same(ours, alone, rtol=1e-4):
    """Lines of metrics.jsonl are equal except for times and rounding."""
    assert len(ours) == len(alone)
    for one, other in zip(ours, alone):
        assert one.keys() == other.keys()
        for name in one.keys() - set(TIMES):
            if one[name] is None or other[name] is None:
                assert one[name] is other[name], name
            else:
                np.testing.assert_allclose(one[name], other[name], rtol, 2e-6, err_msg=name)


def run(config, text, seeds, folder, **keywords):
    members = sweep.expand(config, grid.parse_grid(text, config), seeds, folder)
    return members, sweep.run(members, folder, **keywords)


EQUAL = {
    # client state, and settings of the optimizer and that only the host reads
    'scaffold+fedcurv': (
        'momentum=0,0.9 lam=0.1,10',
        {
            'dropout': 0.3,
            'label_noise': 0.1,
            'stragglers': 0.5,
            'local_epochs': 2,
            'alpha': 2.0,
        },
    ),
    # an optimizer and examples on the server, every measure
    'fedcad+fedadam': (
        'server_lr=0.01,0.1 fedcad.tau=0.5,3',
        {
            'measure': 'all',
            'local_eval_every': 2,
            'personal_test': 0.2,
            'validation': 0.2,
            'auxiliary_per_class': 4,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('method', EQUAL)
def test_each_experiment_gives_the_results_of_a_single_run(method, cheap_runs, programs, tmp_path):
    text, changes = EQUAL[method]
    config = small(method=method, **changes)
    members, outcomes = run(config, text, 2, tmp_path / 'sweep')
    assert programs == [8] == [len(members)] and not any(o.failed for o in outcomes)
    for i in (1, 6):  # every value and both seeds
        member, folder = members[i], tmp_path / str(i)
        alone = jaxfed.simulate(
            jaxfed.config.dataclasses.replace(member.config, workdir=str(folder))
        )
        ours = tmp_path / 'sweep' / os.path.basename(member.config.workdir)
        assert_same(lines(ours), alone.metrics)
        model_alone, model = (jaxfed.load(path) for path in (folder, ours))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5),
            model_alone.params,
            model.params,
        )
        names = [{p.name for p in path.iterdir() if p.name != '.lock'} for path in (folder, ours)]
        assert names[0] == names[1]
        one, other = (json.loads((path / 'summary.json').read_text()) for path in (folder, ours))
        assert one.keys() == other.keys() and other['experiments'] == 8
        for name in ('final_accuracy', 'best_round', 'rounds', 'cost', 'evaluated_on', 'failed'):
            assert one[name] == other[name]
    assert not (tmp_path / 'sweep' / training.SHARED).exists()
    # The settings have an effect.
    accuracies = {
        json.dumps([e['test_loss'] for e in lines(p)]) for p in folders(tmp_path / 'sweep')
    }
    assert len(accuracies) == 8


@pytest.mark.slow
def test_a_batch_of_all_examples_is_augmented_alike_in_a_sweep(cheap_runs, tmp_path):
    """Other experiments of the program may have larger clients."""
    config = small(batch_size=600, augment='crop', rounds=1, learning_rate=0.1)
    members, _ = run(config, 'alpha=50,0.1', 1, tmp_path / 'sweep')
    alone = dataclasses.replace(members[0].config, workdir=str(tmp_path / 'alone'))
    params = jaxfed.simulate(alone).params
    together = jaxfed.load(members[0].config.workdir).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), params, together)


def folders(path):
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith('.'))


@pytest.mark.parametrize('name', methods.METHODS)
def test_every_number_of_every_method_can_be_an_argument(name):
    """Hyper-parameters may be traced, as in a program that experiments share."""
    free = {
        key: parameter.default
        for key, parameter in methods.hyperparameters(name).items()
        if parameter.annotation is float
    }
    (part,) = methods.resolve(name, {})

    @jax.jit
    def server(values):
        method = methods.build([part._replace(hyperparameters={**part.hyperparameters, **values})])
        assert isinstance(method, Method)
        params = {name: {'scale': jnp.ones(3)} for name in ('classifier', 'own', 'norm')}
        return method.init(params, {'norm': {'mean': jnp.ones(3)}})[0]

    server({key: jnp.float32(value) for key, value in free.items()})


@pytest.mark.slow
def test_partition_settings_share_a_program_and_epochs_do_not(cheap_runs, programs, tmp_path):
    members, outcomes = run(small(rounds=1), 'alpha=0.5,50 local_epochs=1,2', 1, tmp_path, rungs=())
    assert sorted(programs) == [2, 2]  # epochs shape the program, the partition does not
    assert [dict(o.point) for o in outcomes] == [
        {'alpha': a, 'local_epochs': e} for a in (0.5, 50) for e in (1, 2)
    ]
    rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
    assert [row['alpha'] for row in rows] == ['0.5', '0.5', '50', '50']
    for row, member in zip(rows, members):
        summary = json.loads((tmp_path / member.config.workdir / 'summary.json').read_text())
        assert float(row['final_accuracy']) == pytest.approx(summary['final_accuracy'], abs=1e-6)
        assert (tmp_path / member.config.workdir / 'config.json').exists()


@pytest.mark.slow
def test_only_unfinished_experiments_are_trained(cheap_runs, programs, tmp_path, capsys):
    config = small(method='fedprox', rounds=1)
    run(config, 'mu=0.1,1', 1, tmp_path)
    before = {p: (p / 'metrics.jsonl').read_bytes() for p in folders(tmp_path)}
    _, outcomes = run(dataclasses.replace(config, csv=True), 'mu=0.1,1,10', 2, tmp_path)
    warned = 'warning: --csv has no effect on 2 finished runs without it; move their folders'
    assert warned in ' '.join(capsys.readouterr().err.split())
    assert sum((p / 'metrics.csv').exists() for p in folders(tmp_path)) == 4
    assert programs == [2, 4] and all(len(o.final) == 2 for o in outcomes)
    assert all((p / 'metrics.jsonl').read_bytes() == content for p, content in before.items())
    with pytest.raises(ValueError, match=r'holds a run with other settings \(--rounds=1, not 2'):
        run(small(method='fedprox', rounds=2), 'mu=0.1', 1, tmp_path)


class Stopped(BaseException):
    pass


@pytest.mark.slow
def test_an_interrupted_sweep_continues(cheap_runs, programs, tmp_path, monkeypatch):
    config = small(method='scaffold', rounds=5, checkpoint_every=2)
    run(config, 'learning_rate=0.02,0.1', 2, tmp_path / 'whole')
    inner, calls = rounds.train_and_evaluate, []

    def run_round(prepared, experiments, planned, *rest):
        calls.append(planned.number)
        if planned.number == 4 and len(calls) <= 4:
            raise Stopped
        return inner(prepared, experiments, planned, *rest)

    monkeypatch.setattr(rounds, 'train_and_evaluate', run_round)
    with pytest.raises(Stopped):
        run(config, 'learning_rate=0.02,0.1', 2, tmp_path / 'cut')
    assert all(len(lines(p)) == 3 for p in folders(tmp_path / 'cut'))
    run(config, 'learning_rate=0.02,0.1', 2, tmp_path / 'cut')
    assert calls == [1, 2, 3, 4, 3, 4, 5]  # after the checkpoint of round 2
    assert programs == [4, 4]
    for whole, cut in zip(folders(tmp_path / 'whole'), folders(tmp_path / 'cut')):
        assert_same(lines(cut), lines(whole), rtol=0)  # to the bit
        assert (whole / 'model.safetensors').read_bytes() == (
            cut / 'model.safetensors'
        ).read_bytes()
    assert not (tmp_path / 'cut' / training.SHARED).exists()


@pytest.mark.slow
def test_experiments_interrupted_alone_continue_alone(
    cheap_runs, programs, tmp_path, stopped_before
):
    config = small(rounds=4, checkpoint_every=1)
    members = sweep.expand(config, grid.parse_grid('learning_rate=0.02,0.1', config), 1, tmp_path)
    with stopped_before(3):
        jaxfed.simulate(members[0].config)
    run(config, 'learning_rate=0.02,0.1,0.2', 1, tmp_path)
    assert sorted(programs) == [1, 2]
    # Interrupted together, and then one of them restarted and interrupted alone.
    config = small(rounds=3, checkpoint_every=1)
    other = sweep.expand(config, grid.parse_grid('momentum=0,0.5', config), 1, tmp_path / 'other')
    with stopped_before(3):
        sweep.run(other, tmp_path / 'other')
    assert (tmp_path / 'other' / training.SHARED).exists()
    with stopped_before(3):
        jaxfed.simulate(other[0].config)
    with pytest.raises(ValueError, match=r'momentum0_seed0 was begun again alone: put its files'):
        sweep.run(other, tmp_path / 'other')
    run(small(rounds=1), '', 1, tmp_path / 'other')  # another grid in the same folder
    shutil.rmtree(tmp_path / 'other' / training.SHARED)
    assert not any(o.failed for o in sweep.run(other, tmp_path / 'other'))
    assert programs[2:] == [1, 1, 1]
    summary = json.loads((tmp_path / 'learning_rate0.02_seed0' / 'summary.json').read_text())
    assert summary['resumed_after'] == 2 and summary['experiments'] == 1


@pytest.mark.slow
def test_divergence_stops_no_other_experiment(cheap_runs, programs, tmp_path, capsys):
    config = small(rounds=4)
    members, outcomes = run(config, 'learning_rate=0.02,1e30', 1, tmp_path, quiet=True)
    assert programs == [2]
    assert [o.failed for o in outcomes] == [0, 1]
    assert 'is not finite; training diverged' in capsys.readouterr().err
    results.show_outcomes(outcomes, tmp_path, config)
    shown = capsys.readouterr().out
    assert ' 1e+30 │       - │            - │      - │ 1 failed │' in shown and 'best:' not in shown
    good, bad = (tmp_path / m.config.workdir for m in members)
    assert len(lines(good)) == 4 and not (bad / 'summary.json').exists()
    alone = jaxfed.simulate(
        jaxfed.config.dataclasses.replace(members[0].config, workdir=str(tmp_path / 'a'))
    )
    assert_same(lines(good), alone.metrics)
    # With --on_divergence=record it is finished.
    again = small(rounds=4, on_divergence='record')
    _, outcomes = run(again, 'learning_rate=0.02,1e30', 1, tmp_path / 'record')
    summary = json.loads(
        (tmp_path / 'record' / 'learning_rate1e+30_seed0' / 'summary.json').read_text()
    )
    assert summary['failed'] and not summary['stopped_early'] and outcomes[1].failed == 1


def outcome(point, final, **counts):
    return results.Outcome(
        point, final, final, [3] * len(final), **{'stopped': 0, 'failed': 0, **counts}
    )


def test_the_best_point_has_the_highest_mean_of_all_its_seeds():
    low, high, partial = ((('beta', b),) for b in (1.0, 2.0, 3.0))
    outcomes = [outcome(low, [0.1, 0.9]), outcome(high, [0.6, 0.6])]  # means .5 and .6
    assert results.best_point(outcomes) == high
    for counts in ({'stopped': 1}, {'failed': 1}):
        assert results.best_point([*outcomes, outcome(partial, [0.8], **counts)]) == high
    assert results.best_point(outcomes[:1]) is None
    assert results.best_point([outcome(low, [0.6]), outcome(high, [0.6])]) is None
    locally = [
        outcome(point, [0.6], personal=[value], judged='personal')
        for point, value in ((low, 0.9), (high, 0.8))
    ]
    assert results.best_point(locally) == low
    # Halving has stopped all points but one.
    assert results.best_point([outcomes[0], outcome(high, [0.9], stopped=1)]) == low
    assert results.best_point([outcomes[0], outcome(high, [0.9], failed=1)]) is None
    assert results.best_point([outcome(low, [None]), outcome(high, [None])]) is None


def test_each_problem_has_its_best_point(tmp_path, capsys):
    points = [(('alpha', a), ('beta', b)) for a in (0.1, 0.5) for b in (0.3, 1.0)]
    finals = [0.4, 0.3, 0.8, 0.9]
    outcomes = [outcome(p, [final]) for p, final in zip(points, finals, strict=True)]
    assert results.best_points(outcomes, small()) == [points[0], points[3]]
    results.show_outcomes(outcomes, tmp_path, small())
    shown = ' '.join(capsys.readouterr().out.split())
    assert '*: the highest final accuracy for each value of alpha' in shown
    assert 'A choice among these settings uses test data' in shown
    alone = [outcome((('alpha', a),), [a]) for a in (0.1, 0.5)]
    assert results.best_points(alone, small()) == []
    results.show_outcomes(alone, tmp_path, small())
    shown = capsys.readouterr().out
    assert 'the highest' not in shown and 'choice' not in shown


def test_a_sweep_of_failed_runs_names_no_choice(tmp_path, capsys):
    outcomes = [outcome((('beta', b),), [None], failed=1) for b in (0.1, 0.5)]
    results.show_outcomes(outcomes, tmp_path, small())
    assert 'choice' not in capsys.readouterr().out


def test_the_table_names_its_columns_and_the_best_point_in_80_columns(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(console, 'TERMINAL', Console(width=80, highlight=False, markup=False))
    points = [(('beta', b), ('learning_rate', 0.01), ('alpha', 0.05)) for b in (0.3, 1.0)]
    outcomes = [outcome(points[0], [0.5, 0.7]), outcome(points[1], [0.1, 0.2])]
    results.show_outcomes(outcomes, tmp_path, small())
    lines_ = capsys.readouterr().out.splitlines()
    table = [line for line in lines_ if line.startswith(('┃', '│'))]
    assert max(map(len, table)) <= 80
    head = [cell.strip() for cell in table[0].strip('┃').split('┃')]
    assert [head[0], *head[2:]] == ['beta', 'alpha', 'final %', 'best round %', 'rounds', 'note']
    rows = [[c.strip() for c in line.strip('│').split('│')] for line in table if '│' in line]
    assert [row[-1] for row in rows if row[0]] == ['best', '']
    assert 'of 2 seeds; best: the highest final accuracy' in ' '.join(lines_)
    # A table without notes has no column for them.
    results.show_outcomes([outcome((), [0.5])], tmp_path, small())
    shown = capsys.readouterr().out
    assert 'rounds ┃\n' in shown and 'note' not in shown and 'seeds' not in shown


def test_seeds_that_change_nothing_are_refused(tmp_path):
    seeds = {'partition_seed': 1, 'cohort_seed': 2, 'init_seed': 3}
    assert len(sweep.expand(small(**seeds), [()], 2, tmp_path)) == 2
    assert len(sweep.expand(small(**seeds, batch_seed=4), [()], 1, tmp_path)) == 1
    message = r'--seeds=2 changes nothing, because --partition_seed, .* --batch_seed are all set'
    with pytest.raises(ValueError, match=message):
        sweep.expand(small(**seeds, batch_seed=4), [()], 2, tmp_path)


def test_halving_warns_of_a_setting_that_shares_no_program(tmp_path, capsys):
    for most, warning in (
        (2, '1 setting of these can share none and will not stop early'),
        (3, ''),
    ):
        config = small(method='fedlmd', rounds=4, validation=0.2)
        points = grid.parse_grid('beta=1,2,3', config)
        members = sweep.expand(config, points, 1, tmp_path / f'{most}')
        sweep._plan(members, tmp_path / f'{most}', rungs=[2], most=most)
        shown = ' '.join(capsys.readouterr().err.split())
        assert warning in shown and ('--halving' in shown) == bool(warning)


@pytest.mark.slow
def test_halving_keeps_the_better_half(cheap_runs, programs, tmp_path):
    config = small(rounds=4, validation=0.2)
    text = 'learning_rate=1e-6,1e-5,0.05,0.1'
    members, outcomes = run(config, text, 2, tmp_path, rungs=[1, 2])
    assert programs == [8]
    trained = {dict(o.point)['learning_rate']: o.rounds for o in outcomes}
    assert trained[1e-6] == trained[1e-5] == [1, 1]
    assert sorted([trained[0.05], trained[0.1]]) == [[2, 2], [4, 4]]
    for member in members:
        summary = json.loads((tmp_path / member.config.workdir / 'summary.json').read_text())
        rounds = trained[member.config.learning_rate][0]
        assert summary['rounds'] == rounds and summary['stopped_early'] is (rounds < 4)
        assert summary['evaluated_on'] == 'validation'
        state = read_run(tmp_path / member.config.workdir).state
        assert state == (f'stopped early, {rounds} of 4 rounds' if rounds < 4 else 'finished')
    rows = list(csv.DictReader((tmp_path / run_files.TABLE).open()))
    assert [(int(row['given_up']), int(row['trained_rounds'])) for row in rows] == [
        (2 * (o.rounds[0] < 4), o.rounds[0]) for o in outcomes
    ]
    whole, _ = run(config, text, 2, tmp_path / 'whole')
    for member, other in zip(members, whole):
        ours = lines(tmp_path / member.config.workdir)
        assert_same(ours, lines(tmp_path / other.config.workdir)[: len(ours)])


@pytest.mark.slow
def test_a_stopped_experiment_gets_no_more_noise(cheap_runs, tmp_path):
    config = small(method='dp', rounds=4, validation=0.2)
    run(config, 'noise=0.5,3', 1, tmp_path, rungs=[2])
    summaries = [json.loads((f / 'summary.json').read_text()) for f in folders(tmp_path)]
    (stopped,) = (f for f, s in zip(folders(tmp_path), summaries) if s['stopped_early'])
    noise = float(stopped.name.partition('noise')[2].partition('_')[0])
    alone = dataclasses.replace(
        config, rounds=2, hyperparameters={'noise': noise}, workdir=str(tmp_path / 'alone')
    )
    jaxfed.simulate(alone, quiet=True)
    ours, want = (load_file(f / 'model.safetensors') for f in (stopped, tmp_path / 'alone'))
    for name, array in want.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-6)


def test_halving_by_hand():
    settings = [(('beta', b),) for b in (1.0, 1.0, 2.0, 2.0, 3.0, 3.0)]
    stop = halving([2], settings)
    metrics = [
        [{'test_accuracy': a}, {'test_accuracy': None}] for a in (0.1, 0.9, 0.4, 0.4, 0.3, 0.3)
    ]
    assert stop(1, metrics, range(6)) == []
    assert stop(2, metrics, range(6)) == [4, 5]  # means .5, .4, .3
    assert stop(2, metrics, [0, 2, 3, 4, 5]) == [0]  # one of the first has diverged
    assert stop(2, metrics, [2, 3]) == []
    # Half of the eight settings continue, also if as many have diverged before.
    stop = halving([2, 4], range(8))
    metrics = [[{'test_accuracy': 0.1 * i}] for i in range(8)]
    assert stop(2, metrics, [4, 5, 6, 7]) == [] and stop(2, metrics, range(8)) == [0, 1, 2, 3]
    assert stop(4, metrics, [4, 5, 6, 7]) == [4, 5]


@pytest.mark.slow
def test_together_limits_the_experiments_in_a_program(cheap_runs, programs, tmp_path):
    config = small(rounds=1)
    run(config, 'learning_rate=0.1,0.2,0.3,0.4,0.5', 1, tmp_path, most=2)
    assert programs == [1, 2, 2]
    places = [f'learning_rate=0.0{i}' for i in range(1, 10)]
    members = sweep.expand(config, [((k.split('=')[0], float(k.split('=')[1])),) for k in places],
                           1, tmp_path / 'more')  # fmt: skip
    groups = training.group([m.config for m in members], tmp_path / 'more')
    assert sorted(map(len, groups)) == [4, 5]  # at most 8 on a CPU, and nearly equal sizes
    waves = [jaxfed.config.dataclasses.replace(m.config, stream='on') for m in members]
    assert training.group(waves, tmp_path / 'more') == [[i] for i in range(9)]


def test_every_value_has_another_folder(tmp_path):
    config = small(method='fedprox')
    text = 'mu=0,1e+30,0.12345678,0.12345679,1e-12,3'
    members = sweep.expand(config, grid.parse_grid(text, config), 1, tmp_path)
    names = [os.path.basename(member.config.workdir) for member in members]
    assert names == [
        'mu0_seed0', 'mu1e+30_seed0', 'mu0.12345678_seed0', 'mu0.12345679_seed0', 'mu1e-12_seed0',
        'mu3_seed0',
    ]  # fmt: skip
    assert grid.in_words(-1.0) == '-1' and grid.in_words(-2.5e-9) == '-2.5e-09'


def test_invalid_folders_are_refused(cheap_runs, tmp_path):
    config = small(rounds=1)
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'config.json').write_text('{}')
    with pytest.raises(ValueError, match='holds a run; name another directory for a sweep'):
        sweep.expand(config, [()], 1, tmp_path / 'run')
    with pytest.raises(ValueError, match='--resume=False: a sweep always continues unfinished'):
        sweep.expand(small(resume=False), [()], 1, tmp_path)
    (tmp_path / 'file').write_text('')
    with pytest.raises(ValueError, match='is a file'):
        sweep.expand(config, [()], 1, tmp_path / 'file')
    members = sweep.expand(config, [()], 1, tmp_path / 'busy')
    (tmp_path / 'busy').mkdir()
    with (
        exclusive_lock(tmp_path / 'busy'),
        pytest.raises(ValueError, match='another process uses it'),
    ):
        sweep.run(members, tmp_path / 'busy')


@pytest.fixture
def short_turns(monkeypatch):
    monkeypatch.setattr(claims, '_TURN', 0.05)
    monkeypatch.setattr(claims, '_TURNS', 3)


@pytest.fixture
def no_flock(monkeypatch, tmp_path):
    """A file system without flock, on which a lock is the existence of its file."""
    fcntl = pytest.importorskip('fcntl')
    inner = fcntl.flock

    def flock(file, operation):
        # JAX's cache is elsewhere: its lock would never use flock again.
        if os.fstat(file).st_ino in {path.stat().st_ino for path in tmp_path.rglob('*.lock')}:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        inner(file, operation)

    monkeypatch.setattr(fcntl, 'flock', flock)


@pytest.mark.parametrize('name', ['.claim.lock', '.lock'])
def test_a_leftover_lock_of_a_sweep_is_named(
    cheap_runs, tmp_path, short_turns, no_flock, capsys, name
):
    (tmp_path / name).touch()  # by flock, before the folder was copied
    with pytest.raises(ValueError, match=rf'another process .*, or remove .*/\{name} if none does'):
        run(small(rounds=1), '', 1, tmp_path)
    warning = f'warning: waiting for another process, which holds {tmp_path / name}.\n'
    assert capsys.readouterr().err == warning * (name == '.claim.lock')


@pytest.mark.parametrize('name', ['.seed0.lock', 'seed0/.lock'])
def test_a_leftover_lock_of_a_run_is_named(cheap_runs, tmp_path, no_flock, name, capsys):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    try:
        run(small(rounds=1), '', 1, tmp_path)
    except ValueError as error:
        shown = str(error)
    else:
        shown = capsys.readouterr().err
    assert f', or remove {tmp_path / name} if none does.' in shown


def test_a_process_waits_for_its_turn(cheap_runs, tmp_path, short_turns, monkeypatch):
    held, waits = threading.Event(), threading.Event()
    shown = []

    def hold():  # a lock belongs to its thread
        with lock_file(tmp_path / '.claim.lock'):
            held.set()
            waits.wait()

    def show_warning(text):
        shown.append(text)
        waits.set()

    monkeypatch.setattr(claims.console, 'show_warning', show_warning)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    _, outcomes = run(small(rounds=1), '', 1, tmp_path)
    thread.join()
    assert not outcomes[0].failed
    assert shown == [f'waiting for another process, which holds {tmp_path / ".claim.lock"}.']


@pytest.mark.slow
def test_a_dry_run_trains_nothing(cheap_runs, tmp_path, capsys, monkeypatch):
    config = small(method='fedprox', rounds=1, data_dir='DIR')
    members = sweep.expand(config, grid.parse_grid('mu=0,1 local_epochs=1,2', config), 2, tmp_path)
    sweep.show_dry_run(members, tmp_path)
    shown, warned = capsys.readouterr()
    assert warned.count('warning') == warned.count('--data_dir=DIR is not read') == 1
    assert shown.count('4 experiments at once, 4 rounds in all, about') == 2
    assert '0 of 8 experiments done, 8 would train in 2 groups' in shown
    assert not list(tmp_path.iterdir())

    monkeypatch.setattr(sweep, 'prepare', too_large)
    sweep.show_dry_run(members, tmp_path)
    assert 'they would train in smaller groups' in capsys.readouterr().out


def test_simulate_all(cheap_runs, programs, tmp_path):
    configs = {
        'low': small(rounds=1, learning_rate=0.02), 'high': small(rounds=1, learning_rate=0.2),
        'wild': small(rounds=1, learning_rate=1e30),
    }  # fmt: skip
    first = jaxfed.simulate_all(configs, tmp_path)
    assert programs == [3] and list(first) == list(configs)
    assert isinstance(first['wild'], jaxfed.Diverged)
    again = jaxfed.simulate_all({**configs, 'more': small(rounds=1)}, tmp_path)
    assert programs == [3, 2]  # the one that diverged is not finished
    for name in ('low', 'high'):
        one, other = first[name], again[name]
        assert (one.summary, one.metrics, one.workdir) == (
            other.summary,
            other.metrics,
            other.workdir,
        )
        jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    for wrong, message in (
        ({'a': None}, "'a' must be a text with a jaxfed.Config, got NoneType"),
        ({1: small()}, '1 must be a text with a jaxfed.Config, got Config'),
        ([small()], 'configs must map names to settings, got list'),
    ):
        with pytest.raises(ValueError, match=message):
            jaxfed.simulate_all(wrong, tmp_path)
    with pytest.raises(ValueError, match=r'config must be a jaxfed.Config, got str'):
        jaxfed.simulate('fedavg')
    for name in ('a/b', '..', '.x', ''):
        with pytest.raises(ValueError, match='must be the name of a folder'):
            jaxfed.simulate_all({name: small()}, tmp_path)


@pytest.mark.slow
def test_a_group_that_cannot_be_recorded_stops_no_other(
    cheap_runs, programs, tmp_path, monkeypatch, capsys
):
    inner = training.train_experiments

    def train(experiments, *arguments, **keywords):
        if experiments[0].config.local_epochs == 1:
            raise OSError('no space left')
        return inner(experiments, *arguments, **keywords)

    monkeypatch.setattr(training, 'train_experiments', train)
    _, outcomes = run(small(rounds=1), 'local_epochs=1,2', 2, tmp_path)
    assert [o.failed for o in outcomes] == [2, 0] and programs == [2]
    assert 'error: fedavg: local_epochs 1, 2 seeds: no space left' in capsys.readouterr().err


@pytest.mark.slow
def test_resumed_experiments_that_do_not_fit_are_not_restarted(
    cheap_runs, programs, tmp_path, monkeypatch, stopped_before, capsys
):
    config = small(rounds=4, checkpoint_every=1)
    with stopped_before(4):
        run(config, '', 2, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(simulate, 'prepare', too_large)
        _, (outcome,) = run(config, '', 2, tmp_path)
    assert outcome.failed == 2
    advice = r'2 experiments .* do not fit into memory now: .*, or remove .*/.together/\w+ to r'
    assert re.search(advice, capsys.readouterr().err)
    run(config, '', 2, tmp_path)
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob('*/summary.json')]
    assert [summary['resumed_after'] for summary in summaries] == [3, 3]


def too_large(experiments):
    raise feed.TooLarge('too large')


@pytest.mark.slow
def test_a_signal_in_the_last_round_of_a_program_ends_the_sweep(
    cheap_runs, programs, tmp_path, monkeypatch
):
    config, grid = small(rounds=2), 'local_epochs=1,2'
    inner = rounds.train_and_evaluate

    def run_round(prepared, experiments, planned, *rest):
        if planned.number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(prepared, experiments, planned, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(rounds, 'train_and_evaluate', run_round)
        with pytest.raises(Interrupted, match='stopped after the last round of a program'):
            run(config, grid, 2, tmp_path)
        assert programs == [2] and len(list(tmp_path.glob('*/summary.json'))) == 2
        assert not (tmp_path / training.SHARED).exists()
        # After the last program nothing is left to stop.
        _, outcomes = run(config, grid, 2, tmp_path)
    assert programs == [2, 2] and not any(outcome.failed for outcome in outcomes)


def test_a_signal_in_a_part_of_a_split_program_ends_the_sweep(
    cheap_runs, programs, tmp_path, monkeypatch
):
    inner = training.train_experiments

    def train(experiments, *arguments, late, **keywords):
        if len(experiments) > 1:
            too_large(experiments)
        results = inner(experiments, *arguments, **keywords)
        late(signal.SIGTERM)
        return results

    monkeypatch.setattr(training, 'train_experiments', train)
    with pytest.raises(Interrupted) as raised:
        run(small(rounds=1), '', 2, tmp_path)
    assert raised.value.signal == signal.SIGTERM
    assert len(list(tmp_path.glob('*/summary.json'))) == 1
    _, outcomes = run(small(rounds=1), '', 2, tmp_path)
    assert not outcomes[0].failed


def test_damaged_summaries_of_others_stop_no_fresh_experiment(cheap_runs, tmp_path):
    path = tmp_path / training.SHARED / 'other' / 'summaries.json'
    path.parent.mkdir(parents=True)
    path.write_text('{')
    fresh, begun = (small(rounds=1, workdir=str(tmp_path / name)) for name in ('fresh', 'begun'))
    (tmp_path / 'begun').mkdir()
    (tmp_path / 'begun' / 'metrics.jsonl').touch()
    trained, refused = runner.run_groups(
        [fresh, begun], tmp_path, [[0], [1]], lambda i: set_up(fresh), str, quiet=True
    )
    assert isinstance(trained, jaxfed.Result)
    assert f'{path} cannot be read' in str(refused)


@pytest.mark.slow
def test_groups_that_do_not_fit_are_split(cheap_runs, programs, tmp_path, monkeypatch):
    inner = simulate.prepare

    def prepare(experiments):
        if len(experiments) > 2:
            raise feed.TooLarge('too large')
        return inner(experiments)

    monkeypatch.setattr(simulate, 'prepare', prepare)
    config = small(rounds=1)
    run(config, 'learning_rate=0.1,0.2,0.3,0.4,0.5', 1, tmp_path)
    assert programs == [2, 1, 2]
    assert all((p / 'summary.json').exists() for p in folders(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize('in_hook', [False, True])
@pytest.mark.parametrize('read', [lambda number: bool(number < 0), '{:.2f}'.format, hash])
def test_a_method_that_takes_python_numbers_has_one_program_for_each(
    read, in_hook, cheap_runs, programs, tmp_path, monkeypatch
):
    def pinned(*, strength: float = 0.1) -> Method:
        """A penalty."""
        if not in_hook:
            read(strength)

        def penalty(view):
            read(strength)
            return strength * view.mean(view.outputs.logits.sum(-1) ** 2)

        return Method(penalty=penalty)

    monkeypatch.setitem(methods.METHODS, 'pinned', pinned)
    config = small(method='pinned', rounds=1)
    _, outcomes = run(config, 'strength=0.1,1', 2, tmp_path)
    assert programs == [2, 2]  # seeds still share
    assert all((folder / 'config.json').exists() for folder in folders(tmp_path))
    assert len({tuple(o.final) for o in outcomes}) == 2


def test_a_type_error_in_a_hook_is_no_swept_setting(cheap_runs, tmp_path, monkeypatch):
    def mistaken(*, strength: float = 0.1) -> Method:
        """A penalty."""

        def penalty_with_a_mistake(view):
            return strength * len(view.round.number)  # a number has no length

        return Method(penalty=penalty_with_a_mistake)

    monkeypatch.setitem(methods.METHODS, 'mistaken', mistaken)
    with pytest.raises(
        ValueError, match=r'^Method\.penalty \(test_sweep\.py, .*TypeError'
    ) as raised:
        run(small(method='mistaken', rounds=1), 'strength=0.1,1', 1, tmp_path)
    cause = raised.value.__cause__
    assert type(cause) is TypeError  # not a subclass of JAX
    lines = traceback.extract_tb(cause.__traceback__)
    assert any(line.name == 'penalty_with_a_mistake' for line in lines)


@pytest.mark.parametrize(
    'text, message',
    [
        ('betta=1,2', r'have no betta; did you mean .*beta'),
        ('beta', r"'beta' must be a parameter and its values"),
        ('=1', r"'=1' must be a parameter"),
        ('beta=', r"beta='' must be a number"),
        ('beta=1,x', r"beta='x' must be a number"),
        ('rounds=1.5', r"rounds='1\.5' must be an integer"),
        ('beta=1,1.0', r'beta has a value twice'),
        ('beta=1 beta=2', r'beta is named twice'),
        ('seed=1,2', r'use --seeds=3 for three seeds, from --seed on'),
        ('lanes=1,2', r'lanes is no parameter to sweep over'),
        ('validation=0.1,0.2', r'validation decides on which examples .* run once for each'),
        ('beta=-1,1', r'beta must be at least 0, got -1\.0'),
        ('beta=nan,1', r'beta must be a finite number'),
        ('mu=1', r'--method=fedlmd and the settings have no mu'),
        ('shards_per_client=2', 'belongs to --partition=sharding .*, but --partition is dirichlet'),
    ],
)
def test_invalid_grids_are_refused(text, message, tmp_path):
    config = small(method='fedlmd')
    with pytest.raises(ValueError, match=message):
        sweep.expand(config, grid.parse_grid(text, config), 1, tmp_path)
    assert not list(tmp_path.iterdir())


def test_short_names_of_several_parts():
    config = small(method='kd+fedntd')
    with pytest.raises(ValueError, match=r'2 parts .* have tau; use fedntd\.tau or kd\.tau\.'):
        grid.parse_grid('tau=1,2', config)
    both = small(method='fedlmd,fedlmd', switch_round=1)  # has the same values in both phases
    assert grid.parse_grid('beta=1,2', both) == [(('beta', 1.0),), (('beta', 2.0),)]


def test_halving_needs_held_out_data():
    with pytest.raises(ValueError, match=r'--halving=2 compares settings on held-out'):
        parse_halving('2', small())
    for text in ('0', '3', 'x', '1,,2'):
        with pytest.raises(ValueError, match=r'must be rounds below --rounds=3'):
            parse_halving(text, small(validation=0.1))
    assert parse_halving('2,1,2', small(validation=0.1)) == [1, 2]
    assert parse_halving(None, small()) == []
    with pytest.raises(ValueError, match='compares global models, but --method=fedper has a model'):
        parse_halving('1', small(validation=0.1, method='fedper'))
    with pytest.raises(ValueError, match='no round up to 1 is evaluated with --eval_every=2'):
        parse_halving('1', small(validation=0.1, eval_every=2))


def test_seeds_that_halving_compares_share_a_program(tmp_path):
    config = small(rounds=2, validation=0.1)
    points = grid.parse_grid('learning_rate=.01,.02,.03,.04,.05', config)
    members = sweep.expand(config, points, 2, tmp_path)
    configs = [member.config for member in members]
    settings = [member.point for member in members]

    def sizes(most, settings=()):
        return [len(g) for g in training.group(configs, tmp_path, most=most, settings=settings)]

    assert sizes(5) == [5, 5] and sizes(5, settings) == [2, 4, 4]
    assert sizes(3, settings) == [2] * 5 and sizes(20, settings) == [10]
    with pytest.raises(ValueError, match=r'--together must be at least 4, two .* 2 seeds, got 3'):
        sweep.run(members, tmp_path, rungs=[1], most=3)
    config = dataclasses.replace(config, stream='on')
    with pytest.raises(ValueError, match='--stream=on trains every experiment alone; remove one'):
        run(config, 'learning_rate=.01,.02', 1, tmp_path, rungs=[1])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_halving_that_compares_nothing_is_named(cheap_runs, tmp_path, capsys):
    config = small(rounds=2, validation=0.2)
    _, outcomes = run(config, 'local_epochs=1,2', 1, tmp_path, rungs=[1])
    assert 'no two of these can share one, so none stops early' in capsys.readouterr().err
    assert [outcome.rounds for outcome in outcomes] == [[2], [2]]


def test_the_tables_of_a_sweep_over_rounds_have_different_columns(tmp_path, capsys):
    outcomes = [results.Outcome((('rounds', 2),), [0.5], [0.5], [2], 0, 0)]
    results.show_outcomes(outcomes, tmp_path, small())
    shown = capsys.readouterr().out
    assert '┃ rounds ┃ final' in shown and '┃ trained rounds ┃\n' in shown
    results.write_table(tmp_path / 'sweep.csv', outcomes)
    (row,) = csv.DictReader((tmp_path / 'sweep.csv').open())
    assert row['rounds'] == row['trained_rounds'] == '2'


def test_the_tables_have_the_personal_accuracy_if_any_was_measured(tmp_path, capsys):
    points = [(('beta', b),) for b in (0.3, 1.0)]
    outcomes = [outcome(points[0], [0.5, 0.7], personal=[0.8, 0.9]), outcome(points[1], [0.1])]
    results.show_outcomes(outcomes, tmp_path, small())
    shown = capsys.readouterr().out
    assert '   personal % ┃' in shown and '│ 85.00 ± 7.07 │' in shown
    results.write_table(tmp_path / 'sweep.csv', outcomes)
    rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
    assert [(row['personal_accuracy'], row['personal_sd']) for row in rows] == [
        ('0.850000', '0.070711'), ('', '')
    ]  # fmt: skip


def test_two_parts_name_the_same_parameter():
    config = small(method='fedlmd+kd', hyperparameters={'fedlmd.tau': 2.0})
    assert 'tau' not in grid.sweepable(config) and 'kd.tau' in grid.sweepable(config)
    members = sweep.expand(
        config,
        grid.parse_grid('fedlmd.tau=1,3', config),
        1,
        Path('x'),
    )
    assert [m.config.hyperparameters for m in members] == [{'fedlmd.tau': 1.0}, {'fedlmd.tau': 3.0}]


@pytest.mark.slow
def test_each_seed_evaluates_on_its_held_out_examples(cheap_runs, programs, tmp_path):
    config = small(validation=0.1, measure='forgetting', rounds=2)
    members, _ = run(config, 'partition_seed=0,1', 1, tmp_path / 'sweep')
    assert programs == [2]
    for member in members:
        workdir = str(tmp_path / member.config.workdir[-9:])
        alone = dataclasses.replace(member.config, workdir=workdir)
        ours = Path(member.config.workdir)
        assert_same(lines(ours), jaxfed.simulate(alone).metrics)
    first, second = (lines(Path(m.config.workdir))[0]['test_loss'] for m in members)
    assert first != second


@pytest.mark.slow
def test_halving_of_a_split_program(cheap_runs, programs, tmp_path, monkeypatch):
    inner = simulate.prepare

    def prepare(experiments):
        if len(experiments) > 4:
            raise feed.TooLarge('too large')
        return inner(experiments)

    monkeypatch.setattr(simulate, 'prepare', prepare)
    config = small(rounds=3, validation=0.2)
    _, outcomes = run(config, 'learning_rate=1e-6,0.1,1e-5', 2, tmp_path, rungs=[1])
    assert programs == [4, 2]
    # The seeds of a setting stay together; the last setting has no other to compare with.
    trained = {dict(o.point)['learning_rate']: o.rounds for o in outcomes}
    assert trained == {1e-6: [1, 1], 0.1: [3, 3], 1e-5: [3, 3]}


@pytest.mark.parametrize(
    'settings, largest, parts',
    [
        ('', 5, ['01234', '5678']),
        ('AAABBBCCC', 6, ['012345', '678']),
        ('AAABBBCCC', 5, ['012', '345', '678']),
        ('ABABABABC', 6, ['0246', '1357', '8']),
        ('AAAAAAAAA', 5, ['01234', '5678']),
    ],
)
def test_a_program_is_divided_between_settings(settings, largest, parts, tmp_path, monkeypatch):
    def train_experiments(part, folder, **_):
        if len(part) > largest:
            raise feed.TooLarge('too large')
        trained.append(''.join(experiment.workdir.name for experiment in part))
        return [experiment.workdir.name for experiment in part]

    trained = []
    monkeypatch.setattr(training, 'train_experiments', train_experiments)
    experiments = [types.SimpleNamespace(workdir=tmp_path / str(x)) for x in range(9)]
    assert training.train_group(experiments, tmp_path, settings=settings) == [*'012345678']
    assert trained == parts


def test_the_first_run_with_a_record_of_its_data_is_compared(tmp_path):
    config = small()
    done = [dataclasses.replace(config, workdir=str(tmp_path / name)) for name in 'ab']
    runner.check_same_data(done)  # nothing is recorded
    (tmp_path / 'b').mkdir()
    (tmp_path / 'b' / run_files.PARTITION).write_text('{"data_digest": "other"}')
    with pytest.raises(ValueError, match='describes other data or another file of --init_from'):
        runner.check_same_data(done)


def test_runs_that_start_from_another_file_are_not_mixed(tmp_path):
    file = tmp_path / 'model.safetensors'
    save_file({'w': np.zeros(2)}, file)
    config = small(init_from=str(file), workdir=str(tmp_path / 'a'))
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / run_files.PARTITION).write_text(json.dumps(init_digest(config)))
    runner.check_same_data([config])
    save_file({'w': np.ones(2)}, file)
    with pytest.raises(ValueError, match='describes other data or another file of --init_from'):
        runner.check_same_data([config])


@pytest.mark.slow
def test_a_program_that_ended_between_two_summaries_is_finished(
    cheap_runs, tmp_path, monkeypatch, capsys
):
    config = small(rounds=3, validation=0.2)
    arguments = config, 'learning_rate=1e-6,0.1,1e-5', 1
    _, whole = run(*arguments, tmp_path / 'whole', rungs=[1])
    written = []

    def write_json(path, value):
        if path.name == 'summary.json':
            written.append(path)
            if len(written) == 2:
                raise OSError('disk full')
        files.write_json(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(run_files, 'write_json', write_json)
        run(*arguments, tmp_path / 'torn', rungs=[1])
    assert len(list((tmp_path / 'torn').glob('*/summary.json'))) == 1
    (journal,) = (tmp_path / 'torn').glob('.together/*/summaries.json')
    whole_text = journal.read_text()
    for name in '../../../../elsewhere', '../..':
        journal.write_text(json.dumps({name: None}))
        with pytest.raises(ValueError, match=r'summaries.json is damaged: remove .* to restart'):
            run(*arguments, tmp_path / 'torn', rungs=[1])
    journal.write_text(whole_text.replace('"rounds": 3', '"rounds": "3"'))
    with pytest.raises(ValueError, match=r'summaries.json is not the summary of a run'):
        run(*arguments, tmp_path / 'torn', rungs=[1])
    journal.write_text(whole_text)
    training.finish_program(journal.with_name('gone.json'), tmp_path / 'torn')
    moved = tmp_path / 'moved'
    shutil.copytree(tmp_path / 'torn', moved)
    alone = moved / written[1].parent.name  # begun again, with its own checkpoints
    (alone / 'checkpoints').mkdir()
    claims.finish_programs(moved)
    assert {path.parent.name for path in moved.glob('*/summary.json')} == {
        path.name for path in moved.iterdir() if path.name[0] != '.' and path.is_dir()
    } - {alone.name}
    members = sweep.expand(config, grid.parse_grid(arguments[1], config), 1, tmp_path / 'torn')
    sweep.show_dry_run(members, tmp_path / 'torn', rungs=[1])
    assert 'some are trained, but ended before their summaries' in capsys.readouterr().out
    with exclusive_lock(written[1].parent):  # of a process that writes them
        claims.finish_programs(tmp_path / 'torn')
    assert len(list((tmp_path / 'torn').glob('*/summary.json'))) == 1
    monkeypatch.delattr(training, 'train_experiments')
    late = tmp_path / 'late'  # a process that planned before the other one ended
    shutil.copytree(tmp_path / 'torn', late)
    configs = [
        dataclasses.replace(m.config, workdir=str(late / Path(m.config.workdir).name))
        for m in members
        if not runner.is_done(m.config)
    ]
    assert len(configs) == 2
    read = runner.run_groups(configs, late, [[0, 1]], make_experiment, str, quiet=True)
    assert all(isinstance(result, jaxfed.Result) for result in read)
    _, finished = run(*arguments, tmp_path / 'torn', rungs=[1])
    assert finished == whole
    assert not (tmp_path / 'torn' / '.together').exists()


@pytest.mark.slow
def test_experiments_interrupted_together_are_not_restarted_in_part(
    cheap_runs, programs, tmp_path, stopped_before
):
    config = small(rounds=4, checkpoint_every=1)
    with stopped_before(3):
        run(config, '', 3, tmp_path)
    with pytest.raises(ValueError, match=r'3 experiments were interrupted together, but 1 of'):
        run(config, '', 2, tmp_path)
    assert all(len(lines(p)) == 2 for p in folders(tmp_path))
    part = [dataclasses.replace(config, seed=i, workdir=str(tmp_path / f'seed{i}')) for i in (0, 1)]
    with contextlib.ExitStack() as locks:  # of another process, which trains all three
        for i in range(3):
            locks.enter_context(FileLock(tmp_path / f'.seed{i}.lock'))
        assert training.group(part, tmp_path) == [[0, 1]]
    _, outcomes = run(config, '', 4, tmp_path)  # more experiments may be added
    assert programs == [3, 1] and outcomes[0].rounds == [4] * 4
    resumed = json.loads((tmp_path / 'seed0' / 'summary.json').read_text())['resumed_after']
    assert resumed == 2


@pytest.mark.slow
def test_a_sweep_continues_with_the_same_halving_only(cheap_runs, tmp_path):
    config = small(rounds=2, validation=0.2)
    run(config, 'learning_rate=0.01,0.03', 1, tmp_path, rungs=[1])
    message = r'--halving=: --workdir=.* holds a sweep with --halving=1; repeat it, or name'
    with pytest.raises(ValueError, match=message):
        run(config, 'learning_rate=0.01,0.03', 1, tmp_path)
    run(config, 'learning_rate=0.01,0.03', 1, tmp_path, rungs=[1])
    path = tmp_path / 'learning_rate0.01_seed0' / 'summary.json'
    path.write_text('{}')
    with pytest.raises(ValueError, match=r'summary.json is not the summary of a run'):
        run(config, 'learning_rate=0.01,0.03', 1, tmp_path, rungs=[1])


@pytest.mark.slow
def test_a_run_that_halving_cannot_compare_again_is_named(cheap_runs, tmp_path):
    arguments = small(rounds=2, validation=0.2), 'learning_rate=0.01,0.03 batch_size=5,10', 1
    _, whole = run(*arguments, tmp_path, rungs=[1])
    stopped = [len(lines(folder)) for folder in folders(tmp_path)].index(1)
    workdir = folders(tmp_path)[stopped]
    (workdir / 'summary.json').unlink()
    message = rf'{re.escape(str(workdir))} holds a finished run without summary.json'
    with pytest.raises(ValueError, match=message):
        run(*arguments, tmp_path, rungs=[1])
    # All runs of its program together are compared again.
    same = [f for f in folders(tmp_path) if workdir.name.split('_batch')[1] in f.name]
    for folder in same:
        (folder / 'summary.json').unlink(missing_ok=True)
    assert len(same) == 2
    _, again = run(*arguments, tmp_path, rungs=[1])
    assert again == whole
    shutil.rmtree(workdir)
    _, alone = run(*arguments, tmp_path, rungs=[1])
    assert sorted(len(lines(folder)) for folder in folders(tmp_path)) == [1, 2, 2, 2]
    assert [o.rounds for o in alone].count([2]) == [o.rounds for o in whole].count([2]) + 1


@pytest.mark.parametrize('members', [[], ['seed0', 'seed0'], 3, [4]])
def test_damaged_members_are_named(tmp_path, members):
    place = tmp_path / training.SHARED / 'ab'
    place.mkdir(parents=True)
    (place / training.MEMBERS).write_text(json.dumps({'members': members}))
    with pytest.raises(ValueError, match=r'members.json is damaged: remove .*ab to restart'):
        training.group([small(workdir=str(tmp_path / 'seed0'))], tmp_path)


@pytest.mark.slow
def test_a_method_that_calls_numpy_has_one_program_for_each(
    cheap_runs, programs, tmp_path, monkeypatch
):
    def logarithmic(*, strength: float = 0.1) -> Method:
        """A penalty."""
        weight = np.log1p(strength)
        return Method(penalty=lambda view: weight * view.mean(view.outputs.logits.sum(-1) ** 2))

    monkeypatch.setitem(methods.METHODS, 'logarithmic', logarithmic)
    _, outcomes = run(small(method='logarithmic', rounds=1), 'strength=0.1,1', 1, tmp_path)
    assert programs == [1, 1] and len({tuple(o.final) for o in outcomes}) == 2


@pytest.mark.slow
def test_a_diverged_experiment_continues_before_the_failed_round(cheap_runs, tmp_path, monkeypatch):
    config = small(rounds=4, checkpoint_every=1, workdir=str(tmp_path / 'run'))
    calls, inner = [], rounds.train_and_evaluate

    def run_round(prepared, experiments, planned, *rest):
        state, entries = inner(prepared, experiments, planned, *rest)
        calls.append(planned.number)
        if planned.number == 3:
            entries[0]['train_loss'] = float('nan')
        return state, entries

    monkeypatch.setattr(rounds, 'train_and_evaluate', run_round)
    for _ in range(2):
        with pytest.raises(simulate.Diverged, match='round 3: train_loss is not finite'):
            jaxfed.simulate(config)
    assert calls == [1, 2, 3, 3] and len(lines(tmp_path / 'run')) == 2


@pytest.mark.slow
def test_a_sweep_with_halving_continues_after_a_run_that_diverged(cheap_runs, tmp_path):
    arguments = small(rounds=2, validation=0.2), 'learning_rate=0.01,0.03,1e9', 1, tmp_path
    _, first = run(*arguments, rungs=[1])
    _, again = run(*arguments, rungs=[1])
    assert first == again and [outcome.failed for outcome in first] == [0, 0, 1]


def test_seeds_that_halving_stopped_in_other_rounds_have_no_mean(cheap_runs, tmp_path, capsys):
    config = small(rounds=2, validation=0.2)
    run(config, 'learning_rate=1e-6,0.1', 1, tmp_path, rungs=[1])
    # As if the better setting were the worse one of a seed that is added.
    for folder in folders(tmp_path):
        added = folder.with_name(folder.name.replace('seed0', 'seed1'))
        shutil.copytree(folder, added)
        changed = json.loads((added / 'config.json').read_text()) | {'seed': 1}
        (added / 'config.json').write_text(json.dumps(changed))
        summary = json.loads((added / 'summary.json').read_text())
        summary['stopped_early'] = not summary['stopped_early']
        summary['rounds'] = 3 - summary['rounds']
        (added / 'summary.json').write_text(json.dumps(summary))
    _, mixed = run(config, 'learning_rate=1e-6,0.1', 2, tmp_path, rungs=[1])
    assert [o.final for o in mixed] == [o.best for o in mixed] == [[None] * 2] * 2
    rows = list(csv.DictReader((tmp_path / 'sweep.csv').open()))
    assert [row['final_accuracy'] for row in rows] == ['', '']
    results.show_outcomes(mixed, tmp_path, config)
    assert capsys.readouterr().out.count('1 of 2 stopped early') == 2


@pytest.mark.slow
def test_a_sweep_with_examples_on_the_server_and_noisy_labels_is_extended(cheap_runs, tmp_path):
    config = small(method='fedcad', rounds=1, label_noise=0.2)
    run(config, '', 1, tmp_path)
    run(config, '', 2, tmp_path)
    assert len(folders(tmp_path)) == 2


@pytest.mark.slow
def test_a_sweep_is_not_extended_with_other_data(cheap_runs, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f'x_{split}': rng.integers(0, 256, (40, 4, 4, 1), np.uint8) for split in SPLITS}
    labels = {f'y_{split}': np.arange(40) % 4 for split in SPLITS}
    np.savez(tmp_path / 'data.npz', **arrays, **labels)
    config = small(
        rounds=1, dataset='npz', partition='iid', min_size=1, npz=str(tmp_path / 'data.npz')
    )
    folder = tmp_path / 'sweep'
    run(config, '', 1, folder)
    run(config, '', 2, folder)
    np.savez(tmp_path / 'data.npz', **arrays, **{name: 3 - y for name, y in labels.items()})
    with pytest.raises(ValueError, match=r'seed0/partition.json describes other data or another'):
        run(config, '', 3, folder)
    with pytest.raises(ValueError, match=r'seed0/partition.json describes other data or another'):
        jaxfed.simulate_all({'seed0': config, 'new': config}, folder, quiet=True)
    assert not (folder / 'seed2').exists() and not (folder / 'new').exists()
    with pytest.raises(ValueError, match='holds a run; name another directory for several'):
        jaxfed.simulate_all({'a': config}, folder / 'seed0', quiet=True)


@pytest.mark.slow
def test_experiments_that_lost_their_checkpoints_say_so(
    cheap_runs, tmp_path, stopped_before, capsys
):
    config = small(rounds=2, checkpoint_every=1)
    with stopped_before(2):
        run(config, '', 2, tmp_path)
    shutil.rmtree(tmp_path / training.SHARED)
    run(config, '', 2, tmp_path, quiet=False)
    shown = ' '.join(capsys.readouterr().out.split())
    assert f'2 experiments in {tmp_path}: no checkpoint, starting again at round 1' in shown
