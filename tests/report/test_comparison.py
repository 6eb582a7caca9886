"""The comparison of a page with FedAvg, by seed."""

import itertools
import json

import pytest

from jaxfed.report import grouping, tables
from jaxfed.report.__main__ import find_workdirs, main
from jaxfed.report.comparison import compare
from jaxfed.report.reading import read_run
from jaxfed.report.render import render
from tests.recorded_runs import entry, make_run

OTHER_SETTINGS = {
    '': {},
    'other': {'alpha': 3.0},
    'noisy': {'label_noise': 0.4},
    'users': {'user_column': 'city'},
    'fixed': {'batch_seed': 7},
    'attacked': {'malicious': 0.2},
    'small': {'model': 'lenet'},
}


def groups_of(folder, **accuracies):
    """Groups of runs with these accuracies by seed; a name may end in a key of OTHER_SETTINGS."""
    for name, values in accuracies.items():
        for seed, last in enumerate(values):
            method, _, other = name.partition('_')
            lines = [entry(1, 0.1), entry(2, 0.1), entry(3, last)]
            make_run(
                folder / f'{name}{seed}', lines, method=method, seed=seed, **OTHER_SETTINGS[other]
            )
    return grouping.group([read_run(path) for path in sorted(folder.iterdir())])


def test_differences_are_by_seed(no_pictures, tmp_path):
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
    # 10, 20 and 30 points: s = 10, 4.303 s / sqrt(3); p of t = 2 sqrt(3) is 0.0742, times two
    # comparisons: that of kd counts, too.
    assert rows['fedlmd'] == ['60.00 ± 24.84', '+20.00 ± 24.84', '0.15', '3']
    assert rows['fedavg'] == ['40.00 ± 0.00', '–', '–', '–']
    assert rows['kd'] == ['10.00 ± 0.00', '-30.00 ± 0.00', '–', '3']
    assert rows['moon'] == ['90.00 ± 0.00', '–', '–', '–']  # other clients
    page = render(groups)
    assert 'Compared with fedavg, by seed' in page
    assert '+20.00 ± 24.84' in page


@pytest.mark.parametrize('other', ['fedavg_noisy', 'fedavg_users', 'fedavg_fixed'])
def test_noisy_labels_and_other_users_are_other_data(other, tmp_path):
    groups = groups_of(tmp_path, **{other: (0.4, 0.4)}, fedavg=(0.5, 0.5), fedlmd=(0.7, 0.6))
    differences = [row[1].text for row in compare(groups).table.rows]
    assert [text[:6] for text in differences if text != '–'] == ['+15.00']


def test_every_partition_has_its_own_baseline(no_pictures, tmp_path):
    groups = groups_of(
        tmp_path, fedlmd=(0.5, 0.6), fedavg=(0.4, 0.4), fedlmd_other=(0.9, 0.8),
        fedavg_other=(0.7, 0.5), kd_other=(0.7, 0.6),
    )  # fmt: skip
    comparison = compare(groups)
    assert comparison.baseline == 'fedavg on the same data'
    differences = {
        (group.runs[0].config['method'], group.runs[0].config['alpha']): row[1].text[:6]
        for group, row in zip(groups, comparison.table.rows, strict=True)
    }
    assert sorted(differences.items()) == sorted(
        {
            ('fedlmd', 0.1): '+15.00', ('fedavg', 0.1): '–', ('fedlmd', 3.0): '+25.00',
            ('fedavg', 3.0): '–', ('kd', 3.0): '+5.00 ',
        }.items()
    )  # fmt: skip
    assert 'Compared with fedavg on the same data, by seed' in render(groups)
    label = next(g.label for g in groups if g.label.startswith('kd'))
    chosen = compare(groups, baseline=label)
    assert chosen.baseline == label
    assert sum(row[1].text != '–' for row in chosen.table.rows) == 2


def test_the_baseline_has_the_same_attack_and_network(tmp_path):
    groups = groups_of(
        tmp_path, fedavg=(0.5, 0.5), fedavg_attacked=(0.2, 0.2), fedavg_small=(0.4, 0.4),
        median=(0.5, 0.6), median_attacked=(0.5, 0.6), median_small=(0.5, 0.6),
    )  # fmt: skip
    table = compare(groups).table
    found = {
        group.label: (row[1].text.split()[0], row[-1].text)
        for group, row in zip(groups, table.rows, strict=True)
    }
    assert table.columns[-1] == 'baseline'
    assert found == {
        'fedavg, malicious 0, model cnn': ('–', '–'),
        'fedavg, malicious 0.2, model cnn': ('-30.00', 'fedavg, malicious 0, model cnn'),
        'fedavg, malicious 0, model lenet': ('-10.00', 'fedavg, malicious 0, model cnn'),
        'median, malicious 0, model cnn': ('+5.00', 'fedavg, malicious 0, model cnn'),
        'median, malicious 0.2, model cnn': ('+35.00', 'fedavg, malicious 0.2, model cnn'),
        'median, malicious 0, model lenet': ('+15.00', 'fedavg, malicious 0, model lenet'),
    }
    assert compare(groups, baseline='fedavg').table.rows == table.rows


@pytest.mark.parametrize('method', ['fedavg', 'kd'])
def test_runs_of_one_method_are_compared_with_the_first(method, tmp_path):
    groups = groups_of(
        tmp_path,
        **{method: (0.5, 0.5), f'{method}_attacked': (0.2, 0.2)},
        **{f'{method}_small': (0.4, 0.4)},
    )
    comparison = compare(groups)
    assert comparison.baseline == groups[0].label
    assert sum(row[1].text != '–' for row in comparison.table.rows) == 2


def test_without_fedavg_each_network_has_its_own_baseline(tmp_path):
    groups = groups_of(
        tmp_path, kd=(0.5, 0.5), kd_small=(0.4, 0.4), moon=(0.6, 0.6), moon_small=(0.6, 0.6)
    )
    rows = zip(groups, compare(groups).table.rows, strict=True)
    differences = [row[1].text.split()[0] for group, row in rows if group.label.startswith('moon')]
    assert sorted(differences) == ['+10.00', '+20.00']


def test_p_is_adjusted_for_the_runs_on_the_same_data(tmp_path):
    # 10, 20 and 40 points: t = sqrt(7), p = 1 - sqrt(7) / 3
    one = {'fedlmd': (0.5, 0.6, 0.8), 'fedavg': (0.4, 0.4, 0.4)}
    other = {'fedavg_other': (0.7, 0.5, 0.6), 'kd_other': (0.7, 0.6, 0.7)}

    def p_of_fedlmd(folder, accuracies):
        folder.mkdir()
        groups = groups_of(folder, **accuracies)
        rows = zip(groups, compare(groups).table.rows, strict=True)
        return next(row[2].text for group, row in rows if group.label.startswith('fedlmd'))

    assert p_of_fedlmd(tmp_path / 'a', one) == p_of_fedlmd(tmp_path / 'b', one | other) == '0.12'


def test_without_fedavg_the_first_run_on_the_same_data_is_the_baseline(tmp_path):
    groups = groups_of(
        tmp_path, kd=(0.5, 0.6), moon=(0.4, 0.4), kd_other=(0.9, 0.8), moon_other=(0.7, 0.5)
    )
    comparison = compare(groups)
    assert comparison.baseline == 'kd on the same data'
    assert sum(row[1].text != '–' for row in comparison.table.rows) == 2


def test_runs_of_another_fixed_partition_are_not_compared(no_pictures, tmp_path):
    for partition_seed, rate in itertools.product((1, 2), (0.1, 0.2)):
        for seed in (0, 1):
            folder = tmp_path / f'p{partition_seed}_rate{rate}_{seed}'
            settings = {'partition_seed': partition_seed, 'learning_rate': rate, 'seed': seed}
            make_run(folder, [entry(1, rate + 0.1 * seed)], rounds=1, **settings)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert [group.label for group in groups] == [
        f'fedavg, learning_rate {rate}, partition_seed {i}' for rate in (0.1, 0.2) for i in (1, 2)
    ]
    comparison = compare(groups)
    assert comparison.baseline == 'fedavg on the same data'
    texts = [row[1].text for row in comparison.table.rows]
    assert texts == ['–', '–', '+10.00 ± 0.00', '+10.00 ± 0.00']


def make_series(folder, name, *, last, rounds=3, **settings):
    """Two runs with these last accuracies, one point apart, and 0.1 before; a line a round."""
    for seed in (0, 1):
        lines = [entry(n, 0.1) for n in range(1, rounds)] + [entry(rounds, last + seed / 100)]
        for n in range(1, rounds):
            if n % settings.get('eval_every', 1):
                lines[n - 1] = entry(n, None)
        make_run(folder / f'{name}{seed}', lines, rounds=rounds, seed=seed, **settings)


def cells(groups, table, column):
    """Label -> cell of a column."""
    place = table.columns.index(column)
    return {group.label: row[place] for group, row in zip(groups, table.rows)}


def test_runs_of_other_lengths_are_not_compared(no_pictures, tmp_path):
    make_series(tmp_path, 'a', last=0.5, method='fedavg')
    make_series(tmp_path, 'b', last=0.6, method='fedprox')
    make_series(tmp_path, 'c', last=0.9, method='kd', rounds=4)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    comparison = compare(groups)
    differences = cells(groups, comparison.table, 'difference (points)')
    assert differences['fedprox'].text == '+10.00 ± 0.00'
    assert differences['kd'].text == '–' and comparison.without == ['kd']
    marked = cells(groups, tables.results(groups, None), 'last accuracy (%)')
    assert [label for label, cell in marked.items() if cell.best] == ['fedprox']
    assert 'data, partition and rounds; no baseline has those of kd. p is' in render(groups)


def test_the_best_accuracies_of_other_evaluations_are_not_compared(no_pictures, tmp_path):
    make_series(tmp_path, 'a', last=0.5, method='fedavg')
    make_series(tmp_path, 'b', last=0.5, method='fedavg', eval_every=3)
    make_series(tmp_path, 'c', last=0.6, method='kd', eval_every=3)
    make_series(tmp_path, 'd', last=0.9, method='moon', eval_every=2)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    often, seldom, kd, moon = (group.label for group in groups)
    comparison = compare(groups, score='best')
    assert cells(groups, comparison.table, 'difference (points)')[kd].text == '+10.00 ± 0.00'
    assert cells(groups, comparison.table, 'baseline')[kd].text == seldom
    assert cells(groups, comparison.table, 'difference (points)')[seldom].text == '–'
    assert comparison.without == [moon]
    assert 'rounds and evaluations; no baseline has' in render(groups, score='best')
    results = tables.results(groups, None)
    for column, best in (('best accuracy (%)', [kd]), ('last accuracy (%)', [moon])):
        found = cells(groups, results, column)
        assert [label for label, cell in found.items() if cell.best] == best
    # The last accuracy compares with that of any evaluations, first with that of the same ones.
    last = compare(groups)
    assert last.without == []
    assert cells(groups, last.table, 'baseline')[kd].text == seldom
    assert cells(groups, last.table, 'baseline')[seldom].text == often


def test_a_repeated_seed_replaces_an_unfinished_one(tmp_path):
    for name, seed, rounds in (('a', 0, 3), ('b', 1, 2), ('c', 2, 3), ('d', 1, 3)):
        lines = [entry(n, 0.2 * n) for n in range(1, rounds + 1)]
        make_run(tmp_path / name, lines, seed=seed, ended=rounds == 3)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert [[run.path.name for run in group.runs] for group in groups] == [['a', 'd', 'c'], ['b']]
    assert len(groups[0].counted) == 3


def test_settings_that_the_partition_does_not_read_separate_no_runs(tmp_path):
    for seed, alpha in ((0, 0.1), (1, 0.5)):
        make_run(tmp_path / f'iid{seed}', seed=seed, partition='iid', alpha=alpha)
        make_run(tmp_path / f'own{seed}', seed=seed, partition='dirichlet', alpha=alpha)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert [[run.path.name for run in group.runs] for group in groups] == [
        ['iid0', 'iid1'], ['own0'], ['own1'],
    ]  # fmt: skip


def test_a_whole_number_equals_an_integer(tmp_path):
    make_run(tmp_path / 'a', alpha=1, seed=0)
    make_run(tmp_path / 'b', alpha=1.0, seed=1)
    (group,) = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert grouping.settings(group.runs[0])['alpha'] == '1'
    assert [grouping.shown(value) for value in (1.0, -2.0, 0.5, 1e30, True, None)] == [
        '1', '-2', '0.5', '1e+30', 'true', '–',
    ]  # fmt: skip


@pytest.mark.parametrize(
    'name, changes, warned',
    [
        ('digest', {}, True),
        ('data_digest', {}, True),
        ('digest', {'seed': 1}, False),  # other clients by intention
        ('data_digest', {'malicious': 0.2, 'attack': 'label_flip'}, False),
        ('digest', {'label_noise': 0.1}, False),
    ],
)
def test_changed_data_is_reported(name, changes, warned, no_pictures, tmp_path, capsys):
    for method, digest in (('fedavg', 'a'), ('kd', 'b')):
        folder = tmp_path / method
        make_run(folder, method=method, **(changes if method == 'kd' else {}))
        path = folder / 'partition.json'
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: digest}))
    assert main([str(tmp_path), f'--output={tmp_path}/x.html']) == 0
    words = 'have the same seeds and settings of the data, but other'
    assert (words in ' '.join(capsys.readouterr().err.split())) == warned
    assert (words in (tmp_path / 'x.html').read_text()) == warned


def test_unfinished_runs_may_have_other_clients(tmp_path):
    for method, digest in (('fedavg', 'a'), ('fedcad', 'b')):
        path = make_run(tmp_path / method, method=method, ended=False) / 'partition.json'
        path.write_text(json.dumps(json.loads(path.read_text()) | {'digest': digest}))
    assert grouping.changed_data([read_run(path) for path in tmp_path.iterdir()]) == []


def test_baseline_and_score_are_chosen(tmp_path):
    groups = groups_of(tmp_path, fedlmd=(0.5, 0.6), fedavg=(0.05, 0.4), kd=(0.1, 0.1))
    comparison = compare(groups, baseline='kd', score='best')
    assert comparison.baseline == 'kd'
    assert comparison.table.columns[0] == 'best accuracy (%)'
    row = [cell.text for cell in comparison.table.rows[[g.label for g in groups].index('fedavg')]]
    # best 10 and 40; 0 and 30 above kd: half 12.706 s / sqrt(2) with s = 21.21
    assert row == ['25.00 ± 190.59', '+15.00 ± 190.59', '0.5', '2']
    moving = compare(groups, score='moving').table.rows[[g.label for g in groups].index('kd')]
    assert moving[0].text == '10.00 ± 0.00'
    last10 = compare(groups, score='last10').table
    assert last10.columns[0] == 'mean of the last ten (%)'
    # (10 + 10 + 5) / 3 and (10 + 10 + 40) / 3
    fedavg = last10.rows[[g.label for g in groups].index('fedavg')]
    assert fedavg[0].text == '14.17 ± 74.12'
    best_moving = compare(groups, score='best_moving').table
    assert best_moving.columns[0] == 'best moving average (%)'
    kd = best_moving.rows[[g.label for g in groups].index('kd')]
    assert kd[0].text == '10.00 ± 0.00'
    falling = best_moving.rows[[g.label for g in groups].index('fedavg')]
    # 0.1, 0.1 and 0.05: 10, 10, 8; 0.1, 0.1 and 0.4: 10, 10, 22
    assert falling[0].text == '16.00 ± 76.24'
    for name in ('moon', ''):
        with pytest.raises(ValueError, match=rf'--baseline={name} is no .* from (\w+; )+\w+\.'):
            compare(groups, baseline=name)


def test_personal_accuracies_are_compared(no_pictures, tmp_path):
    for method, values in {'fedavg': (0.5, 0.6), 'fedper': (0.8, 0.7)}.items():
        for seed, value in enumerate(values):
            lines = [entry(1, 0.1, personal_accuracy=0.2), entry(2, 0.1, personal_accuracy=value)]
            folder = tmp_path / f'{method}{seed}'
            make_run(folder, [*lines, entry(3, 0.1)], method=method, seed=seed, personal_test=0.2)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    table = compare(groups, score='personal').table
    assert table.columns[0] == 'personal accuracy (%)'
    # The differences are 30 and 10: half 12.706 s / sqrt(2) with s = 14.14.
    assert [row[1].text for row in table.rows] == ['–', '+20.00 ± 127.06']
    results = tables.results(groups, None)
    place = results.columns.index('personal accuracy (%)')
    cells = [row[place] for row in results.rows]
    assert [(cell.text, cell.best) for cell in cells] == [
        ('55.00 ± 7.07', False),
        ('75.00 ± 7.07', True),
    ]
    assert 'parameters that stay at the clients are untrained' in render(groups)


def test_personal_accuracies_need_runs_that_have_some(no_pictures, tmp_path):
    groups = groups_of(tmp_path, fedlmd=(0.5, 0.6), fedavg=(0.4, 0.4))
    assert 'personal accuracy' not in render(groups)
    with pytest.raises(ValueError, match='--score=personal needs finished runs with --personal'):
        compare(groups, score='personal')


def test_intervals_need_no_second_method(no_pictures, tmp_path):
    groups = groups_of(tmp_path, fedlmd=(0.5, 0.6, 0.7))
    ((mean, *others),) = compare(groups).table.rows
    assert mean.text == '60.00 ± 24.84'
    assert [cell.text for cell in others] == ['–', '–', '–']
    assert 'Over seeds' in render(groups)


def test_the_command_passes_baseline_and_score_on(no_pictures, tmp_path, capsys):
    (tmp_path / 'runs').mkdir()
    groups_of(tmp_path / 'runs', fedlmd=(0.5, 0.6), kd=(0.1, 0.2))
    command = [str(tmp_path / 'runs'), f'--output={tmp_path}/page.html', '--score=best']
    assert main([*command, '--baseline=kd']) == 0
    text = (tmp_path / 'page.html').read_text()
    assert 'Compared with kd, by seed' in text and 'best accuracy (%)' in text
    assert main([*command, '--baseline=moon']) == 2
    assert '--baseline=moon is no method' in capsys.readouterr().err


def test_runs_are_found_at_any_depth(tmp_path):
    folders = [tmp_path / 'digits' / 'iid' / name / '.01' / 'seed0' for name in ('fedavg', 'kd')]
    for folder in folders:
        folder.parent.mkdir(parents=True)
        make_run(folder)
    assert find_workdirs(tmp_path) == folders
    assert find_workdirs(folders[0]) == [folders[0]]
    linked = tmp_path / 'view' / 'digits'
    linked.parent.mkdir()
    linked.symlink_to(tmp_path / 'digits')
    assert len(find_workdirs(linked.parent)) == 2
    (folders[0].parent / 'latest').symlink_to(folders[0])
    assert find_workdirs(tmp_path / 'digits') == folders
    assert find_workdirs(tmp_path / 'nothing') == [tmp_path / 'nothing']


def test_one_seed_has_no_comparison(no_pictures, tmp_path):
    groups = groups_of(tmp_path, fedlmd=(0.5,), fedavg=(0.4,))
    assert compare(groups) is None
    with pytest.raises(ValueError, match='--baseline=fedavg needs runs that differ only in'):
        compare(groups, baseline='fedavg')
    assert 'id="comparison"' not in render(groups)
