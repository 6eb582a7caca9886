"""The papers' tables: published numbers, plans, and written files."""

import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments import figures, tables
from experiments.benchmark import __main__ as benchmark
from experiments.draw.figure import cells_of
from experiments.draw.table import markup, numbers, terminal, words
from experiments.draw.table.words import Filled
from experiments.grid import runner, scores
from experiments.grid.command import guarded
from experiments.grid.published import (
    Column,
    PaperTable,
    Value,
    read_numbers,
    read_value,
    rounds_in_words,
)
from experiments.grid.runner import GridRow, RecordedCell
from experiments.grid.scores import Score
from experiments.search import __main__ as search
from jaxfed.internal import latex
from jaxfed.internal.signals import Interrupted
from jaxfed.recording import run_files
from jaxfed.runs.experiment import parts_of
from tests.test_main import make_npz

RUNS = {
    'fedcad/1': 12, 'fedcad/2': 16, 'fedcad/3': 12, 'fedcad/4': 16, 'fedssd/1': 63,
    'fedssd/2': 105, 'fedssd/3': 9, 'fedlmd/1': 4, 'fedlmd/2': 4, 'fedlmd/3': 126, 'fedlmd/4': 15,
    'fedlmd/5': 4,
}  # fmt: skip


@pytest.mark.parametrize('name', list(RUNS))
def test_every_published_number_has_a_valid_plan(name, tmp_path):
    table = tables.TABLES[name]
    numbers = read_numbers(table)
    wanted = {(row.name, column.name) for row in table.rows for column in table.columns}
    assert set(numbers) == wanted
    assert all(5 < value.accuracy < 100 for value in numbers.values())
    plan = tables.make_plan(table, output=tmp_path)
    assert len(plan.every) == RUNS[name] == len({cell.folder for cell in plan.every})
    # All rows of a column differ in the method only, so that they share one partition.
    for column in plan.columns:
        configs = [plan.cells[row.name, column.name][0].config for row in plan.rows]
        for config in configs:
            same = {'method', 'hyperparameters', 'workdir'}
            assert {k for k, v in vars(config).items() if v != getattr(configs[0], k)} <= same
        assert configs[0].rounds == plan.rounds[column.name][1]
    assert set(RUNS) == set(tables.TABLES)


def test_published_numbers_and_settings_of_a_few_cells(tmp_path):
    numbers = {name: read_numbers(table) for name, table in tables.TABLES.items()}
    assert numbers['fedcad/1']['FedCAD', 'femnist'] == Value(94.65, None, 4)
    assert numbers['fedcad/4']['FedAvg', 'epochs10'].accuracy == 70.81
    assert numbers['fedssd/1']['FedNTD', 'cifar100'] == Value(65.23, 0.25, None)
    assert numbers['fedssd/2']['FedSSD', 'labels2'] == Value(53.37, 1.52)
    assert numbers['fedssd/3']['MSE', 'alpha0.5'].accuracy == 69.51
    assert numbers['fedlmd/3']['FedLMD', 'mnist_lda0.1'] == Value(88.61, None, 2.47)
    assert numbers['fedlmd/3']['FedNova', 'cifar10_lda0.05'] == Value(12.71, failed=True)
    assert numbers['fedlmd/3']['FedNTD', 'cinic10_sharding2'] == Value(54.14, None, 1.69)

    def parts(name, row, column):
        cell = tables.make_plan(
            tables.TABLES[name], columns=[column], methods=[row], output=tmp_path
        ).every[0]
        return [part.hyperparameters for part in parts_of(cell.config)]

    assert parts('fedssd/1', 'MOON', 'cifar10')[0] == {'mu': 5, 'tau': 0.5, 'projection': True}
    assert parts('fedssd/1', 'MOON', 'tiny_imagenet')[0]['mu'] == 1
    assert parts('fedssd/1', 'FedCurv', 'tiny_imagenet') == [{'lam': 1e-5}]
    assert parts('fedssd/3', 'SSD', 'alpha0.5')[0]['max_weight'] == 0.5
    assert parts('fedcad/1', 'FedProx', 'cifar100') == [{'mu': 0.001}]
    assert [p.get('beta') for p in parts('fedlmd/5', 'FedLMD+Prox+AvgM', 'cifar10_lda0.5')] == [
        1,
        None,
        0.7,
    ]


@pytest.mark.parametrize(
    'text, value',
    [
        ('33.02', Value(33.02)),
        ('71.29/41', Value(71.29, None, 41)),
        ('70.49+-0.23/100', Value(70.49, 0.23, 100)),
        ('65.54+-0.41/-', Value(65.54, 0.41)),
        ('12.71/failed', Value(12.71, failed=True)),
    ],
)
def test_cells_are_read(text, value):
    assert read_value(text) == value


def test_malformed_cells_are_refused():
    with pytest.raises(ValueError, match='is not a cell'):
        read_value('70.49±0.23')
    with pytest.raises(ValueError, match='not those of its rows'):
        read_numbers(tables.TABLES['fedlmd/1']._replace(rows=()))


def a_run(*accuracies, failed=False, target=None):
    """A run with these accuracies, in percent."""
    metrics = [
        {'round': i, 'test_accuracy': None if a is None else a / 100, 'seconds': 2.0}
        for i, a in enumerate(accuracies, 1)
    ]
    known = [a for a in accuracies if a is not None]
    cost = {'upload': 1.0, 'download': 1.5, 'forward_passes': 1, 'auxiliary': 32}
    summary = {
        'failed': failed, 'final_accuracy': known[-1] / 100, 'best_accuracy': max(known) / 100,
        'personal_accuracy': None,
        'seconds_total': 7200.0, 'client_steps_per_second': 50.0, 'cost': cost,
        'auxiliary_examples': 320, 'rounds': len(metrics),
    }  # fmt: skip
    config = {
        'target_accuracy': target,
        'device': {'platform': 'cpu', 'kind': 'cpu', 'count': 2, 'cpu_cores': 4},
        'versions': {'jax': '1'},
    }
    return RecordedCell(config, summary, metrics)


def test_scores_of_runs():
    fedavg = {0: a_run(10, 30, 20), 1: a_run(20, 10, 40)}
    other = {0: a_run(30, 50, 50), 1: a_run(20, 30, 35)}
    best = scores.score_of(
        other, fedavg, asked=3, score='best', speed='speed-up', target='baseline'
    )
    assert best == Score(3, (50, 35), 0, (2.0, None))
    assert (best.mean, best.speed, best.done) == (42.5, 2.0, 2)
    assert np.isclose(best.sd, np.std([50, 35], ddof=1))
    final = scores.score_of(
        other, fedavg, asked=2, score='final', speed='rounds', target='baseline'
    )
    assert final.speeds == (1, None)
    # 0.6 * (0.6 * 30 + 0.4 * 50) + 0.4 * 50; the goal is still FedAvg's best round.
    moving = scores.score_of(
        other, fedavg, asked=2, score='moving', speed='rounds', target='baseline'
    )
    np.testing.assert_allclose(moving.accuracies, (42.8, 28.4))
    assert moving.speeds == (1, None)
    # The mean of all rounds of a run of less than ten.
    last10 = scores.score_of(
        other, fedavg, asked=2, score='last10', speed='rounds', target='baseline'
    )
    np.testing.assert_allclose(last10.accuracies, (130 / 3, 85 / 3))
    assert last10.speeds == (1, None)
    falling = scores.score_of({0: a_run(50, 10)}, {}, asked=1, score='best_moving')
    assert falling.accuracies == (50,)
    # The run's target, a round without evaluation, and a run that diverged.
    runs = {0: a_run(10, None, 65, target=0.65), 1: a_run(90, failed=True, target=0.65)}
    flag_target = scores.score_of(runs, {}, asked=2, score='final', speed='rounds', target='flag')
    assert flag_target == Score(2, (65,), 1, (3,))
    # A run that stopped before its first evaluation.
    early = a_run(10)
    early.summary.update(final_accuracy=None, best_accuracy=None)
    for score in scores.SCORES:
        assert scores.score_of({0: early}, {}, asked=1, score=score) == Score(1, (), 1)


@pytest.mark.parametrize(
    'baselines, speed, target, speeds, text',
    [
        ({}, 'speed-up', 'baseline', (), ' (FedAvg not run)'),
        ({}, 'speed-up', 'flag', (), ' (FedAvg not run)'),
        ({0: a_run(90, failed=True)}, 'rounds', 'baseline', (), ' (FedAvg not run)'),
        (dict.fromkeys((0, 1), a_run(90, failed=True)), 'rounds', 'baseline', (),
         ' (FedAvg failed)'),
        ({1: a_run(30, 60)}, 'rounds', 'baseline', (None,), ' (not reached, 1 of 2 compared)'),
        ({1: a_run(10, 50)}, 'speed-up', 'baseline', (1.0,), ' (1.00×, 1 of 2 compared)'),
        ({}, 'rounds', 'flag', (), ' (no target)'),
        ({}, '', '', (), ''),
    ],
)  # fmt: skip
def test_seeds_without_comparison_are_counted(baselines, speed, target, speeds, text):
    wanted = 0.4 if speed == 'speed-up' else None
    runs = {0: a_run(30, 50, target=wanted), 1: a_run(20, 50, target=wanted)}
    found = scores.score_of(runs, baselines, asked=2, score='best', speed=speed, target=target)
    assert found.speeds == speeds
    assert words.spoken(found, speed)[1] == text


def test_places_share_ties_as_printed():
    def score(*values, failed=0):
        return Score(1, values, failed)

    column = [score(50.001), score(50.004), score(49), score(48), score(), score(99, failed=1)]
    assert scores.places(column) == [1, 1, 2, 0, 0, 0]
    # One seed of three has no place.
    assert scores.places([Score(3, (99,)), Score(3, (50, 51, 52))]) == [0, 1]
    assert scores.places([score(), score()]) == [0, 0]


def test_agreement_with_the_paper():
    assert scores.within(Score(1, (50.5,)), 50, 0.5) is True
    assert scores.within(Score(1, (50.6,)), 50, 0.5) is False
    assert scores.within(Score(2, (50, 52)), 48.2, None) is True  # sd 1.41
    assert scores.within(Score(2, (50, 52)), 48, None) is False
    assert scores.within(Score(1, (50,)), 50, None) is None
    assert scores.within(Score(1), 50, 0.5) is None
    assert scores.within(Score(2, (50, 50)), 50.1, None) is None  # no spread
    assert scores.within(Score(3, (50, 51)), 50, 0.5) is None
    assert scores.within(Score(2, (50,), 1), 50, 0.5) is None
    assert scores.within(Score(1, (50.304,)), 50, 0.3) is True  # prints 50.30
    assert scores.within(Score(1, (50,)), 50, 0.5, alike=False) is None


def test_cost_is_added_up():
    cost = scores.cost_of([a_run(1, 2), a_run(3)])
    assert (cost.runs, cost.hours, cost.client_steps) == (2, 4, 300)
    assert (cost.upload, cost.download, cost.forward_passes) == (1, 1.5, 1)
    assert (cost.auxiliary, cost.set_aside) == (32, 320)
    assert scores.cost_of([]) is None
    # Newer records hold the exact number of steps, and the setting of the server's examples.
    exact = a_run(1, 2)
    exact = exact._replace(
        config={**exact.config, 'auxiliary_per_class': 64},
        summary={**exact.summary, 'client_steps': 105_345},
    )
    cost = scores.cost_of([exact])
    assert (cost.client_steps, cost.auxiliary) == (105_345, 64)
    rate = {'client_steps_per_second': 26_336.25}  # times 4 s
    old = exact._replace(summary={**a_run(1, 2).summary, **rate})
    assert scores.cost_of([old]).client_steps == 105_000


@pytest.mark.parametrize(
    'score, kind, text',
    [
        (Score(3), '', '-'),
        (Score(1, (50,)), '', '50.00'),
        (Score(2, (50, 52)), '', '51.00 ± 1.41'),
        (Score(3, (50,)), '', '50.00 (n = 1 of 3)'),
        (Score(2, (), 2), '', 'failed'),
        (Score(2, (50,), 1), '', '50.00 (1 of 2 failed)'),
        (Score(1, (50,), 0, (41,)), 'rounds', '50.00 (41)'),
        (Score(1, (50,), 0, (None,)), 'rounds', '50.00 (not reached)'),
        (Score(2, (50, 50), 0, (1.5, None)), 'speed-up', '50.00 ± 0.00 (1.50× in 1)'),
    ],
)
def test_scores_in_words(score, kind, text):
    assert ''.join(words.spoken(score, kind)) == text


def test_differences_in_words():
    assert words.spoken_difference(Score(1), Value(50)) == '-'
    assert words.spoken_difference(Score(1, (49.5,)), Value(50)) == '-0.50'
    assert words.spoken_difference(Score(1, (50.5,)), Value(50, 0.5)) == '+0.50 within'
    assert words.spoken_difference(Score(1, (51,)), Value(50, 0.5)) == '+1.00 outside'
    assert words.spoken_difference(Score(1, (49.999,)), Value(50)) == '+0.00'
    # 54.665 prints 54.66, and 0.01 more than 54.65.
    assert words.spoken_difference(Score(2, (52.1, 57.23)), Value(54.65)) == '+0.01 within'
    assert words.spoken_value(Value(50, 0.5, None), 'rounds') == '50.00 ± 0.50 (not reached)'
    assert words.spoken_value(Value(12.71, failed=True), 'speed-up') == '12.71 (failed)'


@pytest.fixture(scope='module')
def filled():
    """A table by hand, with names that need escaping."""
    columns = (Column('a', 'A & B|C', 'x/a', 'one'), Column('b', '#K = 2_%', 'x/b', 'two'))
    rows = (GridRow('Fed_A', ()), GridRow('Fed|B', ()), GridRow('C', ()))
    table = PaperTable('x/1', 'X', 'T', columns, rows, '', 'best', 'rounds', 'flag', seeds=2)
    found = {('Fed_A', 'a'): Score(2, (50, 52), 0, (3, 4)), ('Fed|B', 'a'): Score(2, (51,), 0, ())}
    runs = {('Fed_A', 'a'): {0: a_run(50), 1: a_run(52)}, ('Fed|B', 'a'): {0: a_run(51)}}
    keys = [(row.name, column.name) for row in rows for column in columns]
    return Filled(
        table=table,
        columns=columns,
        rows=rows,
        paper=dict.fromkeys(keys, Value(50, 0.5, 7)),
        scores={key: found.get(key, Score(2)) for key in keys},
        runs={key: runs.get(key, {}) for key in keys},
        title='X, table 1 --a_b',
        command='python -m x_y',
        header=('100 % & more',),
        notes=('a_note',),
        alike=frozenset('ab'),
    )


def test_markdown_has_as_many_cells_in_every_line(filled):
    text = markup.markdown(filled)
    assert text.startswith('# X, table 1')
    blocks = re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        cells = {len(re.findall(r'(?<!\\)\|', line)) for line in block.splitlines()}
        assert len(cells) == 1
    assert '**51.00 ± 1.41** (3.5)' in text
    assert '| 51.00 (n = 1 of 2) |' in text  # of fewer seeds, so without a place
    assert '| *difference* | +1.00 outside |' in text
    assert 'Fed\\|B' in text
    assert '| C | - |' in text


def test_latex_is_escaped_and_closed(filled):
    text = markup.latex(filled)
    body = [line for line in text.splitlines() if not line.startswith('%')]
    assert r' & A \& B$|$C \\' in body
    assert r' & \#K = 2\_\% \\' in body
    assert r'Fed\_A & \textbf{51.00 $\pm$ 1.41} (3.5) \\' in body
    assert r'C & - \\' in body
    assert r'100 \% \& more' in '\n'.join(body)
    assert '-{}-a' in text
    for line in body:
        assert not re.search(r'(?<!\\)[#%]', line)
    for name in ('table', 'tabular'):
        begun, ended = (text.count(rf'\{word}{{{name}}}') for word in ('begin', 'end'))
        assert begun == ended > 0
    for tabular in re.findall(r'\\begin\{tabular\}(.*?)\\end\{tabular\}', text, re.DOTALL):
        lines = [line for line in tabular.splitlines() if line.endswith(r'\\')]
        assert len({len(re.findall(r'(?<!\\)&', line)) for line in lines}) == 1
    assert text.count('{') == text.count('}')


def test_csv_reads_back(filled):
    lines = list(csv.DictReader(io.StringIO(numbers.as_csv(filled, {'a': (2, 9), 'b': (2, 9)}))))
    assert len(lines) == 6
    first = lines[0]
    assert first['method'] == 'Fed_A'
    assert first['column'] == 'a'
    assert float(first['mean']) == 51
    assert (first['place'], first['paper'], first['within']) == ('1', '50', 'False')
    assert (first['rounds'], first['paper_rounds'], first['n']) == ('2', '9', '2')
    assert (first['compared'], first['reached'], lines[1]['compared']) == ('2', '2', '0')
    assert lines[5]['mean'] == lines[5]['hours'] == lines[5]['compared'] == ''


def test_a_mean_of_zero_counts_and_other_settings_get_no_verdict(filled):
    key = 'Fed_A', 'a'
    other = filled._replace(scores={**filled.scores, key: Score(1, (0.0,))}, alike=frozenset('b'))
    text = numbers.as_csv(other, {'a': (2, 9), 'b': (9, 9)})
    line = next(csv.DictReader(io.StringIO(text)))
    assert (line['mean'], line['difference'], line['within']) == ('0', '-50', '')
    assert '| *difference* | -50.00 |' in markup.markdown(other)


def test_hyphens_side_by_side_stay_hyphens_in_latex():
    assert latex.escape('--a ---b -c') == '-{}-a -{}-{}-b -c'


def test_terminal_is_no_wider_than_80_columns(filled):
    out = io.StringIO()
    terminal.show(filled, Console(file=out, width=80, highlight=False))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert '51.00 ± 1.41 (3.5)' in out.getvalue()
    assert terminal.packed([30, 30, 30, 90], 70, gap=2) == [[0, 1], [2], [3]]


# Runs of the commands: tiny images, and the columns of several tables in one folder.
TINY = (
    '--model=mlp', '--augment=none', '--alpha=5', '--min_size=1', '--num_clients=4',
    '--clients_per_round=2', '--local_epochs=1', '--batch_size=50', '--auxiliary_per_class=2',
    '--measure=none', '--devices=1',
)  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder for all commands, so that shared runs are trained once."""
    folder = tmp_path_factory.mktemp('tables')
    make_npz(folder / 'tiny.npz')
    return folder


@pytest.fixture
def command(folder, cheap_runs):
    """Runs a table's command at a tiny scale; returns its exit status."""

    def run(name, *arguments, further=(), output='out', rounds=1):
        data = ('--dataset=npz', f'--npz={folder / "tiny.npz"}')
        fixed = [f'--rounds={rounds}', f'--output={folder / output}', *arguments]
        return tables.main([name, *fixed, '--', *data, *TINY, *further])

    return run


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    'paper, rounds, several',
    [
        (
            'fedlmd',
            200,
            [
                ('1', 'cifar10_lda0.05', 'FedAvg,FedLMD'),
                ('2', 'cifar10_lda0.05', 'FedLMD-Tf'),
                ('3', 'cifar10_lda0.05', 'FedAvg,FedLMD'),
                ('4', 'cnn', 'FedLMD'),
                ('5', 'cifar10_lda0.5', 'FedLMD+AvgM'),
            ],
        ),
        (
            'fedcad',
            100,
            [
                ('1', 'cifar10', 'FedAvg,FedCAD'),
                ('2', 'delta0.5', 'FedAvg,FedCAD'),
                ('3', 'ratio0.1', 'FedCAD'),
                ('4', 'epochs10', 'FedCAD'),
            ],
        ),
        (
            'fedssd',
            100,
            [
                ('I', 'cifar10', 'FedAvg,FedSSD'),
                ('II', 'delta0.5', 'FedSSD'),
                ('III', 'alpha0.1', 'MSE'),
            ],
        ),
    ],
)
def test_every_table_runs_and_shares_its_runs(paper, rounds, several, command, folder, capsys):
    runs = folder / 'out' / paper
    # Two tables train a shared run once.
    seen = set()
    for number, columns, methods in several:
        table = tables.find(f'{paper}/{number}')
        before = stamps(runs)
        selection = f'{paper}/{number}', f'--columns={columns}', f'--methods={methods}', '--seeds=1'
        status = command(*selection)
        shown = capsys.readouterr()
        assert status == 0, shown.err
        file = runs / f'table{table.name[-1]}.md'
        first = file.read_text().splitlines()[0]
        assert f"1 of the paper's {rounds} rounds" in first
        assert re.search("the flag file's: .*--model=mlp", first)
        lines = list(csv.DictReader(file.with_suffix('.csv').open()))
        assert [line['method'] for line in lines] == methods.split(',')
        assert file.with_suffix('.tex').read_text().endswith('\\end{table}\n')
        plan = tables.make_plan(
            table, columns=[columns], methods=methods.split(','), seeds=1, output=folder / 'out'
        )
        for cell, line in zip(plan.every, lines):
            summary = json.loads((cell.folder / 'summary.json').read_text())
            assert float(line['mean']) == pytest.approx(100 * summary['best_accuracy'], abs=1e-3)
        kept = {path for folder_ in seen for path in before if folder_ in path.parents}
        after = stamps(runs)
        assert all(before[path] == after[path] for path in kept)
        seen |= {cell.folder for cell in plan.every}


@pytest.mark.slow
def test_a_table_resumes_unfinished_runs_only(command, folder, capsys):
    selection = ('fedlmd/1', '--methods=FedAvg,FedLMD', '--seeds=1')
    assert command(*selection) == 0
    runs = folder / 'out' / 'fedlmd' / 'cifar10_lda0.05'
    done, stopped = runs / 'FedAvg' / 'seed0', runs / 'FedLMD' / 'seed0'
    (stopped / 'summary.json').unlink()
    before = stamps(done)
    capsys.readouterr()
    assert command(*selection, '--dry_run') == 0
    shown = capsys.readouterr().out
    assert re.search(r'done +fedlmd/cifar10_lda0.05 FedAvg', shown)
    assert re.search(r'to run +fedlmd/cifar10_lda0.05 FedLMD', shown)
    assert command(*selection, '--report_only') == 0
    assert not (stopped / 'summary.json').exists()
    assert '| FedLMD | - |' in (folder / 'out' / 'fedlmd' / 'table1.md').read_text()
    assert command(*selection) == 0
    assert (stopped / 'summary.json').exists()
    assert stamps(done) == before
    capsys.readouterr()


@pytest.mark.slow
def test_tables_accept_runs_without_measures(command, folder, monkeypatch, capsys):
    selection = ('fedlmd/1', '--methods=FedAvg', '--seeds=1')
    assert command(*selection) == 0
    before = stamps(folder / 'out' / 'fedlmd' / 'cifar10_lda0.05' / 'FedAvg')
    assert command(*selection, further=('--measure=forgetting',)) == 0
    assert stamps(folder / 'out' / 'fedlmd' / 'cifar10_lda0.05' / 'FedAvg') == before
    plan = tables.make_plan(
        tables.find('fedlmd/1'), methods=['FedAvg'], output=folder / 'out',
        flags_=[f'--npz={folder / "tiny.npz"}', '--dataset=npz', *TINY, '--rounds=1',
                '--measure=forgetting'],
    )  # fmt: skip
    assert runner.is_done(plan.every[0])
    with pytest.raises(ValueError, match='--measure=none, not forgetting'):
        runner.is_done(plan.every[0]._replace(measured=True))
    capsys.readouterr()


@pytest.mark.parametrize('asked', ['cohort_labels', 'predictions'])
def test_an_interrupted_run_resumes_with_its_original_measures(asked, tmp_path, monkeypatch):
    def cell(measure, measured):
        return runner.make_cell(
            'fedlmd/cifar10_lda0.05', GridRow('FedAvg', ('--method=fedavg',)), 0, output=tmp_path,
            flags=[f'--measure={measure}', *data], measured=measured,
        )  # fmt: skip

    data = ['--dataset=digits', '--num_clients=4', '--clients_per_round=2', '--augment=none']
    held = cell('predictions,forgetting', True)
    text = json.dumps(run_files.describe_config(held.config, parts_of(held.config)))
    held.folder.mkdir(parents=True)
    (held.folder / run_files.CONFIG).write_text(text)
    (held.folder / 'rounds').write_text('of a day')
    began = []

    def train(experiments, *_, **__):
        began.extend(experiment.config for experiment in experiments)
        return [()]

    monkeypatch.setattr(runner.runner, 'train_group', train)
    assert runner.run_cells([cell(asked, False)], quiet=True) == {}
    if asked == 'predictions':  # which it has
        assert runner.run_cells([cell(asked, True)], quiet=True) == {}
    else:
        with pytest.raises(ValueError, match='--measure=predictions,forgetting, not cohort_labels'):
            runner.run_cells([cell(asked, True)], quiet=True)
    assert {config.measure for config in began} == {'predictions,forgetting'}
    assert (held.folder / 'rounds').read_text() == 'of a day'


def write_runs(cells, *runs):
    """The work directories of finished cells."""
    for cell, run in zip(cells, runs, strict=True):
        described = run_files.describe_config(cell.config, parts_of(cell.config))
        cell.folder.mkdir(parents=True)
        (cell.folder / run_files.CONFIG).write_text(json.dumps(described))
        (cell.folder / run_files.SUMMARY).write_text(json.dumps(run.summary))
        (cell.folder / run_files.METRICS).write_text(
            ''.join(json.dumps(entry) + '\n' for entry in run.metrics)
        )


def test_a_baseline_with_other_settings_is_noted_as_missing(tmp_path):
    def plan(methods, rounds):
        return tables.make_plan(
            tables.find('fedlmd/3'), columns=['cifar10_lda0.05'], methods=methods, output=tmp_path,
            flags_=[f'--rounds={rounds}'],
        )  # fmt: skip

    write_runs([plan(['FedAvg'], 2).every[0]], a_run(10, 20))
    write_runs([plan(['FedLMD'], 1).every[0]], a_run(30))
    filled = tables.fill(plan(['FedLMD'], 1), '')
    note = 'fedlmd/cifar10_lda0.05 FedAvg seed 0 has other settings or cannot be read'
    assert any(text.startswith(note) for text in filled.notes)
    assert '**30.00** (FedAvg not run)' in markup.markdown(filled)
    # The paper's rounds have not been run.
    assert filled.alike == frozenset()
    # A requested run is refused.
    with pytest.raises(ValueError, match='--rounds=2, not 1'):
        tables.fill(plan(['FedAvg', 'FedLMD'], 1), '')


def test_failed_runs_are_reported(command, folder, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError('no space left')

    monkeypatch.setattr(runner.runner, 'train_group', full)
    assert command('fedlmd/1', '--methods=FedAvg,FedNTD', output='other') == 1
    shown = capsys.readouterr()
    assert shown.err.count('no space left') == 2
    text = (folder / 'other' / 'fedlmd' / 'table1.md').read_text()
    assert '| FedAvg | - |' in text
    assert '| FedNTD | - |' in text
    shutil.rmtree(folder / 'other')


EASY = ('--dataset=digits', '--num_clients=10', '--alpha=5', '--augment=none')


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([], 'the command makes one of fedcad/1'),
        (['fedlmd/9'], 'there is no table fedlmd/9'),
        (['fedlmd/1', 'fedlmd/2'], 'got fedlmd/1 fedlmd/2'),
        (['fedlmd/1', '--methods=FedAvg,FedFoo'], 'FedNTD, FedLMD, got FedFoo'),
        (['fedlmd/1', '--columns=x'], '--columns must name some of cifar10_lda0.05, got x'),
        (['fedlmd/1', '--methods='], 'FedLMD, got none'),
        (['fedlmd/1', '--rounds=0'], '--rounds must be at least 1, got 0'),
        (['fedlmd/1', '--seeds=x'], '--seeds must be an integer, got x'),
        (['fedlmd/1', '--rouds=1'], '--rouds is not a flag; did you mean --rounds?'),
        (['fedlmd/1', '--output='], '--output must name a folder'),
        (['fedlmd/1', '--output=/proc/x', '--', *EASY], '--output=/proc/x cannot be created'),
        (['fedlmd/1', '--output=pyproject.toml'], '--output=pyproject.toml is a file'),
        (['fedlmd/1', '--data_dir=absent'], 'absent'),
        (['fedlmd/1', '--', '--seed=1'], '--seed=1 is set for each run'),
        (['fedlmd/1', '--', '--method=kd'], '--method=kd is set for each run'),
        (['fedlmd/1', '--', '--mu=1'], '--mu=1'),
        (
            ['fedlmd/1', '--rounds=1', '--', '--rounds=2'],
            '--rounds=2 is a flag of this command; leave it out after --',
        ),
        (['fedlmd/1', '--', '--score=best'], '--score=best is a flag of this command; move it'),
        (
            ['fedlmd/1', '--methods=FedAvg,FedLMD', '--', '--fedrs.alpha=0.9'],
            '--fedrs.alpha=0.9: no selected method takes it (FedAvg, FedLMD); select one',
        ),
        (['fedlmd/1', '--', '--validation=0.1'], '--validation=0.1 holds out training data'),
        (['fedlmd/1', '--', '--foo=1'], '--foo is not a flag'),
        (['fedlmd/1', '--', 'foo'], 'foo after -- must be a flag'),
        (['fedlmd/1', '--', *EASY, '--model=unet'], 'unet'),
        (['fedlmd/1', '--', *EASY, '--augment=spin'], 'spin'),
        (['fedlmd/1', '--', *EASY, '--min_size=400'], 'min_size=400'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_invalid_input_is_refused_before_the_first_run(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'pyproject.toml').write_text('precious')
    assert tables.main(arguments) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r'error: .*\n', shown.err)
    assert message in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ['pyproject.toml']


@pytest.mark.parametrize(
    'line, message',
    [
        ('--method=fedprox', '--method=fedprox is set for each run by the grid'),
        ('--validation=0.2', '--validation=0.2 holds out training data for evaluation'),
    ],
)
@pytest.mark.parametrize('command', [['tables', 'fedlmd/1'], ['figures', 'fedlmd/4']], ids=str)
def test_a_flag_file_after_the_dashes_is_refused_alike(
    command, line, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.flags').write_text(line)
    main = {'tables': tables.main, 'figures': figures.main}[command[0]]
    assert main([command[1], '--', '--flagfile=mine.flags']) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ['mine.flags']


def test_the_title_names_columns_with_equal_settings(tmp_path):
    def title(*flags):
        return tables.title_of(
            tables.make_plan(tables.find('fedcad/4'), output=tmp_path, flags_=flags)
        )

    assert 'equal settings' not in title('--batch_size=7')
    assert title('--local_epochs=2').endswith(
        "(settings other than the flag file's: --local_epochs=2; E = 1, E = 10, E = 20, E = 50: "
        'equal settings)'
    )


def test_columns_are_equal_in_all_rows_only(tmp_path):
    extra = ('--dataset=digits', '--model=mlp', '--augment=none', '--auxiliary_per_class=5')
    plan = tables.make_plan(tables.find('fedssd/1'), output=tmp_path, flags_=extra)
    # FedSSD and others have another weight on CIFAR-100.
    assert 'equal settings' not in tables.title_of(plan)
    plan = tables.make_plan(
        tables.find('fedssd/1'), methods=['FedAvg'], output=tmp_path, flags_=extra
    )
    assert tables.title_of(plan).endswith('; CIFAR-10, CIFAR-100: equal settings)')


@pytest.mark.slow
def test_flags_with_the_values_of_the_paper_change_nothing(tmp_path):
    def title(name, *flags):
        plan = tables.make_plan(tables.find(name), output=tmp_path, flags_=flags)
        return tables.title_of(plan)

    same = '--alpha=0.05', '--nocsv', '--devices=1', '--target_accuracy=0.5'
    assert "flag file's" not in title('fedlmd/1', *same)
    assert "the flag file's: --momentum=0.3" in title('fedlmd/3', '--momentum=0.3', *same[1:])
    assert "the flag file's: --target_accuracy=0.5" in title('fedcad/1', '--target_accuracy=0.5')


def test_another_score_and_more_rounds_are_not_judged(tmp_path):
    best = tables.find('fedssd/2')._replace(score='best')
    made = [
        tables.make_plan(table, columns=['labels2'], methods=['FedAvg'], output=tmp_path, seeds=2)
        for table in (best, tables.find('fedssd/2'))
    ]
    write_runs(made[0].every, a_run(49.64, 35), a_run(49.64, 35))
    texts = [markup.markdown(tables.fill(plan, '')) for plan in made]
    assert '(not the default --score=final)' in texts[0]
    assert 'within' not in texts[0].split('Bold')[1].split('**')[0]
    assert rounds_in_words(300, 200) == '300 rounds, not 200'


def test_a_failed_run_of_the_paper_is_not_compared():
    value, score = Value(12.34, failed=True), Score(1, (30.5,))
    assert words.spoken_difference(score, value) == words.NOTHING


def test_damaged_records_are_refused(tmp_path):
    (cell,) = tables.make_plan(
        tables.find('fedlmd/1'), methods=['FedLMD'], output=tmp_path, flags_=['--rounds=3']
    ).every
    write_runs([cell], a_run(10, 20, 30))
    assert len(runner.read(cell).metrics) == 3
    metrics = cell.folder / run_files.METRICS
    metrics.write_text(''.join(metrics.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(ValueError, match='lacks some of the first 3 rounds'):
        runner.read(cell)
    (cell.folder / run_files.SUMMARY).write_text('{}')
    with pytest.raises(ValueError, match='is not the summary of a run'):
        runner.read(cell)


def test_runs_with_other_settings_are_refused_and_kept(command, folder, capsys):
    selection = ('fedlmd/1', '--methods=FedAvg', '--seeds=1')
    assert command(*selection) == 0
    before = stamps(folder)
    assert command(*selection, rounds=2) == 2
    assert command(*selection, '--report_only', rounds=2) == 2
    assert '--rounds=1, not 2' in capsys.readouterr().err
    assert command(*selection, further=('--batch_size=7',)) == 2
    assert '--batch_size=50, not 7' in capsys.readouterr().err
    assert stamps(folder) == before


def test_a_hyperparameter_is_one_of_the_methods_that_take_it(tmp_path):
    flags = '--tau=4', '--fedrs.alpha=0.9', *EASY
    rows = ['FedAvg', 'FedRS', 'FedLMD']
    plan = tables.make_plan(
        tables.find('fedlmd/3'), columns=['cifar10_lda0.1'], methods=rows, output=tmp_path,
        flags_=flags,
    )  # fmt: skip
    assert {cell.row: cell.config.hyperparameters for cell in plan.every} == {
        'FedAvg': {}, 'FedRS': {'fedrs.alpha': 0.9}, 'FedLMD': {'beta': 1, 'tau': 4},
    }  # fmt: skip
    assert plan.changed == ' '.join(flags)
    figure = figures.make_plan(
        'fedssd/4', 2, 1, columns=None, methods=None, runs=tmp_path, flags_=('--form=squared',)
    )
    forms = {c.row: c.config.hyperparameters.get('form') for c in cells_of(figure.panels)}
    assert forms == dict.fromkeys(forms, None) | {'FedSSD': 'squared'}


def test_hyperparameters_of_files_and_without_a_value_are_distributed(tmp_path):
    row = GridRow('FedRS+LMD', ('--method=fedrs+fedlmd', '--beta=1'))
    mine = tmp_path / 'mine.flags'
    mine.write_text('--tau=4\n--nocontinuous\n--shards_per_client=3\n--max_weight=0.5')
    others, given = runner.split_flags([f'--flagfile={mine}', '--fedlmd.beta=0.5'])
    assert others == ['--shards_per_client=3']
    cell = runner.make_cell(
        'fedlmd/cifar10_sharding2', row, 0, output=tmp_path, flags=others, hyperparameters=given
    )
    assert cell.config.hyperparameters == {'fedlmd.beta': 0.5, 'continuous': False, 'tau': 4}
    assert cell.config.shards_per_client == 3
    with pytest.raises(ValueError, match=r'--max_weight=0\.5: no selected method takes it'):
        runner.check_taken([cell], given)


def test_a_table_refuses_a_hyperparameter_in_which_its_columns_differ(tmp_path):
    def plan(name, columns):
        flags_ = ('--max_weight=0.2',)
        return tables.make_plan(tables.find(name), columns=columns, output=tmp_path, flags_=flags_)

    for columns in (None, ['alpha0.1']):  # the heading of one column would be as wrong
        with pytest.raises(ValueError, match=r'--max_weight=0\.2: the cells of SSD differ in it'):
            plan('fedssd/3', columns)
    for cell in plan('fedssd/1', None).every:  # columns of other flag files
        if cell.row == 'FedSSD':
            assert cell.config.hyperparameters['max_weight'] == 0.2


@pytest.mark.slow
def test_a_figure_is_drawn_with_a_hyperparameter_in_which_its_cells_do_not_differ(tmp_path):
    def plan(key, flag):
        figure = figures.make_plan(
            key, None, 1, columns=None, methods=None, runs=tmp_path, flags_=(flag,)
        )
        return {cell.row: cell.config.hyperparameters for cell in cells_of(figure.panels)}

    with pytest.raises(ValueError, match=r'--beta=0\.5: the cells of FedLMD differ in it'):
        plan('fedlmd/9', '--beta=0.5')
    with pytest.raises(ValueError, match=r'--fedntd\.beta=0\.5: no selected method takes it'):
        plan('fedlmd/9', '--fedntd.beta=0.5')
    assert plan('fedssd/7', '--mu=0.1')['FedProx'] == {'mu': 0.1}
    assert plan('fedcad/abstract1', '--source=server')['FedCAD']['source'] == 'server'


def test_a_table_without_a_finished_run_is_not_written(tmp_path, capsys):
    arguments = ['fedlmd/1', '--report_only', f'--output={tmp_path / "out"}', '--', *EASY]
    assert tables.main(arguments) == 1
    assert 'fedlmd/1: none of its 4 runs is done' in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_printed_command_keeps_every_flag():
    words = ['fedlmd/3', '--data_dir=my data', '--output=x', '--together=1', '--report_only']
    assert tables.command_of([*words, '--', '--batch_size=7', '--devices=2']) == (
        "python -m experiments.tables fedlmd/3 '--data_dir=my data' --output=x --together=1 -- "
        '--batch_size=7 --devices=2'
    )


def test_list_shows_all_tables_and_help_the_flags(capsys):
    assert tables.main(['--list']) == 0
    shown = capsys.readouterr().out
    for table in tables.TABLES.values():
        assert table.name in shown
        for named in (*table.columns, *table.rows):
            assert named.name in shown
    assert 'fedlmd/3  ' in shown
    assert '126 runs' in shown
    for main in (tables.main, figures.main, search.main, benchmark.main):
        assert main(['--help']) == 0
        shown = capsys.readouterr().out.splitlines()
        assert any(line.startswith('  --dry_run: ') for line in shown)
        assert max(map(len, shown)) <= 80


@pytest.mark.parametrize(
    'error, status', [(Interrupted('after round 3', 15), 143), (KeyboardInterrupt(), 130)]
)
def test_interrupted_commands_exit_with_the_status_of_the_signal(error, status, capsys):
    def main(arguments):
        raise error

    assert guarded(main)([]) == status
    assert capsys.readouterr().err.startswith('error: interrupted; finished rounds are kept')


@pytest.mark.slow
def test_the_committed_tables_follow_from_the_committed_runs(tmp_path):
    paths = sorted((Path(tables.__file__).parent / 'results').glob('**/table*.md'))
    for number, path in enumerate(paths):
        folder, text = tmp_path / str(number), path.read_text()
        written = folder / path.parent.name / path.name
        shutil.copytree(path.parent, written.parent)
        written.unlink()
        (command,) = re.findall('^    python -m experiments.tables (.*)$', text, re.MULTILINE)
        words = [word for word in shlex.split(command) if not word.startswith('--output=')]
        assert tables.main([f'--output={folder}', '--report_only', *words]) == 0
        lines = zip(text.splitlines(), written.read_text().splitlines(), strict=True)
        assert all(line == other or command in line for line, other in lines), path
    assert len(paths) > 20
