"""Cells of a grid that share a program: equal results, locks, and resuming."""

import csv
import json
import re
import shutil
import threading

import pytest
from filelock import FileLock

from experiments import tables
from experiments.grid import command, runner, training
from experiments.grid.runner import GridRow
from jaxfed.runs import feed, rounds
from tests.sweeps.test_sweep import Stopped, assert_same, lines

TINY = (
    '--dataset=digits', '--model=mlp', '--augment=none', '--min_size=1', '--num_clients=6',
    '--clients_per_round=2', '--local_epochs=1', '--measure=none', '--auxiliary_per_class=0',
)  # fmt: skip
ROWS = {
    'FedAvg': GridRow('FedAvg', ('--method=fedavg',)),
    'FedProx': GridRow('FedProx', ('--method=fedprox', '--mu=0.1')),
    'more': GridRow('more', ('--method=fedprox', '--mu=1')),
}


def cells_of(output, names, seeds, *flags):
    return [
        runner.make_cell(
            'fedlmd/cifar10_lda0.05', ROWS[name], seed, output=output, flags=[*TINY, *flags]
        )
        for name in names
        for seed in range(seeds)
    ]


@pytest.mark.slow
def test_shared_programs_give_the_same_table(cheap_runs, programs, tmp_path, capsys):
    def rows(output, *flags):
        flags = ('--columns=cifar10_lda0.05,cifar10_lda0.5', '--methods=FedAvg,FedNTD', *flags)
        place = f'--output={tmp_path / output}'
        assert tables.main(['fedlmd/3', '--seeds=1', place, '--rounds=2', *flags, '--', *TINY]) == 0
        text = (tmp_path / output / 'fedlmd' / 'table3.csv').read_text()
        return list(csv.DictReader(text.splitlines()))

    shared = rows('shared')
    shown = capsys.readouterr().out
    assert programs == [2, 2]  # a program a method, for both columns
    assert '1-2/4 2 columns FedAvg seed 0' in shown and '3-4/4 2 columns FedNTD' in shown
    alone = rows('alone', '--together=1')
    assert programs[2:] == [1] * 4
    for one, other in zip(shared, alone, strict=True):
        assert [one[k] for k in ('method', 'column', 'n')] == [
            other[k] for k in ('method', 'column', 'n')
        ]
        assert float(one['mean']) == pytest.approx(float(other['mean']), abs=1e-4)
    paths = sorted((tmp_path / 'shared').rglob('summary.json'))
    assert len(paths) == 4
    for path in paths:
        other = tmp_path / 'alone' / path.parent.relative_to(tmp_path / 'shared')
        assert_same(lines(path.parent), lines(other))
    # Finished cells are skipped.
    rows('shared')
    assert len(programs) == 6
    assert not list((tmp_path / 'shared').rglob('.together'))


@pytest.mark.slow
def test_interrupted_cells_of_one_program_resume_together(
    cheap_runs, programs, tmp_path, monkeypatch
):
    names, flags = ('FedProx', 'more'), ('--rounds=5', '--checkpoint_every=2')
    whole = cells_of(tmp_path / 'whole', names, 2, *flags)
    assert runner.run_cells(whole, quiet=True) == {}
    assert programs == [4]
    cut = cells_of(tmp_path / 'cut', names, 2, *flags)
    inner, calls = rounds.train_and_evaluate, []

    def run_round(prepared, experiments, planned, *rest):
        calls.append((len(experiments), planned.number))
        if (len(experiments), planned.number) == (4, 4) and calls.count((4, 4)) == 1:
            raise Stopped
        return inner(prepared, experiments, planned, *rest)

    monkeypatch.setattr(rounds, 'train_and_evaluate', run_round)
    with pytest.raises(Stopped):
        runner.run_cells(cut, quiet=True)
    done = calls.copy()
    # Also with another --together, or with more cells in the grid.
    assert runner.run_cells(cut, together=1, quiet=True) == {}
    assert calls[len(done) :] == [(4, 3), (4, 4), (4, 5)]
    for one, other in zip(cut, whole, strict=True):
        assert_same(lines(one.folder), lines(other.folder), rtol=0)
        assert (one.folder / 'model.safetensors').read_bytes() == (
            other.folder / 'model.safetensors'
        ).read_bytes()
    assert not (tmp_path / 'cut' / '.together').exists()


@pytest.mark.slow
def test_a_group_does_not_restart_if_a_cell_was_moved_away(
    cheap_runs, programs, tmp_path, stopped_before
):
    cells = cells_of(tmp_path, ('FedProx', 'more'), 1, '--rounds=3', '--checkpoint_every=1')
    with stopped_before(3):
        runner.run_cells(cells, quiet=True)
    cells[0].folder.rename(tmp_path / 'elsewhere')
    with pytest.raises(ValueError, match=r'without metrics.jsonl: put its') as refused:
        runner.run_cells(cells, quiet=True)
    assert len(lines(cells[1].folder)) == 2
    shutil.rmtree(re.search(r'or remove (\S+) to restart', str(refused.value))[1])
    assert runner.run_cells(cells, quiet=True) == {}
    assert programs == [2] and all(len(lines(cell.folder)) == 3 for cell in cells)
    assert json.loads((cells[1].folder / 'summary.json').read_text())['resumed_after'] is None


@pytest.mark.slow
def test_cells_of_another_process_are_skipped(cheap_runs, programs, tmp_path, capsys):
    cells = cells_of(tmp_path, ('FedProx', 'more'), 2, '--rounds=1')
    cells[1].folder.parent.mkdir(parents=True)
    with FileLock(cells[1].folder.with_name('.seed1.lock')):
        failed = runner.run_cells(cells, quiet=True)
    assert failed == {}
    assert programs == [3]
    assert [runner.is_done(cell) for cell in cells] == [True, False, True, True]
    printed = capsys.readouterr()
    assert f'{cells[1].name}: another process is running it.\n' in printed.out
    assert 'another process' not in printed.err
    assert runner.run_cells(cells, quiet=True) == {}
    assert programs == [3, 1]


@pytest.mark.slow
def test_a_failed_cell_does_not_stop_the_others(cheap_runs, programs, tmp_path, monkeypatch):
    cells = cells_of(tmp_path, ('FedProx', 'more'), 2, '--rounds=1')
    inner = runner.set_up

    def set_up(config):
        experiment = inner(config)
        if config == cells[2].config:
            (experiment.workdir / 'partition.json').write_text('{"label_counts": [[1]]}')
        return experiment

    monkeypatch.setattr(runner, 'set_up', set_up)
    failed = runner.run_cells(cells, quiet=True)
    assert list(failed) == [cells[2].name] and 'describes other data' in failed[cells[2].name]
    assert programs == [3]

    def refuse(experiments, *arguments, **keywords):
        if len(experiments) > 1:
            return [feed.TooLarge('too large'), *([()] * (len(experiments) - 1))]
        raise OSError('disk full')

    monkeypatch.setattr(runner.runner, 'train_group', refuse)
    others = cells_of(tmp_path, ('FedAvg',), 1, '--rounds=1')
    others += cells_of(tmp_path / 'other', ('FedProx', 'more'), 1, '--rounds=1')
    failures = runner.run_cells([others[0]], quiet=True) | runner.run_cells(others[1:], quiet=True)
    assert list(failures.values()) == ['disk full', 'too large']


def test_names_of_groups_show_what_the_cells_share(tmp_path):
    cells = cells_of(tmp_path, ('FedAvg', 'more'), 2)
    assert runner.name_of(cells) == 'fedlmd/cifar10_lda0.05 2 methods 2 seeds'
    assert runner.name_of(cells[:2]) == 'fedlmd/cifar10_lda0.05 FedAvg 2 seeds'
    assert runner.name_of(cells[:1]) == cells[0].name == 'fedlmd/cifar10_lda0.05 FedAvg seed 0'


def test_progress_counts_recorded_runs_and_rounds(tmp_path):
    cells = cells_of(tmp_path, ('FedAvg', 'more'), 1, '--rounds=3')
    assert training.progress_of(cells) == '0 of 2 runs, 0 of 6 rounds'
    cells[0].folder.mkdir(parents=True)
    (cells[0].folder / 'metrics.jsonl').write_text('{}\n{}\n{}\n')
    (cells[0].folder / 'summary.json').write_text('{}')
    cells[1].folder.mkdir(parents=True)
    (cells[1].folder / 'metrics.jsonl').write_text('{}\n{"rou')
    assert training.progress_of(cells) == '1 of 2 runs, 4 of 6 rounds'


@pytest.mark.parametrize('terminal', [False, True])
def test_progress_lines_appear_only_without_a_terminal(terminal, tmp_path, monkeypatch):
    lines, printed = [], threading.Event()
    monkeypatch.setattr(command.console, 'can_animate', lambda: terminal)
    monkeypatch.setattr(command.console, 'say', lambda text: (lines.append(text), printed.set()))
    cells = cells_of(tmp_path, ('FedAvg',), 1, '--rounds=3')
    with training.progress_lines(cells, seconds=0.01):
        # On a terminal a line would appear after a hundredth of a second.
        assert printed.wait(0.3 if terminal else 3600) != terminal
    assert bool(lines) != terminal
    assert all(line.startswith('0 of 1 runs, 0 of 3 rounds (0:0') for line in lines)
