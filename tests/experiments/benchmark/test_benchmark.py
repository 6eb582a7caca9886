"""A benchmark at toy size: tuned on held-out data, tested once, continued, and written."""

import csv
import html
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import advice, answers, page, plan, ranks, records, results, suite, work
from experiments.benchmark.__main__ import check_packages, define, main, suite_command, write
from experiments.grid import command, runner
from jaxfed.internal.signals import Interrupted
from jaxfed.metrics.intervals import Interval
from jaxfed.runs import config_flags
from tests.marks import only_fast

ROOT = Path(__file__).parents[3]

# Clients of equal size, so that all skews share programs.
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
sharding_4 = ['partition=sharding', 'shards_per_client=4']
sharding_5 = ['partition=sharding', 'shards_per_client=5']
sharding_6 = ['partition=sharding', 'shards_per_client=6']
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
    assert len(lines) == 4 * 3 * (2 + 2)
    lines = [line for line in lines if line['stage'] == 'runs']
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
def test_the_page_loads_nothing_and_has_all_parts(output, toy):
    text = (output / 'toy' / 'benchmark.html').read_text()
    assert "default-src 'none'" in html.unescape(text)
    assert not re.search(r'(src|href)="(?!#)', text)
    for part in ('Which method', 'Friedman test', 'digits, sharding 4', 'MiB a client', '± '):
        assert part in text
    commands = re.findall(r'<h3 id="([^"]+)">', text)
    assert len(commands) == 12
    assert all(f'href="#{name}"' in text for name in commands)
    assert '--method=fedlmd' in text and '--seeds=2' in text
    body = re.search(r'<tbody>(.*?)</tbody>', text, re.DOTALL)[1]
    assert body.count('<td') == body.count('</a></td>') > 0
    assert f'<pre>python -m experiments.benchmark --suite={toy}</pre>' in text
    assert len(re.findall(r'<pre>python -m jaxfed .*--validation=0.2 .*--seeds=1', text)) == 24
    assert text.count(' % of the held-out data</p>') == 24


@pytest.mark.slow
def test_a_section_of_a_file_is_updated(output, toy, tmp_path, capsys):
    path = tmp_path / 'README.md'
    command = [f'--suite={toy}', f'--output={output}', '--report_only', f'--update={path}']
    path.write_text('before\n<!-- toy benchmark: begin -->\nold\n')
    assert main(command) == 2
    assert 'must have the lines <!-- toy benchmark: begin -->' in capsys.readouterr().err
    assert main([*command[:-1], f'--update={tmp_path / "absent.md"}']) == 2
    assert 'absent.md cannot be read: No such file or directory.' in capsys.readouterr().err
    path.write_text(path.read_text() + '<!-- toy benchmark: end -->\nafter\n')
    assert main(command) == 0
    assert main(command) == 0
    text = path.read_text()
    assert text.startswith('before\n<!-- toy benchmark: begin -->\nToy: test accuracy')
    assert text.endswith('<!-- toy benchmark: end -->\nafter\n')
    assert '| digits, sharding 6 |' in text and 'old' not in text
    path.write_text('<!-- toy benchmark summary: begin -->\n<!-- toy benchmark summary: end -->\n')
    assert main(command) == 0
    assert 'begin -->\nToy, 3 methods, 2 seeds. No method beats FedAvg beyond' in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['small', 'cpu'])
def test_the_committed_answers_follow_from_the_committed_numbers(name, tmp_path):
    held = ROOT / 'experiments' / 'results' / 'benchmark' / name
    shutil.copytree(held, tmp_path / name)
    files = [ROOT / 'README.md', ROOT / 'docs' / 'which_method.md']
    copies = [Path(shutil.copy(file, tmp_path)) for file in files]
    update = ','.join(map(str, copies))
    command = [f'--suite={name}', f'--output={tmp_path}', '--report_only', f'--update={update}']
    assert main(command) == 0
    for file, copy in zip(files, copies, strict=True):
        assert copy.read_text() == file.read_text()
    made, committed = (folder / page.PAGE for folder in (tmp_path / name, held))
    assert without_pictures(made) == without_pictures(committed)


def test_committed_texts_have_the_committed_numbers():
    def percents(name, column, **key):
        found: dict[str, list[float]] = {}
        path = ROOT / 'experiments' / 'results' / 'benchmark' / name / 'benchmark.csv'
        for line in csv.DictReader(path.open(newline='')):
            if line['stage'] == 'runs' and key.items() <= line.items():
                found.setdefault(f'{line["skew"]} {line["method"]}', []).append(float(line[column]))
        return {place: sum(values) / len(values) for place, values in found.items()}

    fedavg = percents('cpu', 'final', dataset='cifar10', method='fedavg').values()
    words = f'where FedAvg is at {min(fedavg):.0f} to {max(fedavg):.0f} %'
    assert words in (ROOT / 'README.md').read_text()
    best = percents('niid_bench', 'best')
    methods = ['fedavg', 'scaffold', 'fednova', 'fedprox_mu0.001', 'fedprox']
    methods += ['fedprox_mu0.1', 'fedprox_mu1']
    numbers = [f'{best[f"label_quantity_2 {method}"]:.2f}' for method in methods]
    text = (ROOT / 'docs' / 'which_method.md').read_text()
    assert f'| jaxfed, one seed | {" | ".join(numbers)} |' in text


@pytest.mark.slow
def test_finished_runs_are_skipped(output, toy, monkeypatch, capsys):
    monkeypatch.setattr(runner.runner, 'run_groups', None)  # nothing trains
    command = [f'--suite={toy}', f'--output={output}']
    before = (output / 'toy' / 'benchmark.csv').read_text()
    assert main(command) == 0
    assert '24 of 24 tests are done.' in capsys.readouterr().out
    # The CSV is enough, but only for runs of the same settings.
    for name in ('runs', 'tuning'):
        shutil.move(output / 'toy' / name, output / name)
    try:
        assert main(command) == 0
        assert (output / 'toy' / 'benchmark.csv').read_text() == before
        assert main([*command, '--rounds=2']) == 2
        assert 'holds a run with other settings' in capsys.readouterr().err
        # A part of the suite keeps the rest of the file.
        assert main([*command, '--methods=fedavg,fedlmd']) == 0
        assert (output / 'toy' / 'benchmark.csv').read_text() == before
    finally:
        for name in ('runs', 'tuning'):
            shutil.move(output / name, output / 'toy' / name)


def test_rows_that_another_process_writes_meanwhile_are_kept(tmp_path):
    small, begun = suite.read_suite('small'), []
    for skew in ('iid', 'label_quantity_2'):
        begun.append(work.begin(suite.select(small, skews=[skew]), tmp_path, []))
        cell = work.flat(begun[-1].trials)[0]
        record = records.record_of(cell, made_run(0.5, on='validation'))
        begun[-1].finished[records.key_of(cell)] = record
    write(begun[1], [], '')
    write(begun[0], [], '')
    assert records.read_csv(tmp_path / work.CSV) == begun[0].finished | begun[1].finished


@pytest.mark.slow
def test_a_run_of_another_process_is_skipped_and_left(toy, tmp_path, capsys):
    command = [f'--suite={toy}', f'--output={tmp_path}', '--skews=iid', '--methods=fedavg']
    read = suite.select(suite.read_suite(str(toy)), skews=['iid'], trials=['fedavg'])
    cell = work.flat(work.begin(read, tmp_path / 'toy', []).trials)[0]
    cell.folder.parent.mkdir(parents=True)
    with FileLock(cell.folder.with_name('.seed0.lock')):
        assert main(command) == 0
    printed = capsys.readouterr()
    assert f'{cell.name}: another process is running it.\n' in printed.out
    assert (
        '0 of 2 tests are done; the same command trains the others' in printed.out
        and 'error' not in printed.err
    )
    assert main(command) == 0
    printed = capsys.readouterr()
    assert '3 runs to train' in printed.out and '2 of 2 tests are done.' in printed.out


@pytest.mark.slow
def test_the_plan_counts_what_is_left(output, toy, capsys, tmp_path, monkeypatch):
    command = [f'--suite={toy}', '--dry_run', '--methods=fedlmd', f'--output={tmp_path}']
    assert main(command) == 0
    # Four skews with two trials and two seeds.
    assert '16 runs to train, about' in capsys.readouterr().out
    assert not list(tmp_path.rglob('summary.json'))
    read = suite.read_suite(str(toy))
    left = work.begin(read, output / 'toy', [])
    assert plan.plan(left) == []
    # Runs of other lengths are planned apart.
    monkeypatch.setattr(plan, 'estimate', lambda config, timed, steps: steps)
    first, *others = read.skews
    longer = read._replace(skews={**read.skews, first: (*read.skews[first], '--rounds=50')})
    planned = plan.plan(work.begin(suite.select(longer, trials=['fedlmd']), tmp_path / 'b', []))
    short, long = sorted(planned, key=lambda one: one.rounds)
    assert (long.rounds, long.runs, short.runs) == (50, 4, 4 * len(others))
    assert long.seconds > 2 * short.seconds


@pytest.mark.parametrize('name', only_fast(suite.names(), 'small', 'niid_bench'))
def test_suites_have_equal_budgets_and_valid_flags(name, tmp_path):
    read = suite.read_suite(name)
    for place in suite.places(read):
        cells = suite.tuning_cells(read, place, tmp_path, [])
        assert len({cell.folder for cell in cells}) == len(cells)
        assert suite.test_cells(read, place, read.trials[place.method][0], tmp_path, [])
        assert all(cell.config.validation == read.validation for cell in cells)
    assert 'fedavg' in read.trials


def test_trials_are_chosen_by_held_out_data(tmp_path):
    read = suite.read_suite('small')
    place = next(iter(suite.places(read)))
    cells = suite.tuning_cells(read, place, tmp_path, [])
    for accuracies, best in (((0.4, 0.5), 1), ((0.5, 0.5), 0), ((None, 0.1), 1), ((None, None), 0)):
        found = {
            records.key_of(cell): records.record_of(cell, made_run(a, on='validation'))
            for cell, a in zip(cells, accuracies, strict=True)
        }
        assert suite.choose(read, place, cells, found) == cells[best].variant
    found.popitem()
    assert suite.choose(read, place, cells, found) is None
    with pytest.raises(ValueError, match='was evaluated on test data; move it away'):
        records.record_of(cells[0], made_run(0.5))


def made_run(final, *, on='test'):
    metrics = [
        {'round': r, 'test_accuracy': a, 'class_accuracy': [a, a / 2], 'forgetting': 0.25}
        for r, a in ((2, 0.1), (4, 0.2))
    ]
    last = {**metrics[0], 'round': 8, 'test_accuracy': final, 'class_accuracy': [final, 0.3]}
    costs = {'upload_bytes': 2**20, 'download_bytes': 2**20, 'forward_passes': 1, 'data_passes': 0}
    summary = {
        'failed': final is None, 'final_accuracy': final, 'best_accuracy': final, 'cost': costs,
        'memory_bytes': 2**21, 'experiments': 2, 'seconds_total': 3.0, 'evaluated_on': on,
    }  # fmt: skip
    config = {
        'rounds': 8,
        'device': {'platform': 'cpu', 'kind': 'cpu', 'count': 1, 'cpu_cores': 2},
        'versions': {'python': '3.11', 'jaxfed': '1', 'jax': '0.10', 'flax': '0.12'},
    }
    return runner.RecordedCell(config, summary, [*metrics, last])


def made_row(method, accuracies, skew='iid'):
    read = suite.read_suite('small')
    cell = suite.test_cells(read, next(iter(suite.places(read))), (), Path('output'), [])[0]
    runs = {seed: records.record_of(cell, made_run(a)) for seed, a in enumerate(accuracies)}
    place = suite.Place('digits', skew, method)
    trial = results.Trial(records.record_of(cell, made_run(0.5)), 'python -m jaxfed')
    return results.Row(place, ('--mu=1',), {('--mu=1',): trial}, runs, 3, 4, 5, 'python -m jaxfed')


def without_pictures(path):
    return re.sub('<svg.*?</svg>', '', path.read_text(), flags=re.DOTALL)


def said(suite_, rows):
    return [page.sentence(answer) for answer in answers.make_answers(suite_, rows)]


def test_numbers_of_a_run():
    row = made_row('fedavg', [0.5, 0.6, 0.7])
    assert row.values('quarter') == {0: 10.0, 1: 10.0, 2: 10.0}
    assert row.values('half')[0] == 20.0
    assert row.values('worst class')[2] == pytest.approx(30.0)
    assert row.values('forgetting')[0] == 25.0
    assert row.interval('final').mean == pytest.approx(60.0)
    assert row.runs[0].numbers['MiB a client'] == 2
    assert row.runs[0].numbers['MiB of memory'] == 1
    assert row.runs[0].machine == 'CPU, 2 cores'  # of an earlier version
    run = made_run(0.5)
    run.config['device']['processor'] = 'AMD EPYC'
    read = suite.read_suite('small')
    cell = suite.test_cells(read, next(iter(suite.places(read))), (), Path('output'), [])[0]
    assert records.record_of(cell, run).machine == 'AMD EPYC, 2 cores'


def test_the_page_says_which_rounds_the_moving_average_is_over():
    row = made_row('fedavg', [0.5, 0.6, 0.7])
    read = suite.read_suite('small')
    text = page.render(read, [row], command='')
    assert 'Evaluated every 5 rounds' in text and '<th scope="col">moving</th>' in text
    assert '>32.40 ± ' in text  # 0.6^2 * 10 + 0.6 * 0.4 * 20 + 0.4 * 60
    text = page.render(read, [row._replace(eval_every=1)], command='')
    assert 'Evaluated every' not in text and '<th scope="col">moving</th>' in text


def test_the_page_names_the_learning_rates_of_the_trials():
    rates = page.learning_rates(suite.read_suite('cpu'))
    assert rates['0.01, 0.03, 0.1'] == ['fedavg', 'scaffold', 'fednova']
    assert len(rates) == 2 and len(rates['0.01, 0.03']) == 23
    assert page.learning_rates(suite.read_suite('niid_bench')).keys() == {"the suite's"}
    text = page.render(suite.read_suite('small'), [made_row('fedavg', [0.5])], command='')
    assert '<li>0.01, 0.03: fedavg, scaffold, fedavgm</li>' in text


def test_the_command_of_a_suite_has_what_was_asked_for():
    arguments = ['--suite=small', '--datasets=digits,mnist', '--seeds=2', '--', '--data_dir=d']
    parsed = command.parse([*arguments, '--momentum=.9'], define, '')
    made = 'python -m experiments.benchmark --suite=small --datasets=digits,mnist --seeds=2'
    assert suite_command(parsed.values, parsed.extra) == f'{made} -- --momentum=.9'


def test_the_page_lists_trials_that_diverged():
    row = made_row('fedavg', [0.5, 0.6, 0.7])
    read = suite.read_suite('small')
    assert 'No trial of the methods' in page.render(read, [row], command='')
    (trial,) = row.trials.values()
    record = trial.record._replace(diverged=True, numbers={}, machine='another machine')
    row = row._replace(trials={('--mu=9',): results.Trial(record, 'python')})
    text = page.render(read, [row], command='')
    assert 'Trials that diverged' in text and '>--mu=9</a></td>' in text
    assert 'CPU, 2 cores; python 3.11 jaxfed 1 jax 0.10 flax 0.12. another machine; ' in text


def test_the_page_has_the_settings_of_all_runs():
    read, row = suite.read_suite('small'), made_row('fedavg', [0.5])
    text = page.render(read, [row], command='', flags=['--rounds=2', '--data_dir=d', '--lanes=1'])
    assert ' --rounds=2 ' in text and ' --lanes=1</pre>' in text
    assert '--rounds=30' not in text and '--data_dir=d' not in text


def test_the_csv_holds_all_numbers(tmp_path):
    row = made_row('fedlmd', [0.5, None])
    keys = [records.Key('runs', 'digits', 'iid', 'fedlmd', '--mu=1 --lam=2', s) for s in (0, 1)]
    found = dict(zip(keys, row.runs.values(), strict=True))
    path = tmp_path / 'benchmark.csv'
    assert records.read_csv(path) == {}
    path.write_text(records.as_csv(found))
    assert records.read_csv(path) == found
    text = path.read_text()
    for old, new, message in (
        ('True', 'maybe', r'cannot be read \(diverged is maybe\); move it away'),
        (',50.0,', ',nan,', 'final is nan'),
        (',50.0,', ',950,', 'final is 950'),
        (',50.0,', ',,', 'final is empty'),
        ('MiB of memory', 'memory', 'MiB of memory'),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ValueError, match=message):
            records.read_csv(path)
    lines = text.splitlines(keepends=True)
    for damaged in (text.rpartition(',')[0], text.replace('trial', 'attempt', 1)):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=r'csv cannot be read \(a line lacks .*; move it away'):
            records.read_csv(path)
    path.write_text(text + lines[1])
    assert records.read_csv(path) == found
    path.write_text(text + lines[1].replace(',50.0,', ',51.0,', 1))
    with pytest.raises(ValueError, match=r'two lines of runs, digits, iid, fedlmd, .* delete'):
        records.read_csv(path)


def test_a_digest_is_of_the_settings_that_matter():
    config = config_flags.parse(['--seed=1'])
    for flags, same in ((['--devices=1'], True), (['--mu=.3', '--method=fedprox'], False)):
        assert (
            records.digest(config_flags.parse(['--seed=1', *flags])) == records.digest(config)
        ) is same


def test_verdicts_are_against_fedavg_of_the_same_table():
    rows = [
        made_row('fedavg', [0.5, 0.6, 0.7]),
        made_row('fedlmd', [0.61, 0.7, 0.81]),
        made_row('kd', [0.5, 0.61, 0.69]),
        made_row('moon', [0.3, None, 0.3]),
        made_row('kd', [0.9, 0.9, 0.9], skew='other'),
    ]
    read = suite.read_suite('small')
    by_place = results.verdicts(read, rows)
    judged = [by_place[row.place] for row in rows]
    assert judged[1].p == pytest.approx(6 * judged[1].paired.p_value)  # of seven methods
    assert [verdict.sign for verdict in judged] == [0, 1, 0, 0, 0]
    assert [verdict.rank for verdict in judged] == [2, 1, 2, None, 1]
    assert rows[3].failed == 1 and not rows[3].complete
    text = advice.advice(read, rows)
    assert (
        '| digits, iid | 60.00 ± 24.84 | `fedlmd` +10.67 ± 1.43 | 1 / 1 / 0 | 0 | 1 / 1 / 0 |\n'
        '| digits, other | – | none | 0 / 0 / 0 | 0 | 0 / 0 / 0 |\n'
    ) in text
    assert 'Nothing beats' not in text  # nothing was compared in the other line
    assert '12 of 126 runs are finished. Not finished: digits (dirichlet 0.1, label ' in text
    text = advice.advice(read, [rows[0], rows[2]])
    assert 'Nothing beats FedAvg beyond chance in any line.' in text
    text = ' '.join(advice.summary(read, rows).split())
    assert (
        '7 methods, 3 seeds. Better than FedAvg beyond chance after the last round: `fedlmd` on '
        'digits (iid).'
    ) in text
    assert 'No method' not in text
    texts = said(read, rows)
    assert re.fullmatch(
        r'digits, iid: FedAvg [\d.]+ ± [\d.]+ %, better beyond chance: fedlmd.', texts[0]
    )
    assert texts[1].endswith('other: not all seeds of FedAvg are there, so nothing is compared.')
    assert 'because a run diverged: moon (digits (iid)).' in advice.advice(read, rows)


def test_forgetting_and_the_worst_class_are_compared_too():
    read, lower = suite.read_suite('small'), {}
    rows = [made_row('fedavg', [0.5, 0.6, 0.7]), made_row('kd', [0.5, 0.6, 0.7])]
    assert answers.further(read, rows) == [
        'By the moving average the same tables have no better method.',
        'Beyond chance no method forgets less than FedAvg or is better than FedAvg in the worst '
        'class.',
    ]
    for seed, run in rows[1].runs.items():
        lower[seed] = run._replace(numbers=run.numbers | {'forgetting': 10.0 + 0.01 * seed})
    rows[1] = rows[1]._replace(runs=lower)
    assert answers.further(read, rows)[1:] == [
        'What forgets less than FedAvg beyond chance: kd on digits (iid).',
        'Beyond chance no method is better than FedAvg in the worst class.',
    ]
    assert 'no method is better than FedAvg in the worst' in advice.summary(read, rows).replace(
        '\n', ' '
    )
    rows = [
        row._replace(runs={s: r._replace(numbers={'final': 9.0}) for s, r in row.runs.items()})
        for row in rows
    ]
    assert not answers.further(read, rows)  # nothing was measured


def test_undecided_methods_and_the_moving_average_are_named():
    read = suite.read_suite('small')
    rows = [made_row('fedavg', [0.5, 0.6, 0.7]), made_row('kd', [0.58, 0.69, 0.77])]
    (answer,) = answers.make_answers(read, rows)
    # +8, +9 and +7 have a half of 2.5; adjusted for six methods p is 0.03.
    assert (answer.above.keys(), answer.undecided, answer.leaning) == ({'kd'}, 0, 0)
    rows[1] = made_row('kd', [0.54, 0.69, 0.77])  # +4, +9 and +7, p is 0.04 before
    (answer,) = answers.make_answers(read, rows)
    assert (answer.above, answer.undecided, answer.leaning) == ({}, 1, 1)
    assert answers.further(read, rows)[0] == (
        '1 of 1 undecided differences have an interval above 0 that is not adjusted. Undecided '
        'does not mean equal.'
    )
    smooth = {
        seed: run._replace(numbers=run.numbers | {'moving': 40.0 + 4 * seed + 0.1 * seed**2})
        for seed, run in rows[1].runs.items()  # FedAvg has 28.4, 32.4 and 36.4
    }
    rows[1] = rows[1]._replace(runs=smooth)
    assert answers.further(read, rows)[1] == (
        'By the moving average, methods beat FedAvg beyond chance on digits (iid), too.'
    )
    assert '| 0 / 1 / 0 | 1 | 1 / 0 / 0 |' in advice.advice(read, rows)


def test_rows_at_the_largest_learning_rate_are_counted():
    row = made_row('fedavg', [0.5])
    (trial,) = row.trials.values()
    small, large = ('--learning_rate=.01',), ('--learning_rate=.1', '--mu=1')
    several = {small: trial, large: trial}
    rows = [
        row._replace(trial=chosen, trials=trials)
        for chosen, trials in ((small, several), (large, several), (large, {large: trial}))
    ]
    assert results.largest_rates([row, *rows]) == (1, 2)
    assert results.learning_rate(('--mu=1',)) is None
    assert 'In 1 of the 2 rows' in page.render(suite.read_suite('small'), rows, command='')


def test_a_small_negative_mean_has_no_sign():
    assert page.shown(Interval(-0.001, 0.2, 3), '+') == '+0.00 ± 0.20'


def test_equal_methods_are_compared_and_single_seeds_are_not():
    same, one = (
        made_row('kd', [0.5, 0.6, 0.7]),
        [made_row(name, [0.5]) for name in ('fedavg', 'kd')],
    )
    rows = [made_row('fedavg', [0.5, 0.6, 0.7]), same, made_row('moon', [0.5, 0.61, 0.69])]
    read = suite.read_suite('small')
    nothing = 'none of the 2 compared methods is better beyond chance.'
    assert said(read, rows) == [f'digits, iid: FedAvg 60.00 ± 24.84 %, {nothing}']
    assert '| 0 / 2 / 0 |' in advice.advice(read, rows)
    one = [row._replace(asked=1) for row in one]
    nothing = 'not enough seeds to compare with it.'
    assert said(read, one) == [f'digits, iid: FedAvg 50.00 %, {nothing}']
    text = advice.advice(read, one)
    assert '| 0 / 0 / 0 |' in text and 'Nothing beats' not in text


def test_a_collapsed_baseline_is_beaten_beyond_chance():
    rows = [made_row('fedavg', [0.1] * 3), made_row('kd', [0.9802, 0.9805, 0.98])]
    found = results.verdicts(suite.read_suite('small'), rows)
    assert [found[row.place].sign for row in rows] == [0, 1]


@pytest.mark.slow
def test_ranks_separate_methods_over_the_tables():
    good = dict.fromkeys('abcdefgh', 0.9) | {'fedavg': 0.2, 'bad': 0.1}
    methods = {name: accuracy + 0.001 * i for i, (name, accuracy) in enumerate(good.items())}
    rows = [
        made_row(method, [accuracy] * 3, skew=skew)
        for skew in ('s1', 's2', 's3', 's4')
        for method, accuracy in methods.items()
    ]
    found = ranks.rank(rows)
    # Mean ranks differ beyond chance by q sqrt(k (k + 1) / (6 N)) = 6.77, with q = 3.164 for 10.
    assert found.tables == 4 and found.mean['fedavg'] == 9 and found.mean['h'] == 1
    assert ranks.rank_sentence(found) == (
        'Mean ranks of 10 methods over 4 tables, which are taken as independent: Friedman test '
        'p = 4e-05; by the Nemenyi test FedAvg (9.0) differs from g (2.0, p = 0.036), h (1.0, p = '
        '0.0072).'
    )
    # A table that lacks methods or runs does not take away the ranks of the others.
    begun = [made_row(name, [0.9, 0.2, 0.2], skew='s5') for name in methods]
    for unfinished in (begun[:2], [*begun[:-1], begun[-1]._replace(asked=4)]):
        assert ranks.rank([*rows, *unfinished]).mean == found.mean
    assert ranks.rank([*rows, *begun]).tables == 5
    read = suite.read_suite('small')
    text = ranks.rank_sentence(found)
    assert text in advice.advice(read, rows)
    assert f'<li>{text}</li>' in page.render(read, rows, command='')
    assert 'no method differs from FedAvg' in ranks.rank_sentence(found._replace(friedman=0.06))
    few = [row for row in rows if row.place.method in ('fedavg', 'bad', 'a')]
    assert ranks.rank_sentence(ranks.rank(few)) == (
        'Mean ranks of 3 methods over 4 tables, which are taken as independent: Friedman test '
        'p = 0.018; no method differs from FedAvg (2.0).'
    )
    without = [row for row in rows if row.place.method != 'fedavg']
    assert ranks.rank_sentence(ranks.rank(without)) == ''
    three = [row for row in rows if row.place.skew != 's4']
    assert ranks.rank(three) is None and ranks.rank_sentence(None) == ''
    assert 'complete in the same 4 tables' in page.diagram(None)


def test_a_baseline_that_diverged_is_not_compared():
    rows = [made_row('fedavg', [0.5, None, 0.7]), made_row('kd', [0.5, 0.6, 0.7])]
    read = suite.read_suite('small')
    assert not results.verdicts(read, rows)[rows[1].place].compared
    assert said(read, rows) == ['digits, iid: a run of FedAvg diverged, so nothing is compared.']
    text = advice.advice(read, rows)
    assert 'a run diverged: fedavg (digits (iid)).' in text
    assert '| 60.00 ± 127.06 (2 of 3 seeds) |' in text
    words = ' '.join(advice.summary(read, rows).split())
    assert 'Not compared, because a run of FedAvg diverged: digits (iid).' in words
    read = read._replace(published={'digits/iid': {'kd': '1'}})
    text = page.render(read, rows, command='')
    assert '>2 (1 diverged)</a></td>' in text


def test_a_method_that_diverged_is_behind_the_others():
    rows = [
        made_row('scaffold', [0.9, None, None]),
        made_row('kd', [0.7, 0.8, 0.9]),
        made_row('fedavg', [0.5, 0.6, 0.7]),
    ]
    ((_, table),) = results.tables(rows).items()
    assert [row.place.method for row in table] == ['kd', 'fedavg', 'scaffold']
    (legend,) = (ax.get_legend() for ax in page.draw_bytes(rows).axes)
    assert sorted(text.get_text() for text in legend.get_texts()) == ['fedavg', 'kd']


def test_published_numbers_are_beside_deviations():
    read = suite.read_suite('small')._replace(published={'digits/iid': {'kd': '75 ± 5'}})
    rows = [made_row('fedavg', [0.5, 0.6, 0.7]), made_row('kd', [0.7, 0.8, 0.9])]
    text = page.render(read, rows, command='')
    section = text[text.index('id="published"') :].partition('</section>')[0]
    assert '80.00 ± 10.00' in section and '75 ± 5' in section
    assert 'mean ± sample standard deviation' in section


def test_one_seed_has_no_interval():
    read = suite.read_suite('small')._replace(seeds=1)
    text = advice.advice(read, [made_row('fedavg', [0.5])._replace(asked=1)])
    assert 'percent, one seed, so there are no intervals and nothing is compared.' in text
    assert 'mean of' not in text and '| 50.00 |' in text


def test_a_page_says_what_was_left_out_of_its_suite():
    read = suite.read_suite('small')
    part = suite.select(read, datasets=['digits'], skews=['iid'], trials=list(read.trials))
    row = made_row('fedavg', [0.5, 0.6, 0.7])
    sentence = 'Left out of the suite: data sets mnist; skews dirichlet 0.1, label quantity 2.'
    assert sentence in page.render(part, [row], command='')
    assert sentence in advice.advice(part, [row])
    part = suite.shorten(read, seeds=1, rounds=10)
    assert part.seeds == 1
    assert answers.left_out(part) == 'Left out of the suite: rounds 11 to 40; seeds 1, 2.'
    replayed = suite.shorten(suite.read_suite('pfl_research'), seeds=None, rounds=100)
    assert answers.left_out(replayed) == 'Left out of the suite: rounds 101 to 3000.'
    longer = suite.shorten(read, seeds=5, rounds=40)
    assert longer.seeds == 5 and not answers.left_out(longer)
    assert not answers.left_out(suite.shorten(read, seeds=None, rounds=None))
    part = suite.select(read, datasets=None, skews=None, trials=['fedavg', 'fedprox'])
    assert part.left_out.keys() == {'trials'} and 'fedlmd' in answers.left_out(part)
    assert answers.left_out(suite.select(read, skews=list(read.skews))) == ''
    assert 'Left out' not in page.render(read, [row], command='')


def test_published_numbers_are_of_places_in_the_suite():
    read = suite.read_suite('niid_bench')
    places = {(f'{place.dataset}/{place.skew}', place.method) for place in suite.places(read)}
    published = {(table, m) for table, numbers in read.published.items() for m in numbers}
    assert len(places) == 105 and len(published) == 60
    assert {(table, m.partition('_mu')[0]) for table, m in places} == published
    row = suite.Place('mnist', 'iid', 'fedprox_mu1')
    (cell,) = suite.test_cells(read._replace(seeds=1), row, *read.trials['fedprox_mu1'], ROOT, [])
    assert (cell.config.method, cell.config.hyperparameters) == ('fedprox', {'mu': 1.0})


@pytest.mark.slow
def test_the_small_suite_at_toy_size(tmp_path):
    command = ['--suite=small', '--datasets=digits', '--skews=iid', '--methods=fedavg,fedlmd']
    assert main([*command, '--rounds=1', '--seeds=2', f'--output={tmp_path}']) == 0
    with (tmp_path / 'small' / 'benchmark.csv').open() as file:
        stages = [line['stage'] for line in csv.DictReader(file)]
    assert (stages.count('tuning'), stages.count('runs')) == (4, 4)
    text = (tmp_path / 'small' / 'benchmark.html').read_text()
    assert 'Left out of the suite: data sets mnist; skews dirichlet 0.1, label' in text


@pytest.mark.slow
def test_a_replayed_benchmark_is_not_tuned(tmp_path, capsys):
    path = tmp_path / 'replay.toml'
    kept = [line for line in TOY.splitlines() if 'sharding' not in line and 'fedlmd' not in line]
    replay = [
        "score = 'best'", "source = 'A paper <1>.'", *kept, "[published.'digits/iid']",
        "fedprox = '12.3 ± 4.5'",
    ]  # fmt: skip
    text = '\n'.join(replay).replace(", 'learning_rate=1e-6'", '')
    path.write_text(text.replace(", 'learning_rate=1e-6 mu=.1'", ''))
    assert main([f'--suite={path}', f'--output={tmp_path}', '--seeds=1']) == 0
    assert not (tmp_path / 'replay' / 'tuning').exists()
    printed = capsys.readouterr().out
    assert 0 < printed.index('2 runs to train, about') < printed.index('digits, iid, tests:')
    page_text = (tmp_path / 'replay' / 'benchmark.html').read_text()
    for part in ('A paper &lt;1&gt;.', '12.3 ± 4.5', 'Nothing is tuned', 'jaxfed, best'):
        assert part in page_text
    assert 'Sensitivity' not in page_text


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--suite=smal'], '--suite=smal is no file; did you mean small?'),
        (['--methods=fedlm'], '--methods: the suite small has no fedlm; did you mean fedlmd'),
        (['--skews=x'], '--skews: the suite small has no x.'),
        (['--methods='], '--methods must name some of fedavg, fedprox, scaffold, kd, fedntd, '),
        (['--skews='], '--skews must name some of dirichlet_0.1, label_quantity_2, iid, got none.'),
        (['--datasets='], '--datasets must name some of digits, mnist, got none.'),
        (['word'], 'unexpected arguments word'),
        (
            ['--update=README.md', '--skews=iid', '--seeds=2'],
            '--update writes the answer of the whole suite; omit --skews=iid --seeds=2.',
        ),
        (['--', '--alpha=.3'], '--alpha=0.3 after --: the suite small sets --alpha for its runs;'),
        (['--', '--learning_rate=.05'], '--learning_rate=0.05 after --: the suite small sets'),
        (['--', '--init_seed=0'], '--init_seed=0 after --: the suite small sets'),
        (['--', '--validation=0.1'], '--validation=0.1 after --: the suite small sets'),
        (['--', '--method=kd'], '--method=kd is set for each run by the grid; leave it out'),
        (['--', '--flagfile=FILE'], '--mu=5.0 after --: the suite small sets'),
        (['--', '--rounds=2'], '--rounds=2 is a flag of this command; leave it out'),
        (['--', '--seeds=2'], '--seeds=2 is a flag of a command'),
        (['--suite=niid_bench', '--', '--nobalanced'], '--balanced=False after --: the suite'),
    ],
)
def test_invalid_input_is_one_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('FILE').write_text('--mu=5')
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1
    assert os.listdir() == ['FILE']


def test_a_skew_that_does_not_fit_is_refused_before_training(toy, tmp_path, capsys):
    path = tmp_path / 'skew.toml'
    path.write_text(toy.read_text().replace('client=6', 'client=2'))
    assert main([f'--suite={path}', f'--output={tmp_path}']) == 2
    message = 'digits/sharding_6, fedavg: --num_clients=4 with --shards_per_client=2 makes 8 shards'
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob('metrics.jsonl'))


def test_a_missing_package_of_the_page_is_reported_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'scikit_posthocs', None)
    assert main(['--suite=small', f'--output={tmp_path}']) == 2
    error = "needs the package scikit-posthocs: pip install -e '.[benchmark]'."
    assert error in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    small = suite.read_suite('small')
    check_packages(suite.select(small, trials=['fedavg', 'kd']))  # no ranks
    check_packages(suite.select(small, datasets=['digits']))


@pytest.mark.slow
def test_the_csv_is_written_before_the_page(tmp_path, monkeypatch, capsys):
    held = ROOT / 'experiments' / 'results' / 'benchmark' / 'small'
    (tmp_path / 'small').mkdir()
    text = (held / 'benchmark.csv').read_text()
    first, *lines = text.splitlines(keepends=True)
    (tmp_path / 'small' / 'benchmark.csv').write_text(''.join([first, *reversed(lines)]))
    monkeypatch.setitem(sys.modules, 'scikit_posthocs', None)
    assert main(['--suite=small', f'--output={tmp_path}', '--report_only']) == 2
    assert 'needs the package scikit-posthocs' in capsys.readouterr().err
    assert (tmp_path / 'small' / 'benchmark.csv').read_text() == text


@pytest.mark.parametrize(
    ('old', 'new', 'message'),
    [
        ('seeds = 2', "seeds = '2'", "seeds must be a whole number of at least 1, got '2'"),
        ('seeds = 2', 'seeds = true', 'seeds must be a whole number of at least 1, got True'),
        ('validation = 0.2', 'validation = 2', 'validation must be a number between 0 and 1'),
        ('[skews]', "[skews]\n'a/b' = []", 'skews must be a table of lists of texts'),
        ('[skews]', '[skews]\nx = 3', 'skews must be a table of lists of texts'),
        (
            '[datasets]',
            "published = 'see paper'\n[datasets]",
            'published must be a table of tables',
        ),
        (
            '[trials]',
            "[published.'digits/irid']\nfedavg = '9'\n[trials]",
            "published must name DATASET/SKEW and methods of the suite, got 'digits/irid'",
        ),
        ('[datasets]', 'note = 3\n[datasets]', 'note must be a text, got 3'),
        ('[trials]', "[trials]\nkd = 'beta=1'", 'trials must be a table of lists of texts'),
        ('[trials]', "[trials]\nkd = ['beta=1', 'beta=1']", 'two trials of kd are equal'),
        (
            '[trials]',
            "[trials]\nkd = ['beta=1 mu=.5', 'mu=0.50 beta=1.0']",
            'two trials of kd are equal',
        ),
        ('[skews]', "[skews]\n'..' = []", 'skews must be a table of lists of texts'),
        ('[datasets]', 'rounds = 3\n[datasets]', 'must not have rounds'),
        ('seeds = 2', 'seed = 2', 'lacks seeds, which must be a whole number of at least 1'),
        ('[skews]', "[skews]\nx = ['--alpha=3']", 'write alpha=3 without dashes, got --alpha=3'),
        ('[skews]', "[skews]\nx = ['alhpa=3']", 'alhpa'),
        ('[skews]', "[skews]\nx = ['validation=.3']", 'leave validation out'),
        ('[skews]', "[skews]\nx = ['seed=3']", 'leave seed out, which a benchmark sets'),
    ],
)
def test_suites_of_another_form_are_refused(old, new, message, tmp_path):
    assert TOY.count(old) == 1
    path = tmp_path / 'other.toml'
    path.write_text(TOY.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        suite.read_suite(str(path))


@pytest.mark.slow
def test_an_interrupted_suite_has_a_csv(cheap_runs, toy, tmp_path, monkeypatch):
    command = [f'--suite={toy}', f'--output={tmp_path}', '--skews=iid,sharding_4', '--seeds=1']
    command.append('--methods=fedavg,fedlmd')

    def first_table(part, *, together):
        work.train(next(iter(work.tables(part).values())), together=together)
        raise Interrupted('stopped after round 1', signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(benchmark, 'train', first_table)
        assert main(command) == 130
    written = tmp_path / 'toy' / 'benchmark.csv'
    begun = written.read_text().splitlines()
    assert main(command) == 0
    assert len(begun) == 1 + 2 * (2 + 1)
    whole = written.read_text().splitlines()
    assert len(whole) == 1 + 2 * 2 * (2 + 1) and {*begun} <= {*whole}


def test_unequal_budgets_are_refused(toy, tmp_path):
    path = tmp_path / 'unfair.toml'
    path.write_text(f"score = 'mean'\n{TOY}")
    with pytest.raises(ValueError, match=r"score must be one of final, .*, got 'mean'"):
        suite.read_suite(str(path))
    path.write_text(TOY.replace(", 'learning_rate=1e-6']", ']'))
    with pytest.raises(ValueError, match='must have the same number of trials'):
        suite.read_suite(str(path))
    begin, _, trials = TOY.partition('[trials]')
    path.write_text(begin + '[trials]\nfedavg = []\nkd = []\n')
    with pytest.raises(ValueError, match='number of trials, at least 1, got '):
        suite.read_suite(str(path))
    path.write_text(begin + '[trials]' + trials.replace('fedavg =', 'kd ='))
    with pytest.raises(ValueError, match='trials must have fedavg, which the others'):
        suite.read_suite(str(path))
