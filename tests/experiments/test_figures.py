"""The papers' figures: their runs, their numbers, their pictures, and the command."""

import csv
import json

import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments import figures
from experiments.draw import curves, quantities
from experiments.draw.figure import Found, cells_of, narrowed, plan
from experiments.draw.panels import draw
from experiments.draw.shapes import Curve, Lines, Matrix, Missing, over_seeds
from experiments.draw.write import numbers, summarise
from experiments.grid import runner
from experiments.grid.runner import RecordedCell
from jaxfed.internal import files
from jaxfed.recording import run_files, style
from jaxfed.runs import config_flags
from jaxfed.runs.experiment import parts_of

RUNS = {
    'fedcad/1': 3, 'fedcad/3': 0, 'fedcad/4': 4, 'fedcad/abstract1': 4,
    'fedssd/2': 5, 'fedssd/3': 2, 'fedssd/4': 2, 'fedssd/6': 0, 'fedssd/7': 21, 'fedssd/8': 28,
    'fedssd/9': 28,
    'fedlmd/2': 2, 'fedlmd/4': 4, 'fedlmd/5': 40, 'fedlmd/6': 27, 'fedlmd/7': 42, 'fedlmd/8': 6,
    'fedlmd/9': 32,
}  # fmt: skip
TINY = (
    '--model=mlp', '--augment=none', '--num_clients=4', '--clients_per_round=4', '--batch_size=32',
    '--auxiliary_per_class=2', '--devices=1', '--lanes=1',
)  # fmt: skip
CLIENT = '--confusion_clients=0'  # of four clients, for figures of one client


@pytest.fixture(scope='module', autouse=True)
def no_compilation_cache():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JAX_COMPILATION_CACHE_DIR', '')  # nothing is left behind
        yield


@pytest.fixture(scope='module')
def npz(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp('data') / 'tiny.npz'
    images = rng.integers(0, 256, (150, 6, 6, 1)).astype(np.uint8)
    labels = np.arange(150, dtype=np.int64) % 3
    images[np.arange(150), labels] = 255
    np.savez(path, x_train=images[:120], y_train=labels[:120], x_test=images[120:],
             y_test=labels[120:])  # fmt: skip
    return path


@pytest.fixture
def command(tmp_path, monkeypatch, npz):
    """Runs the command on the tiny dataset; returns its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, flags=()):
        run_flags = ('--dataset=npz', f'--npz={npz}', *TINY, *flags)
        return figures.main([*arguments, '--', *run_flags])

    return run


# The records of hand-made runs in round t: any numbers that differ between runs and rounds.


def accuracy(cell, t):
    return (7 * t + 11 * cell.seed + len(cell.row) + 3 * len(cell.variant)) % 90 / 100


def entry(cell, t):
    share = accuracy(cell, t)
    counts = [[9 - t % 3, 1, t % 3], [2, 8, 0], [0, 5, 5]]
    return {
        'round': t,
        'test_accuracy': share,
        'local_accuracy': share / 2,
        'class_accuracy': [share, share / 2, 0.0],
        'prediction_share': [0.5, 0.5 - t / 100, t / 100],
        'cohort_labels': [10 * t, 20, 0],
        'confusion': counts,
        'local_confusion': {'0': counts[::-1]} if cell.config.confusion_clients else None,
    }


def hand_made(cell, rounds=None):
    parts = parts_of(cell.config)
    settings = json.loads(json.dumps(run_files.describe_config(cell.config, parts)))
    metrics = [entry(cell, t) for t in range(1, (rounds or cell.config.rounds) + 1)]
    shares = [line['test_accuracy'] for line in metrics]
    summary = {
        'best_accuracy': max(shares), 'final_accuracy': shares[-1], 'personal_accuracy': None,
        'failed': False,
    }  # fmt: skip
    summary['rounds'] = len(metrics)
    return RecordedCell(settings, summary, metrics)


@pytest.fixture
def without_training(monkeypatch):
    """Hand-made records instead of trained ones; the list of the cells that would train."""
    asked = []

    def write(cells, *, together=0, **_):
        for cell in cells:
            if not runner.is_done(cell):
                asked.append(cell)
                made = hand_made(cell)
                cell.folder.mkdir(parents=True)
                files.write_json(cell.folder / run_files.CONFIG, made.config)
                lines = ''.join(json.dumps(line) + '\n' for line in made.metrics)
                (cell.folder / run_files.METRICS).write_text(lines)
                files.write_json(cell.folder / run_files.SUMMARY, made.summary)
        return {}

    monkeypatch.setattr(runner, 'run_cells', write)
    monkeypatch.setattr(runner, 'check', lambda cells: None)
    return asked


def read_csv(path):
    with path.open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def found_of(name, seeds=1, flags=(), missing=()):
    """Hand-made runs for each panel of a figure, except for missing seeds."""
    flags = ('--rounds=3', *flags)
    planned = plan(figures.make(name, 3), seeds, output=runner.Path('runs'), flags=flags)
    return [
        (panel, [
            Found(series, cells, tuple(hand_made(c) for c in cells if c.seed not in missing))
            for series, cells in zip(panel.series, of_series)
        ])
        for panel, of_series in planned
    ]  # fmt: skip


# The runs of figures.


@pytest.mark.slow
def test_every_figure_has_valid_runs_of_its_paper():
    found = {}
    for name in figures.FIGURES:
        planned = plan(figures.make(name), 1, output=runner.Path('runs'))
        cells = cells_of(planned)
        found[name] = len(cells)
        every = [*cells, *cells_of(planned, trains=False)]
        assert every
        assert {cell.column.split('/')[0] for cell in every} == {name.split('/')[0]}
        # Two runs in one folder would be one.
        ran = {(s.column, s.row, s.variant) for p, _ in planned if p.trains for s in p.series}
        assert len(ran) == len(cells)
    assert found == RUNS


def test_the_iid_column_differs_only_in_the_partition():
    even, skewed = (
        config_flags.parse([f'--flagfile={runner.flag_file(f"fedssd/{name}")}'])
        for name in ('cifar10_iid', 'cifar10_dirichlet0.5')
    )
    assert (even.partition, skewed.partition, skewed.alpha) == ('iid', 'dirichlet', 0.5)
    same = vars(skewed) | {'partition': 'iid', 'alpha': even.alpha, 'balanced': False}
    assert vars(even) == same


def test_phases_follow_the_rounds():
    def switches(name, rounds):
        cells = cells_of(plan(figures.make(name, rounds), 1, output=runner.Path('runs')))
        return [(c.config.method, c.config.switch_round, c.config.rounds) for c in cells]

    assert switches('fedcad/1', None) == [
        ('fedavg', None, 11), ('fedavg,fedlsd', 10, 11), ('fedavg,fedcad', 10, 11),
    ]  # fmt: skip
    assert switches('fedssd/4', 3) == [('fedavg', None, 3), ('fedavg,fedssd', 2, 3)]
    steps = [(method, step) for method, step, _ in switches('fedlmd/8', None)]
    assert steps == [
        ('fedlmd', None), *[('fedlmd_tf,fedlmd', r) for r in (40, 80, 120, 160)],
        ('fedlmd_tf', None),
    ]  # fmt: skip
    assert [m for m, _, _ in switches('fedlmd/8', 1)] == ['fedlmd', 'fedlmd_tf']
    with pytest.raises(ValueError, match='--rounds must be at least 2, got 1'):
        figures.make('fedcad/1', 1)


def test_methods_without_extra_computation_cost_as_much_as_fedavg():
    from jaxfed.runs.listings import cost_of

    (panel, _) = figures.make('fedlmd/5').panels
    methods = {
        flag.split('=')[1] for s in panel.series for flag in s.row.flags if 'method=' in flag
    }
    assert len(methods) == 5
    for method in methods:
        cost = cost_of(method)
        assert (cost.forward_passes, cost.data_passes) == (0, 0)
        assert cost.upload_bytes < 1.01 * cost.parameter_bytes


def test_narrowed_to_columns_and_methods():
    figure = narrowed(figures.make('fedlmd/5'), columns=['cifar10_lda0.1'], methods=['fedavg'])
    (panel,) = figure.panels
    assert [(s.column, s.row.name) for s in panel.series] == [('fedlmd/cifar10_lda0.1', 'FedAvg')]


# Numbers.


def test_over_seeds():
    mean, sd, n = over_seeds([[1, np.nan, np.nan], [3, 5, np.nan]])
    np.testing.assert_allclose(mean, [2, 5, np.nan])
    np.testing.assert_allclose(sd, [np.sqrt(2), np.nan, np.nan])
    np.testing.assert_array_equal(n, [2, 1, 0])


def test_curves_are_means_over_finished_seeds():
    (panel, found), *_ = found_of('fedlmd/4', seeds=3, missing=(2,))
    lines = panel.shape_of(panel.title, found)
    assert [curve.label for curve in lines.curves] == ['FedAvg', 'FedAvg+KD', 'FedNTD', 'FedLMD']
    for curve, one in zip(lines.curves, found):
        both = 100 * np.array([[accuracy(c, t) for t in (1, 2, 3)] for c in one.cells[:2]])
        np.testing.assert_array_equal(curve.x, [1, 2, 3])
        np.testing.assert_allclose(curve.y, both.mean(axis=0))
        np.testing.assert_allclose(curve.sd, both.std(axis=0, ddof=1))
        np.testing.assert_array_equal(curve.n, [2, 2, 2])


def test_curves_exclude_diverged_seeds():
    (_, (one, *_)), *_ = found_of('fedlmd/4', seeds=2)
    first, second = one.runs
    broken = dict.fromkeys(second.metrics[1]) | {'round': 2, 'failed': True}
    second = second._replace(metrics=[second.metrics[0], broken])
    (curve,) = curves.by_round()('', [one._replace(runs=(first, second))]).curves
    np.testing.assert_array_equal(curve.n, [2, 1, 1])
    np.testing.assert_allclose(curve.y[1:], [100 * e['test_accuracy'] for e in first.metrics[1:]])
    assert np.isnan(curve.sd[1:]).all()


def test_gap_by_round_and_by_heterogeneity():
    (_, dotted), (_, found), (sweep, by_skew) = found_of('fedssd/2', seeds=2)
    dots = figures.make('fedssd/2').panels[0].shape_of('', dotted)
    accuracies = [accuracy(cell, t) for cell in dotted[0].cells for t in (1, 2, 3)]
    np.testing.assert_allclose(dots.curves[0].x, 100 * np.array(accuracies))
    np.testing.assert_allclose(dots.curves[0].y, 50 * np.array(accuracies))
    (curve, *_) = curves.by_round(quantities.gap)('', found).curves
    halves = np.array([[50 * accuracy(c, t) for t in (1, 2, 3)] for c in found[0].cells])
    np.testing.assert_allclose(curve.y, halves.mean(axis=0))
    lines = sweep.shape_of('', by_skew)
    assert lines.ticks == ('#K=2', '#K=5', 'δ=0.1', 'δ=0.5', 'δ=10')
    np.testing.assert_allclose(lines.curves[0].y[0], halves.mean())
    np.testing.assert_allclose(lines.curves[0].sd[0], halves.mean(axis=1).std(ddof=1))


def test_sweeps_keep_the_positions_of_missing_runs():
    (panel, found), *_ = found_of('fedssd/9')
    left = [one._replace(runs=()) if one.series.at == ('1',) and i else one
            for i, one in enumerate(found)]  # fmt: skip
    left[0] = left[0]._replace(runs=())
    lines = panel.shape_of('', left)
    assert lines.ticks == ('1', '10', '20', '50')
    np.testing.assert_array_equal(lines.curves[0].x, [1, 2, 3])
    wanted = [100 * accuracy(one.cells[0], 3) for one in found if one.series.name == 'FedAvg'][1:]
    np.testing.assert_allclose(lines.curves[0].y, wanted)


def test_sensitivity_grid_has_each_run_in_its_cell():
    (panel, found), *_ = found_of('fedlmd/9')
    matrix = panel.shape_of('', [found[0]._replace(runs=()), *found[1:]])
    assert matrix.rows == ('0.5', '1', '2', '4')
    assert matrix.columns == ('0.25', '0.5', '1', '2')
    assert np.isnan(matrix.values[0, 0])
    for one in found[1:]:
        config_ = one.cells[0].config.hyperparameters
        assert {'tau': float(one.series.at[0]), 'beta': float(one.series.at[1])} == config_
        place = matrix.rows.index(one.series.at[0]), matrix.columns.index(one.series.at[1])
        best = 100 * max(accuracy(one.cells[0], t) for t in (1, 2, 3))
        np.testing.assert_allclose(matrix.values[place], best)


def test_means_exclude_diverged_runs():
    (panel, found), *_ = found_of('fedlmd/9', seeds=2)
    first, second = found[0].runs
    broken = second._replace(summary=second.summary | {'failed': True})
    one = found[0]._replace(runs=(first, broken))
    matrix = panel.shape_of('', [one, *found[1:]])
    assert (matrix.values[0, 0], matrix.n[0, 0]) == (quantities.best(first), 1)
    (curve, *_) = curves.sweep(quantities.mean_gap, '')('', [one]).curves
    assert (curve.y[0], curve.n[0]) == (quantities.mean_gap(first), 1)
    only = found[0]._replace(runs=(broken,))
    assert not curves.sweep(quantities.best, '')('', [only]).curves[0].y.size


def test_figures_without_measures_accept_runs_without_measures(tmp_path):
    def cells(*names):
        panels = [p for name in names for p in plan(figures.make(name), 1, output=tmp_path)]
        return {c.folder: c for c in cells_of(panels)}

    (fedavg,) = [c for c in cells('fedlmd/4').values() if c.row == 'FedAvg']
    parts = parts_of(fedavg.config)
    described = run_files.describe_config(fedavg.config, parts) | {'measure': 'none'}
    fedavg.folder.mkdir(parents=True)
    files.write_json(fedavg.folder / run_files.CONFIG, described)
    files.write_json(fedavg.folder / run_files.SUMMARY, {})
    assert runner.is_done(fedavg)
    # Figure 2 draws measures, in either order of the two figures.
    for names in (('fedlmd/2',), ('fedlmd/2', 'fedlmd/4'), ('fedlmd/4', 'fedlmd/2')):
        with pytest.raises(ValueError, match='--measure=none, not forgetting'):
            runner.is_done(cells(*names)[fedavg.folder])
    drawn = {name for name in figures.FIGURES if figures.make(name).measured}
    assert drawn == {'fedlmd/2', 'fedcad/1', 'fedssd/3', 'fedssd/4'}


def test_labels_and_predictions_by_round():
    (labels, of_labels), (predicted, of_predicted), _ = found_of('fedlmd/2')
    matrix = labels.shape_of('', of_labels)
    np.testing.assert_array_equal(matrix.values, [[10, 20, 30], [20] * 3, [0] * 3])
    assert (matrix.rows, matrix.columns) == (('0', '1', '2'), ('1', '2', '3'))
    np.testing.assert_allclose(
        predicted.shape_of('', of_predicted).values, [[50] * 3, [49, 48, 47], [1, 2, 3]]
    )
    (run,) = of_labels[0].runs
    long = run._replace(metrics=[run.metrics[0] | {'round': t} for t in range(1, 121)])
    assert labels.shape_of('', [of_labels[0]._replace(runs=(long,))]).columns[-1] == '100'


@pytest.fixture
def of_client(npz):
    flags = ('--dataset=npz', f'--npz={npz}', *TINY, CLIENT)
    return {name: found_of(name, flags=flags) for name in ('fedcad/1', 'fedssd/3', 'fedssd/4')}


def test_class_shares_and_accuracies_of_one_client(of_client):
    from jaxfed.runs.partition_map import deal_examples

    ((panel, found),) = of_client['fedcad/1']
    matrix = panel.shape_of('', found)
    assert matrix.rows == ('data', 'global', 'FedAvg', 'FedLSD', 'FedCAD')
    counts = deal_examples(found[0].cells[0].config).label_counts[0]
    np.testing.assert_allclose(matrix.values[0], counts / counts.sum())
    np.testing.assert_allclose(matrix.values[1], [0.7, 0.8, 0.5])  # of round 2
    np.testing.assert_allclose(matrix.values[2:], [[0, 0.8, 0]] * 3)
    data, start, fedavg, fedssd = (p.shape_of('', f).values for p, f in of_client['fedssd/4'])
    np.testing.assert_allclose(data, np.diag(counts / counts.sum()))
    np.testing.assert_allclose(start, [[0.7, 0.1, 0.2], [0.2, 0.8, 0], [0, 0.5, 0.5]])
    np.testing.assert_allclose(fedavg, [[0, 0.5, 0.5], [0.2, 0.8, 0], [0.9, 0.1, 0]])
    np.testing.assert_allclose(fedssd, fedavg)
    (_, of_global), (_, of_local), *_ = of_client['fedssd/3']
    panels = figures.make('fedssd/3').panels
    shown = panels[0].shape_of('', of_global).values
    np.testing.assert_allclose(
        shown[1], [50 * accuracy(of_global[0].cells[0], t) for t in (1, 2, 3)]
    )
    np.testing.assert_allclose(
        panels[1].shape_of('', of_local).values, [[0] * 3, [80] * 3, [10, 20, 0]]
    )
    entry = {'local_confusion': {'2': [[1, 1], [0, 0]], '0': [[1, 3], [0, 5]]}}  # of the cohort
    assert quantities.local_class_accuracy(entry, 0) == [25, 100]
    assert quantities.local_class_accuracy(entry, 1) is None


def test_seeds_that_a_figure_does_not_read_are_named(tmp_path, capsys):
    arguments = ['fedcad/1', '--seeds=3', '--dry_run', f'--output={tmp_path}']
    assert figures.main(arguments) == 0
    assert '--seeds=3 is not read for figures of one seed: fedcad/1.' in capsys.readouterr().out


def test_cells_of_a_diverged_client_are_empty(of_client):
    ((panel, found),) = of_client['fedcad/1']
    (run,) = found[2].runs
    broken = run._replace(metrics=[*run.metrics[:-1], run.metrics[-1] | {'local_confusion': None}])
    matrix = panel.shape_of('', [*found[:2], found[2]._replace(runs=(broken,))])
    assert np.isnan(matrix.values[4]).all()
    assert not np.isnan(matrix.values[:4]).any()


# Pictures.


def curve(label, x, y, sd):
    return Curve(label, *map(np.array, (x, y, sd)), np.full(len(x), 2))


def test_lines_bands_labels_and_legend():
    nan = np.nan
    shape = Lines('A', 'round', 'accuracy (%)', (
        curve('one', [1, 2, 3], [10.0, 20, 15], [1.0, 2, 3]),
        curve('two', [1, 3], [5.0, 6], [nan, nan]),
    ))  # fmt: skip
    figure = draw([shape, Missing('B')], across=2, note='a note')
    axes, empty = figure.axes
    for line, drawn, i in zip(shape.curves, axes.lines, range(2)):
        np.testing.assert_array_equal(drawn.get_xdata(), line.x)
        np.testing.assert_array_equal(drawn.get_ydata(), line.y)
        assert to_hex(drawn.get_color()) == style.line(i)['color']
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert {(1, 9), (1, 11), (2, 18), (2, 22), (3, 12), (3, 18)} <= corners
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (
        'A', 'round', 'accuracy (%)'
    )  # fmt: skip
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ['one', 'two']
    assert empty.get_title() == 'B'
    assert [text.get_text() for text in empty.texts] == ['not run']
    assert figure.get_supxlabel() == 'a note'


@pytest.mark.parametrize(
    ('names', 'columns'),
    [(('one', 'two'), 2), (('FedAvg', 'FedAvg+KD', 'FedNTD', 'FedLMD'), 2), (('n' * 90, 'b'), 1)],
)
def test_a_legend_takes_the_lines_that_it_needs(names, columns):
    lines = Lines('', 'round', 'accuracy (%)', tuple(curve(n, [1], [2.0], [1.0]) for n in names))
    figure = draw([lines], across=1, note='')
    figure.draw_without_rendering()
    (legend,) = figure.legends
    texts = legend.get_texts()
    assert [text.get_text() for text in texts] == list(names)
    assert len({round(text.get_window_extent().x0) for text in texts}) == columns
    if columns > 1:  # else a name is wider than the picture
        assert figure.bbox.x0 <= legend.get_window_extent().x0
        assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_swept_values_are_in_even_steps_with_bars():
    shape = Lines('', 'epochs', 'accuracy (%)', (curve('one', [0, 2], [1.0, 4], [0.5, np.nan]),),
                  ticks=('1', '10', '50'), reference='zero')  # fmt: skip
    (axes,) = draw([shape]).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ['1', '10', '50']
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 2])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1, 4])
    (bars,) = axes.containers
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [[0.5, 1.5], [4, 4]]
    assert any(list(line.get_ydata()) == [0, 0] for line in axes.lines[1:])


def test_points_of_curves_that_coincide_lie_side_by_side():
    shape = Lines('', 'epochs', 'accuracy (%)', tuple(
        curve(name, [0, 1], [1.0, 2], [0.5, 0.5]) for name in 'abc'
    ), ticks=('1', '10'))  # fmt: skip
    (axes,) = draw([shape]).axes
    places = [bars.lines[0].get_xdata() for bars in axes.containers]
    np.testing.assert_allclose(
        np.array(places), [[-0.2 / 3, 1 - 0.2 / 3], [0, 1], [0.2 / 3, 1 + 0.2 / 3]]
    )


def matrix(values, **fields):
    values = np.array(values, float)
    names = (tuple(map(str, range(size))) for size in values.shape)
    return Matrix('M', 'predicted', 'true', values, np.full(values.shape, np.nan),
                  np.ones(values.shape, int), *names, 'share', **fields)  # fmt: skip


def test_matrices_have_their_numbers_and_one_scale():
    first = matrix([[0.9, 0.1], [0, np.nan]], form='.2f')
    second = matrix([[0.2, 0.5], [0.3, 0.4]])
    figure = draw([first, second], across=2)
    left, right, bar = figure.axes
    (image,) = left.images
    shown = image.get_array()
    np.testing.assert_array_equal(shown.mask, [[False, False], [True, True]])  # zero and nothing
    np.testing.assert_array_equal(shown.compressed(), [0.9, 0.1])
    np.testing.assert_array_equal(right.images[0].get_array(), second.values)
    assert image.get_clim() == right.images[0].get_clim() == (0, 0.9)
    assert [(t.get_position(), t.get_text()) for t in left.texts] == [
        ((0, 0), '0.90'), ((1, 0), '0.10'),
    ]  # fmt: skip
    assert [to_hex(t.get_color()) for t in left.texts] == ['#ffffff', '#000000']
    assert not right.texts
    assert (left.get_xlabel(), left.get_ylabel(), bar.get_ylabel()) == (
        'predicted', 'true', 'share; white: 0 or none'
    )  # fmt: skip


def test_many_rounds_have_round_ticks():
    many = matrix(np.arange(240.0).reshape(2, 120))
    (axes, _) = draw([many._replace(columns=tuple(map(str, range(1, 121))))]).axes
    ticks = dict(zip(axes.get_xticks(), (text.get_text() for text in axes.get_xticklabels())))
    assert ticks == {19: '20', 39: '40', 59: '60', 79: '80', 99: '100', 119: '120'}


def test_csv_holds_the_drawn_numbers():
    shape = Lines('a, "b"', 'x', 'y', (curve('one', [0, 1], [1.0, 4], [0.5, np.nan]),),
                  ticks=('1', '50'))  # fmt: skip
    rows = list(csv.DictReader(numbers([shape, Missing('c'), matrix([[1, np.nan]])]).splitlines()))
    keys = ('panel', 'series', 'x', 'value', 'sd', 'n')
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ('a, "b"', 'one', '1', '1', '0.5', '2'),
        ('a, "b"', 'one', '50', '4', '', '2'),
        ('M', '0', '0', '1', '', '1'),
        ('M', '0', '1', '', '', '1'),
    ]


# The command.


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_every_figure_is_drawn_with_a_caption(name, command, without_training, tmp_path):
    flags = (CLIENT,) if name == 'fedssd/4' else ()
    assert command(name, '--rounds=2', flags=flags) == 0
    stem = tmp_path / 'runs' / 'figures' / name.replace('/', '_')
    assert {path.suffix for path in stem.parent.glob(f'{stem.name}.*')} == {
        '.png', '.svg', '.csv', '.md'
    }  # fmt: skip
    assert stem.with_suffix('.png').read_bytes()[:4] == b'\x89PNG'
    rows = read_csv(stem.with_suffix('.csv'))
    titles = {panel.title for panel in figures.make(name, 2).panels}
    assert {row['panel'] for row in rows} == titles
    assert all(row['value'] for row in rows)
    text = stem.with_suffix('.md').read_text()
    assert "settings other than the flag file's: --dataset=npz" in text
    assert ("2 of the paper's" in text) == bool(RUNS[name])
    assert ('Versions: python' in text) == bool(RUNS[name])


def test_numbers_in_the_files_are_those_of_the_runs(command, without_training, tmp_path):
    assert command('fedcad/4', '--rounds=3', '--seeds=2', '--methods=fedavg,FedCAD') == 0
    assert [cell.row for cell in without_training] == ['FedAvg'] * 2 + ['FedCAD'] * 2
    rows = read_csv(tmp_path / 'runs/figures/fedcad_4.csv')
    assert len(rows) == 2 * 2 * 3
    for panel, factor in (('global model', 100), ('local models', 50)):
        for name in ('FedAvg', 'FedCAD'):
            cells = [cell for cell in without_training if cell.row == name]
            curve_rows = [row for row in rows if (row['panel'], row['series']) == (panel, name)]
            for t, row in enumerate(curve_rows, 1):
                both = factor * np.array([accuracy(cell, t) for cell in cells])
                assert (row['x'], row['n']) == (str(t), '2')
                np.testing.assert_allclose(float(row['value']), both.mean())
                np.testing.assert_allclose(float(row['sd']), both.std(ddof=1))
    text = (tmp_path / 'runs/figures/fedcad_4.md').read_text()
    assert "3 of the paper's 100 rounds; mean of 2 seeds" in text
    assert 'runs are not done' not in text


def test_figures_and_tables_share_runs(command, without_training, tmp_path):
    from experiments import tables

    assert command('fedlmd/4', '--rounds=2', '--runs=shared', '--methods=FedAvg,FedLMD') == 0
    planned = tables.make_plan(
        tables.find('fedlmd/1'), methods=['FedAvg', 'FedLMD'], output=runner.Path('shared')
    )
    assert {cell.folder for cell in planned.every} == {cell.folder for cell in without_training}


@pytest.fixture(scope='module')
def trained(tmp_path_factory, npz):
    """A folder with figures whose runs were really trained, and the function that makes them."""
    output = tmp_path_factory.mktemp('figures')

    def make(*arguments):
        flags = ('--dataset=npz', f'--npz={npz}', '--alpha=1', '--local_epochs=1', *TINY)
        return figures.main([*arguments, '--rounds=2', f'--output={output}', '--', *flags])

    assert make('fedlmd/2', 'fedlmd/4', '--methods=FedAvg') == 0
    return output, make


@pytest.mark.slow
def test_figures_share_trained_runs(trained, capsys):
    output, make = trained
    (found,) = output.glob('runs/fedlmd/*/*/seed*/summary.json')  # of both figures
    when = found.stat().st_mtime_ns
    metrics = [json.loads(line) for line in (found.parent / 'metrics.jsonl').open()]
    rows = read_csv(output / 'fedlmd_2.csv')
    for panel, key, factor in (
        ("the round's clients", 'cohort_labels', 1),
        ('predictions, FedAvg', 'prediction_share', 100),
    ):
        values = [float(row['value']) for row in rows if row['panel'] == panel]
        wanted = factor * np.array([line[key] for line in metrics]).T.ravel()
        np.testing.assert_allclose(values, wanted)
    assert make('fedlmd/4', '--methods=FedAvg') == 0
    assert found.stat().st_mtime_ns == when
    assert make('fedlmd/4', '--report_only') == 0
    assert '3 of 4 runs are not done and not drawn' in (output / 'fedlmd_4.md').read_text()
    assert {row['series'] for row in read_csv(output / 'fedlmd_4.csv')} == {'FedAvg'}
    capsys.readouterr()
    assert make('fedlmd/4', '--methods=FedAvg,FedNTD', '--dry_run') == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ['done', 'to', 'fedlmd/4:']
    assert lines[-1] == 'fedlmd/4: 1 of 2 runs are done.'


def test_a_figure_without_finished_runs_is_not_drawn(trained, capsys):
    output, make = trained
    assert make('fedlmd/4', '--methods=FedNTD', '--report_only', f'--runs={output}/none') == 1
    assert 'none of its 1 runs is done; nothing is drawn' in capsys.readouterr().err


@pytest.mark.slow
def test_methods_of_the_last_round_start_from_the_same_model(trained):
    output, make = trained
    assert make('fedcad/1', '--methods=FedAvg,FedCAD') == 0
    folders = sorted(output.glob('runs/fedcad/*/*/seed0'))
    runs = [[json.loads(x) for x in (f / 'metrics.jsonl').open()] for f in folders]
    for key in ('test_loss', 'train_loss', 'confusion'):
        assert runs[0][0][key] == runs[1][0][key]
    rows = read_csv(output / 'fedcad_1.csv')
    table = {name: [float(r['value']) for r in rows if r['series'] == name]
             for name in ('data', 'global', 'FedAvg', 'FedCAD')}  # fmt: skip
    np.testing.assert_allclose(sum(table['data']), 1)
    np.testing.assert_allclose(table['global'], runs[0][0]['class_accuracy'], atol=1e-6)
    for name, (_, last) in zip(('FedAvg', 'FedCAD'), runs):
        counts = np.array(last['local_confusion']['0'])
        np.testing.assert_allclose(table[name], counts.diagonal() / counts.sum(axis=1))
        gap = 100 * (last['test_accuracy'] - last['local_accuracy'])
        np.testing.assert_allclose(quantities.gap(last), gap)


def test_failed_runs_are_reported_and_the_others_drawn(
    command, without_training, monkeypatch, tmp_path
):
    whole = runner.run_cells

    def some(cells, *, together=0, **_):
        whole([cell for cell in cells if cell.row != 'FedNTD'])
        return {cell.name: 'too large' for cell in cells if cell.row == 'FedNTD'}

    monkeypatch.setattr(runner, 'run_cells', some)
    assert command('fedlmd/4', '--rounds=2') == 1
    assert '1 of 4 runs are not done' in (tmp_path / 'runs/figures/fedlmd_4.md').read_text()


def test_list_shows_every_figure(capsys):
    assert figures.main(['--list']) == 0
    shown = capsys.readouterr().out
    assert all(f'{name}  ' in shown for name in figures.FIGURES)
    assert '--methods=FedAvg,FedLSD,FedCAD\n' in shown


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([], 'the command needs a figure; name one or more of fedcad/1'),
        (['fedssd/5'], "no figure 'fedssd/5'; there are fedcad/1"),
        (['fedlmd/4', '--nonsense=1'], 'nonsense'),
        (['fedlmd/4', '--seeds=0'], 'seeds'),
        (['fedlmd/4', '--rounds=0'], 'rounds'),
        (['fedlmd/4', '--methods=FedSSD'], '--methods must name some of FedAvg, FedAvg+KD'),
        (['fedlmd/4', '--columns=mnist'], 'some of cifar10_lda0.05, got mnist'),
        (['fedlmd/4', '--methods='], 'FedLMD, got none'),
        (['fedlmd/4', '--output=file'], '--output=file is a file'),
        (['fedlmd/4', '--', 'rounds'], 'rounds after -- must be a flag'),
        (
            ['fedlmd/4', '--', '--rounds=2'],
            '--rounds=2 is a flag of this command',
        ),
        (['fedlmd/2', '--', '--measure=none'], '--measure=none follows from the figure'),
        (['fedlmd/4', '--', '--validation=0.1'], '--validation=0.1 holds out training data'),
        (['fedlmd/4', '--', '--seed=2'], '--seed=2 is set for each run'),
        (['fedlmd/4', '--', '--alpha=0'], '--alpha must be positive, got 0.0'),
        (['fedlmd/4', '--data_dir=absent'], 'absent'),
        (['fedcad/3', '--data_dir=absent'], 'absent'),
        (['fedcad/1', '--rounds=1'], '--rounds must be at least 2, got 1: FedAvg'),
        (['fedcad/1', '--', '--eval_every=5'], '--eval_every=5 must be 1'),
        (
            ['fedcad/1', '--', '--clients_per_round=1'],
            'fedcad/1: --clients_per_round=1 excludes client 0',
        ),
        (
            ['fedcad/1', '--rounds=2', '--', '--clients_per_round=1', '--sampling=fedntd'],
            'fedcad/1: --clients_per_round=1 excludes client 0',
        ),
        (
            ['fedssd/4', '--', '--num_clients=5', '--clients_per_round=5'],
            '--confusion_clients must be from 0 to 4, got 8',
        ),
    ],
)
def test_invalid_input_is_refused_before_the_first_run(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    assert figures.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert error.count('\n') == 1
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_the_caption_counts_runs_with_equal_settings(tmp_path):
    def phrases(*flags):
        made = figures.make_plan(
            'fedssd/9', None, 2, columns=None, methods=['FedAvg'], runs=tmp_path, flags_=flags
        )
        return summarise(made, {})

    assert not any('of another one' in words for words in phrases('--batch_size=7'))
    # Two seeds of E = 1, 10, 20 and 50.
    assert '6 of 8 runs have the settings of another one' in phrases('--local_epochs=3')


def test_a_folder_with_other_settings_is_refused(trained, npz, capsys):
    output, _ = trained
    flags = ('--dataset=npz', f'--npz={npz}', '--alpha=1', '--local_epochs=1', *TINY)
    assert figures.main(['fedlmd/4', '--rounds=3', f'--output={output}', '--', *flags]) == 2
    assert 'holds a run with other settings (--rounds=2, not 3)' in capsys.readouterr().err
