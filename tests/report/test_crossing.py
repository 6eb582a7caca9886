"""The table with a row for each method and a column for each data set and partition."""

from jaxfed.report import crossing, grouping
from jaxfed.report.__main__ import main
from jaxfed.report.reading import read_run
from jaxfed.report.render import render
from tests.recorded_runs import entry, make_run


def groups_of(*folders):
    return grouping.group([read_run(folder) for folder in folders])


def texts(crossed):
    return [[cell.text + '!' * cell.best for cell in row] for row in crossed.table.rows]


def last(accuracy):
    return [entry(1, 0.1), entry(3, accuracy)]


def make_grid(folder):
    """Two methods, one with two settings, on two skews and IID clients; one cell is missing."""
    folders = []

    def add(accuracy, **settings):
        folders.append(make_run(folder / f'{len(folders):02}', last(accuracy), **settings))

    for seed, change in ((0, 0.0), (1, 0.2)):
        add(0.3 + change, seed=seed, alpha=0.1)
        add(0.6 + change, seed=seed, alpha=0.5)
    add(0.8, partition='iid')
    add(0.5, method='fedlmd', learning_rate=0.02, alpha=0.1)
    add(0.6, method='fedlmd', learning_rate=0.1, alpha=0.1)
    add(0.7, method='fedlmd', learning_rate=0.1, partition='iid')
    return folders


def test_an_accuracy_is_arranged_by_method_and_partition(no_pictures, tmp_path):
    groups = groups_of(*make_grid(tmp_path))
    crossed = crossing.cross(groups)
    assert crossed.title == 'last accuracy (%)'
    assert crossed.table.columns == ['dirichlet, alpha 0.1', 'dirichlet, alpha 0.5', 'iid']
    assert crossed.labels == [
        'fedavg', 'fedlmd, learning_rate 0.02', 'fedlmd, learning_rate 0.1'
    ]  # fmt: skip
    assert texts(crossed) == [
        ['40.00 ± 14.14', '70.00 ± 14.14', '80.00!'],
        ['50.00', '–', '–'],
        ['60.00!', '–', '70.00'],
    ]
    page = render(groups)
    assert '<section id="data">' in page and 'Last accuracy (%) by data and partition' in page
    assert '<strong>80.00 ★</strong>' in page


def test_numbers_of_several_rounds_compare_after_equal_evaluations(tmp_path):
    folders = make_grid(tmp_path)
    folders.append(make_run(tmp_path / 'rare', last(0.9), method='kd', alpha=0.1, eval_every=2))
    folders.append(
        make_run(tmp_path / 'iid', last(0.9), method='kd', partition='iid', eval_every=2)
    )
    groups = groups_of(*folders)
    assert len(crossing.cross(groups, 'final').table.columns) == 3
    best = crossing.cross(groups, 'best')
    assert best.table.columns[-2:] == ['dirichlet, alpha 0.1, eval_every 2', 'iid, eval_every 2']
    assert best.title == 'best accuracy (%)'


def test_runs_that_are_not_finished_have_no_best_mean(tmp_path):
    folders = [
        make_run(tmp_path / 'a', last(0.5), alpha=0.1),
        make_run(tmp_path / 'b', [entry(2, 0.9)], method='kd', alpha=0.1, ended=False),
        make_run(tmp_path / 'c', last(0.4), method='fedlmd', alpha=0.1),
        make_run(tmp_path / 'd', last(0.6), alpha=0.5),
    ]
    crossed = crossing.cross(groups_of(*folders))
    assert texts(crossed) == [['50.00!', '60.00'], ['90.00 *', '–'], ['40.00', '–']]


def test_networks_and_fixed_seeds_are_columns(tmp_path):
    folders = [
        make_run(tmp_path / f'{method}{i}', last(0.5), method=method, **settings)
        for method in ('fedavg', 'kd')
        for i, settings in enumerate(({'model': 'mlp'}, {'model': 'cnn'}, {'model': 'resnet8'}))
    ]
    crossed = crossing.cross(groups_of(*folders))
    assert (crossed.labels, crossed.table.columns) == (['fedavg', 'kd'], ['mlp', 'cnn', 'resnet8'])
    for name, heads in (
        ('partition_seed', ['partition by seed', 'partition_seed 3']),
        ('batch_seed', ['no fixed seeds', 'fixed seeds batch_seed']),
    ):
        folders = [
            make_run(tmp_path / f'{name}{method}{value}', last(0.5), method=method, **{name: value})
            for method in ('fedavg', 'kd')
            for value in (None, 3)
        ]
        assert crossing.cross(groups_of(*folders)).table.columns == heads


def test_settings_that_are_tuned_for_each_problem_cannot_be_arranged(tmp_path):
    folders = [
        make_run(tmp_path / f'{alpha}', last(0.5), alpha=alpha, learning_rate=alpha / 10)
        for alpha in (0.1, 0.5)
    ]
    assert crossing.cross(groups_of(*folders)) is None


def test_copies_of_a_run_have_rows_of_their_own(tmp_path):
    folders = [
        make_run(tmp_path / name, last(accuracy), alpha=alpha)
        for name, accuracy, alpha in (('a', 0.5, 0.1), ('b', 0.6, 0.1), ('c', 0.7, 0.5))
    ]
    crossed = crossing.cross(groups_of(*folders))
    assert crossed.labels == [f'fedavg ({tmp_path / "a"})', f'fedavg ({tmp_path / "b"})']
    assert texts(crossed) == [['50.00', '70.00'], ['60.00!', '–']]


def test_the_table_for_a_paper(no_pictures, tmp_path, capsys):
    folders = [str(folder) for folder in make_grid(tmp_path)]
    file = f'--latex_by_data={tmp_path}/x.tex'
    assert main([*folders, file]) == 0
    text = (tmp_path / 'x.tex').read_text()
    assert r' & dirichlet, alpha 0.1 & dirichlet, alpha 0.5 & iid \\' in text
    assert r'fedavg & 40.00 $\pm$ 14.14 & 70.00 $\pm$ 14.14 & \textbf{80.00} \\' in text
    spread = 'digits: mean and standard deviation over 1 or 2 seeds.'
    bold = 'Bold: the best of its column among finished runs of the same seeds.'
    assert rf'\caption{{{spread} Numbers: last accuracy (\%). {bold}}}' in text
    assert main([*folders, file, '--score=best_moving']) == 0
    assert r'Numbers: best moving average (\%).' in (tmp_path / 'x.tex').read_text()
    capsys.readouterr()
    assert main([*folders[:2], file]) == 0  # two skews of FedAvg
    assert main([folders[0], f'--latex_by_data={tmp_path}/y.tex']) == 2
    message = capsys.readouterr().err
    assert message.startswith('error: --latex_by_data needs a method with the same settings on two')
    assert not (tmp_path / 'y.tex').exists()
    groups = groups_of(make_run(tmp_path / 'p'), make_run(tmp_path / 'q', method='kd', alpha=1.0))
    assert crossing.cross(groups) is None  # no method has two columns
