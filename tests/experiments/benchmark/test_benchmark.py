"""A benchmark at toy size: tuned on held-out data, tested once, continued, and written."""

import csv
import re

import pytest

from experiments.benchmark import page, results, suite
from experiments.benchmark.__main__ import main
from experiments.grid import runner

TOY = """
title = 'Toy'
seeds = 2
validation = 0.2
flags = ['model=mlp', 'num_clients=4', 'clients_per_round=2', 'rounds=4', 'local_epochs=1',
  'measure=forgetting', 'devices=1', 'lanes=1']
[datasets]
digits = ['dataset=digits']
[skews]
iid = ['partition=iid']
'dirichlet_1' = ['partition=dirichlet', 'alpha=1']
'dirichlet_5' = ['partition=dirichlet', 'alpha=5']
sharding_4 = ['partition=sharding', 'shards_per_client=4']
[trials]
fedavg = ['learning_rate=.03', 'learning_rate=1e-6']
fedprox = ['learning_rate=.03 mu=.1', 'learning_rate=1e-6 mu=.1']
fedlmd = ['learning_rate=1e-6 beta=1', 'learning_rate=.03 beta=1']
"""


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp('suite') / 'toy.toml'
    path.write_text(TOY)
    return path


@pytest.fixture(scope='module')
def output(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp('output')
    assert main([f'--suite={toy}', f'--output={folder}']) == 0
    return folder


@pytest.mark.slow
def test_the_better_trial_is_chosen_and_tested_with_all_seeds(output):
    with (output / 'toy' / 'benchmark.csv').open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * 3 * 2
    assert {line['seed'] for line in lines} == {'0', '1'}
    assert all('learning_rate=.03' in line['trial'] for line in lines)
    tests = list((output / 'toy' / 'runs').glob('**/summary.json'))
    assert len(tests) == 24
    assert '"evaluated_on": "test"' in tests[0].read_text()
    trials = list((output / 'toy' / 'tuning').glob('**/summary.json'))
    assert len(trials) == 4 * 3 * 2
    assert all('"evaluated_on": "validation"' in trial.read_text() for trial in trials)


@pytest.mark.slow
def test_the_page_loads_nothing_and_has_all_parts(output):
    text = (output / 'toy' / 'benchmark.html').read_text()
    assert "default-src 'none'" in text
    assert not re.search(r'(src|href)="(?!#)', text)
    for part in ('Which method', 'Friedman test', 'digits, sharding 4', 'MiB a client', '± '):
        assert part in text
    commands = re.findall(r'<h3 id="([^"]+)">', text)
    assert len(commands) == 12
    assert all(f'href="#{name}"' in text for name in commands)
    assert '--method=fedlmd' in text and '--seeds=2' in text


@pytest.mark.slow
def test_finished_runs_are_skipped(output, toy, monkeypatch, capsys):
    monkeypatch.setattr(runner.runner, 'run_groups', None)  # nothing trains
    assert main([f'--suite={toy}', f'--output={output}']) == 0
    assert '24 of 24 tests are done.' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['small', 'cpu', 'gpu'])
def test_suites_have_equal_budgets_and_valid_flags(name, tmp_path):
    read = suite.read_suite(name)
    for place in suite.places(read):
        cells = suite.tuning_cells(read, place, tmp_path, [])
        assert len({cell.folder for cell in cells}) == len(cells)
        assert all(cell.config.validation == read.validation for cell in cells)
    assert 'fedavg' in read.trials


def test_trials_are_chosen_by_held_out_data(tmp_path, monkeypatch):
    read = suite.read_suite('small')
    place = next(iter(suite.places(read)))
    cells = suite.tuning_cells(read, place, tmp_path, [])
    monkeypatch.setattr(runner, 'is_done', lambda cell: True)

    def recorded(*accuracies, on='validation'):
        runs = {
            cell.folder: runner.RecordedCell(
                {}, {'evaluated_on': on, 'failed': a is None, 'final_accuracy': a}, []
            )
            for cell, a in zip(cells, accuracies, strict=True)
        }
        monkeypatch.setattr(runner, 'read', lambda cell: runs[cell.folder])

    for accuracies, best in (((0.4, 0.5), 1), ((0.5, 0.5), 0), ((None, 0.1), 1), ((None, None), 0)):
        recorded(*accuracies)
        assert suite.choose(cells) == cells[best].variant
    recorded(0.4, 0.5, on='test')
    with pytest.raises(ValueError, match='was evaluated on test data'):
        suite.choose(cells)
    monkeypatch.setattr(runner, 'is_done', lambda cell: cell is cells[0])
    assert suite.choose(cells) is None


def made_row(method, accuracies, skew='iid'):
    metrics = [
        {'round': r, 'test_accuracy': a, 'class_accuracy': [a, a / 2], 'forgetting': 0.25}
        for r, a in ((2, 0.1), (4, 0.2))
    ]
    runs = {}
    for seed, final in enumerate(accuracies):
        last = {**metrics[0], 'round': 8, 'test_accuracy': final, 'class_accuracy': [final, 0.3]}
        costs = {'upload_bytes': 2**20, 'download_bytes': 2**20, 'forward_passes': 1}
        summary = {
            'failed': final is None, 'final_accuracy': final, 'best_accuracy': final, 'cost': costs,
            'memory_bytes': 2**21, 'experiments': 2, 'seconds_total': 3.0,
        }  # fmt: skip
        runs[seed] = runner.RecordedCell({'rounds': 8}, summary, [*metrics, last])
    place = suite.Place('digits', skew, method)
    return results.Row(place, ('--mu=1',), {('--mu=1',): 50.0}, runs, 3, 'python -m jaxfed')


def test_numbers_of_a_run():
    row = made_row('fedavg', [0.5, 0.6, 0.7])
    assert row.values('quarter') == {0: 10.0, 1: 10.0, 2: 10.0}
    assert row.values('half')[0] == 20.0
    assert row.values('worst class')[2] == pytest.approx(30.0)
    assert row.values('forgetting')[0] == 25.0
    assert row.interval('final').mean == pytest.approx(60.0)
    assert results.cost(row.runs[0])['MiB a client'] == 2
    assert results.cost(row.runs[0])['MiB of memory'] == 1


def test_verdicts_are_against_fedavg_of_the_same_table():
    rows = [
        made_row('fedavg', [0.5, 0.6, 0.7]),
        made_row('fedlmd', [0.61, 0.7, 0.81]),
        made_row('kd', [0.5, 0.61, 0.69]),
        made_row('moon', [0.3, None, 0.3]),
        made_row('kd', [0.9, 0.9, 0.9], skew='other'),
    ]
    by_place = results.verdicts(rows)
    judged = [by_place[row.place] for row in rows]
    assert [verdict.sign for verdict in judged] == [0, 1, 0, 0, 0]
    assert [verdict.rank for verdict in judged] == [2, 1, 2, None, 1]
    assert rows[3].failed == 1 and not rows[3].complete
    texts = page.answers(rows)
    assert texts[0] == 'digits, iid: better than FedAvg beyond chance: fedlmd.'
    assert texts[1] == 'digits, other: not enough seeds to compare with FedAvg.'


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--suite=smal'], '--suite=smal is no file; did you mean small?'),
        (['--methods=fedlm'], '--methods: the suite small has no fedlm; did you mean fedlmd'),
        (['--skews=x'], '--skews: the suite small has no x.'),
        (['word'], 'unexpected arguments word'),
    ],
)
def test_invalid_input_is_one_line(flags, message, capsys):
    assert main(flags) == 2
    assert message in capsys.readouterr().err


def test_unequal_budgets_are_refused(toy, tmp_path):
    path = tmp_path / 'unfair.toml'
    path.write_text(TOY.replace(", 'learning_rate=1e-6']", ']'))
    with pytest.raises(ValueError, match='must have the same number of trials'):
        suite.read_suite(str(path))
