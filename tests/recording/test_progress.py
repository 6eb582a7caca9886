"""Progress of one run and of many, on a terminal of 80 columns and in a file."""

import contextlib
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from jaxfed.internal import console
from jaxfed.recording.curve import draw_accuracy
from jaxfed.recording.heatmap import draw_heatmap
from jaxfed.recording.progress import grid_progress, run_progress


@pytest.fixture
def output(tmp_path, monkeypatch):
    """Sets the output; returns a function that reads what it shows."""
    path = tmp_path / 'out'
    with path.open('w', buffering=1) as file:

        def open_output(terminal):
            environment = {'TERM': 'xterm', 'NO_COLOR': '1'}
            made = Console(file=file, width=80, force_terminal=terminal, _environ=environment)
            monkeypatch.setattr(console, 'TERMINAL', made)
            return lambda: re.split(r'\x1b\[[0-9?]*[A-Za-z]|[\r\n]+', path.read_text())

        yield open_output


def entry(round_, accuracy=0.5):
    return {'round': round_, 'test_accuracy': accuracy, 'train_loss': 1.0, 'seconds': 1.0}


def test_a_file_has_the_last_round(output):
    shown = output(terminal=False)
    with run_progress(25, quiet=False) as report:
        for i in range(1, 26):
            report(entry(i))
    rounds = [int(line.split()[1].split('/')[0]) for line in shown() if line]
    assert rounds == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25]


def test_a_file_has_the_groups_of_a_sweep(output):
    shown = output(terminal=False)
    with grid_progress(3, 50, quiet=False) as (begin, report):
        begin('two seeds', 40, 2)
        for i in range(1, 21):
            for _ in range(2):
                report(entry(i, accuracy=i / 100))
        begin('one', 10)
        for i in range(1, 11):
            report(entry(i))
    # A slow machine may need some seconds.
    assert [re.sub(r'\(\d+ s\)', '(0 s)', line) for line in shown() if line] == [
        '1-2/3 two seeds: compiling (0 s)',
        *(
            f'  round {i}, {5 * i} %: accuracy of the best run {i}.00% (0 s)'
            for i in range(2, 21, 2)
        ),
        '3/3 one: compiling (0 s)',
        '  round 10, 100 %: accuracy 50.00% (0 s)',
    ]


def test_a_resumed_group_counts_its_earlier_rounds(output):
    shown = output(terminal=False)
    with grid_progress(2, 20, quiet=False) as (begin, report):
        begin('two seeds', 20, 2)
        for i in range(7, 11):
            for _ in range(2):
                report(entry(i))
    shares = [re.search(r'round (\d+), (\d+) %', line) for line in shown()]
    assert [(int(s[1]), int(s[2])) for s in shares if s] == [
        (7, 70), (8, 80), (9, 90), (10, 100)
    ]  # fmt: skip


def test_a_group_shows_the_best_of_the_round(output):
    shown = output(terminal=False)
    with grid_progress(3, 5, quiet=False) as (begin, report):
        begin('one', 1)
        report(entry(1, 0.9))
        begin('two seeds', 4, 2)
        for round_, accuracies in ((1, (0.6, 0.4)), (2, (0.3, 0.5))):
            for accuracy in accuracies:
                report(entry(round_, accuracy))
    lines = [line for line in shown() if 'accuracy' in line]
    assert [line.rpartition(' (')[0] for line in lines] == [
        '  round 1, 100 %: accuracy 90.00%',
        '  round 1, 50 %: accuracy of the best run 60.00%',
        '  round 2, 100 %: accuracy of the best run 50.00%'
    ]  # fmt: skip


def test_a_group_that_halves_shows_its_later_rounds(output):
    shown = output(terminal=False)
    with grid_progress(4, 40, quiet=False) as (begin, report):
        begin('four', 40, 4)
        for round_ in range(1, 11):
            for _ in range(4 if round_ <= 3 else 2):
                report(entry(round_))
    shares = [re.search(r'round (\d+), (\d+) %', line) for line in shown()]
    # The number of runs is known after the first round of the rest.
    assert [(int(s[1]), int(s[2])) for s in shares if s] == [
        (i, 10 * i) for i in (1, 2, 3, 5, 6, 7, 8, 9, 10)
    ]


def test_a_sweep_without_an_evaluation_shows_no_accuracy(output):
    shown = output(terminal=False)
    with grid_progress(1, 1, quiet=False) as (begin, report):
        begin('one', 1)
        report(entry(1, accuracy=None))
    assert any(line.startswith('  round 1, 100 %: accuracy - (') for line in shown())


def test_a_terminal_says_that_a_sweep_compiles(output):
    shown = output(terminal=True)
    with grid_progress(4, 20, quiet=False) as (begin, report):
        begin('fedlmd: beta 0.5, [/b] with a name that is longer than the screen is wide', 10, 4)
        for i in range(1, 11):
            report(entry(i))
    lines = [line for line in shown() if 'fedlmd' in line]
    assert lines[0].startswith('1-4/4 compiling fedlmd: beta')
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert re.fullmatch(r'1-4/4 fedlmd: beta 0\.5, \[/b\].*… .* 50% 0:00:\d\d .* left *', lines[-1])


def test_a_terminal_shows_the_first_round(output):
    shown = output(terminal=True)
    with run_progress(100, quiet=False) as report:
        pass
    assert any(re.match(r'round +0/100 .* training the first round', line) for line in shown())
    del report


def test_a_negative_loss_is_visible(tmp_path, monkeypatch):
    limits, save = [], Figure.savefig

    def savefig(figure, *arguments, **options):
        limits.append(figure.axes[1].get_ylim())
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, 'savefig', savefig)
    for losses in ((2.0, 1.0), (-0.4, -0.9), (0.5, None)):
        metrics = [
            {'round': i, 'test_accuracy': 0.5, 'train_loss': loss}
            for i, loss in enumerate(losses, start=1)
        ]
        draw_accuracy(metrics, tmp_path / 'x.png', title='x')
    assert [low < high for low, high in limits] == [True] * 3
    assert limits[0][0] == limits[2][0] == 0 and limits[1][0] < -0.9


def test_the_axis_names_what_is_evaluated(tmp_path, monkeypatch):
    labels = []
    monkeypatch.setattr(
        Figure, 'savefig', lambda figure, *_, **__: labels.append(figure.axes[0].get_ylabel())
    )
    for evaluated_on in ('test', 'validation'):
        with contextlib.suppress(FileNotFoundError):  # nothing is written
            draw_accuracy([], tmp_path / 'x.png', title='x', evaluated_on=evaluated_on)
    assert labels == ['test accuracy (%)', 'validation accuracy (%)']


def test_pictures_show_names_with_dollars(tmp_path):
    (tmp_path / 'other').write_text('kept')
    for draw, content in ((draw_heatmap, np.ones((2, 2), int)), (draw_accuracy, [])):
        path = tmp_path / 'x.png'
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / 'other')
        draw(content, path, title=r'$\frac{$ on $x')
        assert path.read_bytes()[:4] == b'\x89PNG'
    assert (tmp_path / 'other').read_text() == 'kept'
