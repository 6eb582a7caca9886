"""The comparison of a page with FedAvg, by seed."""

from jaxfed.report import grouping
from jaxfed.report.comparison import compare
from jaxfed.report.reading import read_run
from jaxfed.report.render import render
from tests.recorded_runs import entry, make_run


def groups_of(folder, **accuracies):
    """Groups of runs with these last accuracies by seed; a name may end in '_other_data'."""
    for name, values in accuracies.items():
        for seed, last in enumerate(values):
            method, *other = name.split('_')
            settings = {'alpha': 3.0} if other else {}
            lines = [entry(1, 0.1), entry(2, 0.1), entry(3, last)]
            make_run(folder / f'{name}{seed}', lines, method=method, seed=seed, **settings)
    return grouping.group([read_run(path) for path in sorted(folder.iterdir())])


def test_differences_are_by_seed(tmp_path):
    groups = groups_of(
        tmp_path, fedlmd=(0.5, 0.6, 0.7), fedavg=(0.4, 0.4, 0.4), kd=(0.1, 0.1, 0.1),
        moon_other=(0.9, 0.9, 0.9),
    )  # fmt: skip
    comparison = compare(groups)
    assert comparison.baseline == 'fedavg'
    rows = {
        group.label: [cell.text for cell in row]
        for group, row in zip(groups, comparison.table.rows, strict=True)
    }
    # 10, 20 and 30 points: s = 10, 4.303 s / sqrt(3); p of t = 2 sqrt(3)
    assert rows['fedlmd'] == ['60.00 ± 24.84', '+20.00 ± 24.84', '0.074', '3']
    assert rows['fedavg'] == ['40.00 ± 0.00', '–', '–', '–']
    assert rows['kd'] == ['10.00 ± 0.00', '-30.00 ± 0.00', '–', '3']
    assert rows['moon'] == ['90.00 ± 0.00', '–', '–', '–']  # other clients
    page = render(groups)
    assert 'Compared with fedavg, by seed' in page
    assert '+20.00 ± 24.84' in page


def test_one_seed_has_no_comparison(tmp_path):
    groups = groups_of(tmp_path, fedlmd=(0.5,), fedavg=(0.4,))
    assert compare(groups) is None
    assert 'id="comparison"' not in render(groups)
