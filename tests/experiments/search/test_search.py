"""The search of a grid: its runs, its data, its choice, and refused input."""

import csv
import json
import re
import shlex

import numpy as np
import pytest

from experiments.grid import runner
from experiments.search.__main__ import main
from experiments.search.cells import make_search
from jaxfed.runs import config_flags
from tests.test_main import make_npz

GRID = ('--method=fedcad', '--grid=beta:0,.3,.6', '--grid=gamma:.5', '--rounds=3')


def plain_npz(path, **changes):
    """Images that can be learned: the class is the brightest row."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 99, (120, 6, 6, 1)).astype(np.uint8)
    x[np.arange(120), 2 * y] += 90
    return make_npz(path, x_train=x, y_train=y, **changes)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()}


@pytest.mark.slow
def test_search_uses_only_held_out_training_data(command, tmp_path, capsys):
    rng = np.random.default_rng(1)
    plain_npz(tmp_path / 'tiny.npz')
    images = rng.integers(0, 256, (7, 6, 6, 1)).astype(np.uint8)
    plain_npz(tmp_path / 'garbage.npz', x_test=images, y_test=rng.integers(0, 3, 7))
    assert command(*GRID, '--validation=.25', '--output=a') == 0
    shown = capsys.readouterr().out
    assert 'the search never uses test data' in ' '.join(shown.split())
    assert re.search(r'skipped --beta=.6 --gamma=.5: .*: beta, gamma must .* \(0.6, 0.5\)', shown)
    assert command(*GRID, '--validation=.25', '--output=b', npz='garbage.npz') == 0
    # Other test images and labels, and fewer: every number and the choice are the same.
    a, b = (json.loads((tmp_path / name / 'search.json').read_text()) for name in 'ab')
    assert a['command'].replace('tiny.npz', 'garbage.npz') == b.pop('command')
    a.pop('command')
    assert a == b
    assert a['evaluated_on'] == 'validation'
    assert len(a['ranking']) == 2
    assert [entry['flags'] for entry in a['skipped']] == [['--beta=.6', '--gamma=.5']]
    for path in (tmp_path / 'a').rglob('summary.json'):
        summary = json.loads(path.read_text())
        assert summary['evaluated_on'] == 'validation'
        line = json.loads(path.with_name('metrics.jsonl').read_text().splitlines()[0])
        # Of 30 held-out examples, ten a class; there are seven test images in the other file.
        assert line['test_accuracy'] * 30 == pytest.approx(round(line['test_accuracy'] * 30))
    best = max(entry['mean'] for entry in a['ranking'])
    assert a['ranking'][0]['mean'] == best
    assert a['chosen'] == a['ranking'][0]['flags']
    assert best > 40  # training has an effect

    # The tables say the same.
    lines = list(csv.DictReader((tmp_path / 'a' / 'search.csv').open()))
    assert [float(line['accuracy']) for line in lines] == pytest.approx(
        [entry['mean'] for entry in a['ranking']], abs=1e-3
    )
    assert {line['evaluated_on'] for line in lines} == {'validation'}
    text = (tmp_path / 'a' / 'search.md').read_text()
    block = re.findall(r'^\|.*$', text, re.MULTILINE)
    assert len(block) == 4
    assert len({line.count('|') for line in block}) == 1

    # The winner's command trains on all data.
    words = shlex.split(json.loads((tmp_path / 'a' / 'search.json').read_text())['command'])
    assert words[:3] == ['python', '-m', 'jaxfed.main']
    config = config_flags.parse(words[3:])
    assert config.validation == 0
    assert config.rounds == 3
    chosen = dict(flag.lstrip('-').split('=') for flag in a['chosen'])
    assert dict(config.hyperparameters) == {k: float(v) for k, v in chosen.items()}

    # It resumes, and no run is repeated.
    before = stamps(tmp_path / 'a' / 'flags')
    stopped = next(iter((tmp_path / 'a').rglob('summary.json')))
    stopped.unlink()
    assert command(*GRID, '--validation=.25', '--output=a') == 0
    assert stopped.exists()
    after = stamps(tmp_path / 'a' / 'flags')
    assert all(after[p] == t for p, t in before.items() if stopped.parent not in p.parents)
    again = json.loads((tmp_path / 'a' / 'search.json').read_text())
    assert again['ranking'] == a['ranking']

    # A larger grid reuses finished runs; other settings and another search are refused.
    before = stamps(tmp_path / 'a')
    capsys.readouterr()
    wider = (*GRID[:2], '--grid=gamma:.5,1', '--rounds=3')
    assert command(*wider, '--validation=.25', '--output=a', '--dry_run') == 0
    shown = capsys.readouterr().out
    assert (shown.count('done '), shown.count('to run ')) == (2, 3)
    assert command(*GRID, '--output=a') == 2
    assert '--validation=0.25, not 0.1' in capsys.readouterr().err
    other = ('--method=kd', '--grid=beta:.5', '--rounds=3', '--output=a')
    assert command(*other) == 2
    assert (
        '--output=a holds a search of fedcad on flags over beta, gamma' in capsys.readouterr().err
    )
    assert stamps(tmp_path / 'a') == before


@pytest.mark.slow
def test_a_flag_file_and_training_are_searched(command, tmp_path, capsys):
    plain_npz(tmp_path / 'tiny.npz')
    (tmp_path / 'mine.flags').write_text(
        '--rounds=1\n--learning_rate=.5\n--num_clients=9\n--validation=.3\n'
    )
    arguments = ('--method=fedavg', '--grid=learning_rate:.1,.01', '--seeds=2', '--score=final')
    assert command(*arguments, '--flagfile=mine.flags', '--output=a') == 0
    report = json.loads((tmp_path / 'a' / 'search.json').read_text())
    assert report['column'] == 'mine'
    assert [len(entry['accuracies']) for entry in report['ranking']] == [2, 2]
    assert '--flagfile=mine.flags --method=fedavg --learning_rate=' in report['command']
    # The flag file sets --validation; the winner still trains on all data.
    *words, seeds = shlex.split(report['command'])[3:]
    assert config_flags.parse(words).validation == 0 and seeds == '--seeds=2'
    configs = [json.loads(path.read_text()) for path in (tmp_path / 'a').rglob('config.json')]
    assert sorted((c['learning_rate'], c['seed']) for c in configs) == [
        (0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1),
    ]  # fmt: skip
    assert {c['validation'] for c in configs} == {0.1}


@pytest.mark.slow
def test_halving_stops_the_worse_half(command, tmp_path, capsys):
    plain_npz(tmp_path / 'tiny.npz')
    grid = ('--method=fedavg', '--grid=learning_rate:1e-6,.03,.01,.1', '--rounds=3', '--seeds=2')
    assert command(*grid, '--validation=.25', '--output=a', '--halving=1,2') == 0
    shown = ' '.join(capsys.readouterr().out.split())
    report = json.loads((tmp_path / 'a' / 'search.json').read_text())
    after = {entry['flags'][0]: entry['given_up_after'] for entry in report['ranking']}
    assert report['halving'] == [1, 2]
    assert sorted(map(str, after.values())) == ['1', '1', '2', 'None']
    assert after['--learning_rate=1e-6'] == 1
    assert after[report['chosen'][0]] is None and report['ranking'][0]['flags'] == report['chosen']
    assert 'Stopped early after round 1: ' in shown
    summaries = [json.loads(path.read_text()) for path in (tmp_path / 'a').rglob('summary.json')]
    assert {entry['experiments'] for entry in summaries} == {8}
    assert sorted(entry['rounds'] for entry in summaries) == [1] * 4 + [2] * 2 + [3] * 2
    # A stopped run never has all rounds, but another search would expect them.
    before = stamps(tmp_path)
    assert command(*grid, '--validation=.25', '--output=a', '--halving=2') == 2
    assert 'was stopped after round 1 by a search with --halving' in capsys.readouterr().err
    assert stamps(tmp_path) == before
    assert {entry['evaluated_on'] for entry in summaries} == {'validation'}


@pytest.mark.slow
def test_a_search_is_not_extended_with_other_data(command, tmp_path, capsys):
    plain_npz(tmp_path / 'tiny.npz')
    search = ('--method=fedavg', '--rounds=1', '--seeds=1', '--output=a')
    assert command(*search, '--grid=learning_rate:.01') == 0
    with np.load(tmp_path / 'tiny.npz') as arrays:
        changed = {**arrays, 'y_train': arrays['y_train'][::-1]}
    np.savez(tmp_path / 'tiny.npz', **changed)
    assert command(*search, '--grid=learning_rate:.01,.03') == 2
    assert 'describes other data or another file of --init_from' in capsys.readouterr().err
    assert len(list((tmp_path / 'a').rglob('summary.json'))) == 1


def test_a_combination_alone_in_its_program_is_named(tmp_path, monkeypatch, capsys):
    search = make_search(
        method='fedavg', axes=['local_epochs:1,5'], seeds=2, halving='1', output=tmp_path,
        flags_=['--rounds=3'],
    )  # fmt: skip
    monkeypatch.setattr(
        runner.runner, 'run_groups', lambda configs, *_, **__: [None] * len(configs)
    )
    runner.run_cells(search.every, halves=True)
    shown = ' '.join(capsys.readouterr().err.split())
    assert 'no two of these can share one, so none stops early.' in shown


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--grid=beta:1'], '--method is missing'),
        (['--method=fedlmb', '--grid=beta:1'], "unknown method 'fedlmb'"),
        (['--method=kd'], '--grid is missing'),
        (['--method=kd', '--grid=bta:1'], "'bta' must be one of switch_round"),
        (['--method=kd', '--grid=alpha:1'], "'alpha' must be one of"),
        (['--method=kd', '--grid=seed:1'], "'seed' must be one of"),
        (['--method=kd', '--grid=:1'], "'nothing' must be one of"),
        (['--method=kd', '--grid=beta'], '--grid=beta has no values'),
        (['--method=kd', '--grid=beta:'], '--grid=beta: has no values'),
        (['--method=kd', '--grid=beta:x'], '--grid=beta:x: x must be a number'),
        (['--method=kd', '--grid=batch_size:1.5'], '1.5 must be an integer'),
        (['--method=kd', '--grid=beta:.5,0.5'], 'has 0.5 twice'),
        (['--method=kd', '--grid=beta:1', '--grid=beta:2'], 'beta is named twice'),
        (
            ['--method=kd', '--grid=beta:1,2', '--score=personal', '--halving=1'],
            '--score=personal and --halving=1: halving compares global models; leave one',
        ),
        (['--method=kd', '--grid=beta:nan'], 'no combination can be run'),
        (['--method=kd', '--grid=beta:-1'], 'beta must be at least 0, got -1.0'),
        (['--method=moon', '--grid=projection:yes'], 'yes must be True or False'),
        (['--method=fedavgm', '--grid=form:ema,foo'], 'foo must be one of heavy_ball, ema'),
        (['--method=fedlmd+kd', '--grid=tau:1'], "'tau' must be one of"),
        (['--method=kd', '--grid=beta:1', '--validation=0'], '--validation=0.0 must be above 0'),
        (['--method=kd', '--grid=beta:1', '--validation=1'], '--validation=1.0 must be above 0'),
        (['--method=kd', '--grid=beta:1', '--seeds=0'], '--seeds must be at least 1, got 0'),
        (['--method=kd', '--grid=beta:1', '--column=a/b'], 'no flag file'),
        (['--method=kd', '--grid=beta:1', '--flagfile=absent'], 'absent'),
        (
            ['--method=kd', '--grid=beta:1', '--flagfile=x', '--column=fedlmd/cifar10_lda0.1'],
            'leave one of them out',
        ),
        (['--method=kd', '--grid=beta:1', '--', '--beta=2'], '--beta=2.0 is searched'),
        (['--method=kd', '--grid=beta:1', '--', '--kd.beta=2'], 'both beta of kd'),
        (
            ['--method=kd', '--grid=beta:1', '--', '--validation=0'],
            '--validation=0.0 must be before',
        ),
        (['--method=kd', '--grid=beta:1', '--', '--flagfile=x'], '--flagfile must be before --'),
        (['--method=kd', '--grid=beta:1', '--', '--seed=3'], '--seed=3 is set for each run'),
        (
            ['--method=fedrs', '--grid=continuous:True,False', '--', '--nocontinuous'],
            '--continuous=False is searched',
        ),
        (['--method=kd', '--grid=beta:1', '--', '--dataset=no_such'], 'no_such'),
        (['--method=kd', '--grid=beta:1', '--halving=0'], '--halving must be rounds below'),
        (['--method=kd', '--grid=beta:1', '--halving=x'], '--halving must be rounds below'),
        (
            ['--method=kd', '--grid=beta:1', '--together=-1'],
            '--together must be at least 0, got -1',
        ),
        (['--method=kd', '--grid=beta:1', '--', '--halving=2'], '--halving=2 is a flag of a'),
        (
            ['--method=kd', '--grid=beta:1', '--halving=2', '--', '--eval_every=5'],
            'no round up to 2 is evaluated with --eval_every=5',
        ),
        (['--method=kd', '--grid=beta:1', 'stray'], 'unexpected arguments stray'),
        (['--method=ditto', '--grid=lam:1', '--score=personal'], '--score=personal needs --perso'),
        (['--method=ditto', '--grid=lam:1', '--halving=2'], 'but --method=ditto has a model for'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_invalid_input_is_refused_before_the_first_run(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r'error: .*\n', shown.err)
    assert message in shown.err
    assert not list(tmp_path.iterdir())


def test_a_file_after_the_dashes_cannot_override_what_is_searched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.json').write_text('{"learning_rate": 0.5}')
    arguments = ['--method=fedavg', '--grid=learning_rate:.001,.1', '--', '--config=mine.json']
    assert main(arguments) == 2
    assert '--learning_rate=0.5 is searched; leave it out after --.' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['mine.json']
