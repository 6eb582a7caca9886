"""The report page: its content, invalid input, and that it loads nothing."""

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfed.internal import files
from jaxfed.metrics import measures
from jaxfed.metrics.forgetting import forgetting as forgetting_of
from jaxfed.recording import run_files
from jaxfed.report import figures, grouping, paper, pictures, reading, tables
from jaxfed.report.__main__ import find_workdirs, main, read_runs, table_of_runs
from jaxfed.report.reading import RecordedRun, read_run
from jaxfed.report.render import render
from tests.recorded_runs import entry, make_run

VOID = {'meta', 'img', 'br', 'hr', 'link', 'input'}
LOADING = {'src', 'href', 'xlink:href', 'srcset', 'action', 'data', 'poster', 'formaction'}


class Page(HTMLParser):
    """A page's elements; fails on one that is not closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ('script', 'style'):
            self.text.append(data)

    @property
    def words(self):
        return ' '.join(' '.join(self.text).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Two methods with two seeds each."""
    folder = tmp_path_factory.mktemp('runs')
    for method in ('fedavg', 'fedlmd'):
        for seed, last in ((0, 0.5), (1, 0.7)):
            lines = [entry(1, 0.4), entry(2, None), entry(3, last, update_norm=2.0)]
            lines[-1]['confusion'] = (np.eye(4, dtype=int) * 9 + 1).tolist()
            make_run(folder / f'{method}{seed}', lines, method=method, seed=seed)
    return sorted(folder.iterdir())


@pytest.fixture(scope='module')
def page(runs, tmp_path_factory):
    output = tmp_path_factory.mktemp('page') / 'page.html'
    assert main([*map(str, runs), f'--output={output}', '--target_accuracy=0.6']) == 0
    return output


def test_page_loads_nothing(page):
    text = page.read_text()
    parsed = Page(text)
    for _, attributes in parsed.elements:
        for name, value in attributes.items():
            assert not name.startswith('on')
            if name in LOADING:
                assert value.startswith(('#', 'data:image/png;base64,'))
            assert 'url(' not in (value or '').replace('url(#', '')
    assert not re.search(r'@import|url\((?!#)', text)
    assert not re.search(r'https?://', text)
    policy = next(m['content'] for m in parsed.all('meta') if 'http-equiv' in m)
    assert policy.startswith("default-src 'none';")
    (script,) = re.findall(r'<script>(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy


def test_page_is_accessible(page):
    parsed = Page(page.read_text())
    assert parsed.all('html') == [{'lang': 'en'}]
    assert len(parsed.all('h1')) == 1
    assert len(parsed.all('caption')) == len(parsed.all('table')) > 3
    pictures = [a for a in parsed.all('svg') if 'aria-hidden' not in a]
    assert len(pictures) > 8
    assert all(a['role'] == 'img' and a['aria-label'] for a in pictures)
    names = [a['id'] for _, a in parsed.elements if 'id' in a]
    assert len(names) == len(set(names))
    targets = {a['href'][1:] for a in parsed.all('a')}
    assert targets == {a['id'] for a in parsed.all('section')} <= set(names)
    assert all(a.get('tabindex') == '0' for a in parsed.all('div') if a.get('class') == 'scroll')


def test_seeds_are_mean_and_deviation(page, runs):
    words = Page(page.read_text()).words
    assert words.startswith('4 runs on digits')
    assert words.count('60.00 ± 14.14') == 4  # last and best of two methods
    assert words.count('3 (1 of 2)') == 2  # rounds to 60 %
    assert words.count('-20.00 ± 14.14') == 2  # forgetting
    for title in ('Test accuracy', 'Norm of the clients', 'Forgetting', 'Confusion', 'Partition'):
        assert title in words
    assert 'forward passes +1' in words
    groups = grouping.group([read_run(path) for path in runs])
    assert [group.label for group in groups] == ['fedavg', 'fedlmd']
    curve = grouping.mean_curve(groups[0], lambda run: run.values('test_accuracy'))
    assert curve.rounds.tolist() == [1, 3]
    np.testing.assert_allclose(curve.mean, [0.4, 0.6])
    np.testing.assert_allclose(curve.deviation, [0, np.std([0.5, 0.7], ddof=1)])


def test_differing_settings_are_tabulated(tmp_path):
    make_run(tmp_path / 'a', method='fedlmd', alpha=0.1)
    make_run(tmp_path / 'b', method='fedlmd', alpha=0.5)
    make_run(tmp_path / 'c', method='fedprox', alpha=0.5)
    # The same run again is no second sample, whatever it recorded.
    make_run(tmp_path / 'd', method='fedprox', alpha=0.5, csv=True, checkpoint_every=3, keep=1)
    runs_ = [read_run(path) for path in sorted(tmp_path.iterdir())]
    groups = grouping.group(runs_)
    assert [len(group.runs) for group in groups] == [1] * 4
    assert [group.label for group in groups[:2]] == ['fedlmd, alpha 0.1', 'fedlmd, alpha 0.5']
    assert groups[2].label == f'fedprox ({tmp_path / "c"})'
    table = tables.differing_settings(groups)
    assert table.columns == ['method', 'alpha', 'hyper-parameters']
    assert [cell.text for cell in table.rows[0]] == [
        'fedlmd', '0.1', 'fedlmd.beta=1, fedlmd.tau=1',
    ]  # fmt: skip
    assert 'alpha' not in grouping.equal(groups)
    assert grouping.equal(groups)['batch_size'] == '50'


def test_forgetting_follows_from_class_accuracies(tmp_path):
    history = np.array([[0.1, 0.9], [0.4, 0.2], [0.3, 0.5]])
    lines = [entry(r, 0.5, class_accuracy=row) for r, row in enumerate(history.tolist(), 1)]
    run = read_run(make_run(tmp_path / 'a', lines))
    found = run.forgetting
    np.testing.assert_allclose(found[3], ((0.4 - 0.3) + (0.9 - 0.5)) / 2)
    np.testing.assert_allclose(found[2], forgetting_of(history[:2]))
    assert found[1] == 0
    # Classes without test examples count in neither the mean nor the number.
    part = tmp_path / 'a' / 'partition.json'
    run_files.write_partition(part, np.ones((3, 2), int), {}, np.array([7, 0]))
    np.testing.assert_allclose(read_run(tmp_path / 'a').forgetting[3], 0.4 - 0.3)
    recorded = [entry(1, 0.5, forgetting=0.25)]
    assert read_run(make_run(tmp_path / 'b', recorded)).forgetting == {1: 0.25}


def test_forgetting_is_computed_once_a_run(no_pictures, runs, tmp_path, monkeypatch):
    computed = []

    def counted(run, computed_by=reading.forgetting):
        computed.append(run.path)
        return computed_by(run)

    monkeypatch.setattr(reading, 'forgetting', counted)
    files = [f'--output={tmp_path}/page.html', f'--csv={tmp_path}/table.csv']
    assert main([*map(str, runs), *files]) == 0
    assert computed == runs


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20)
def test_forgetting_of_every_round_is_that_of_the_history_so_far(rounds, classes, seed):
    history = np.random.default_rng(seed).random((rounds, classes))
    lines = [entry(r, 0.5, class_accuracy=row) for r, row in enumerate(history.tolist(), 1)]
    found = reading.forgetting(RecordedRun(Path(), {}, lines, None, None, None, None, {}))
    expected = [forgetting_of(history[: t + 1]) for t in range(rounds)]
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-12)


@pytest.fixture(scope='module')
def partial(tmp_path_factory):
    """A group with two finished seeds, a diverged and a running one; and one with none finished."""
    folder = tmp_path_factory.mktemp('partial')
    failed = dict.fromkeys(('test_accuracy', 'test_loss', 'class_accuracy', 'train_loss'))
    diverged = [entry(1, 0.1), {**entry(2, 0.1), **failed, 'failed': True}]
    for seed, last in ((0, 0.6), (1, 0.8)):
        make_run(folder / str(seed), [entry(1, 0.4), entry(2, 0.5), entry(3, last)], seed=seed)
    make_run(folder / '2', diverged, seed=2)
    make_run(folder / '3', [entry(1, 0.1), entry(2, 0.2)], seed=3, ended=False)
    make_run(folder / '4', diverged, seed=0, alpha=2.0)
    make_run(folder / '5', [entry(1, 0.3)], seed=1, alpha=2.0, ended=False)
    return grouping.group([read_run(path) for path in sorted(folder.iterdir())])


def test_means_use_finished_seeds(partial):
    table = tables.results(partial, 0.7)
    some, none = (
        dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows
    )
    assert some['last accuracy (%)'] == '70.00 ± 14.14'
    assert some['rounds to target'] == '3 (1 of 2)'
    assert some['seeds'] == '2 of 4'
    others = 'seed 2: diverged in round 2; seed 3: unfinished, 2 of 3 rounds'
    assert some['state'] == f'mean of 2 of 4 seeds; {others}'
    # Without a finished run the unfinished ones count, with a mark.
    assert none['last accuracy (%)'] == '20.00 ± 14.14 *'
    assert none['rounds to target'] == 'not reached *'
    assert none['seeds'] == '2'
    assert none['state'] == 'seed 0: diverged in round 2; seed 1: unfinished, 1 of 3 rounds'
    _, classes, _ = figures.classes(partial)
    assert [row[0].text for row in classes.rows] == ['70.0 ± 14.1', '20.0 ± 14.1']


def test_curves_average_the_seeds_that_have_the_round(partial):
    drawn = grouping.mean_curve(partial[0], lambda run: run.values('test_accuracy'))
    assert drawn.rounds.tolist() == [1, 2, 3]
    np.testing.assert_allclose(drawn.mean, [0.25, 0.4, 0.7])
    expected = [np.std(each, ddof=1) for each in ([0.4, 0.4, 0.1, 0.1], [0.5, 0.5, 0.2])]
    np.testing.assert_allclose(drawn.deviation, [*expected, np.std([0.6, 0.8], ddof=1)])
    rounds, accuracy = grouping.class_accuracy(partial[0])
    assert rounds.tolist() == [1, 2, 3]
    np.testing.assert_allclose(accuracy[:, 0], drawn.mean)
    assert grouping.seeds_by_round(partial[0]) == '4 seeds, 3 after round 1, 2 after round 2'
    alone = partial[0]._replace(runs=(partial[0].runs[0], partial[0].runs[3]))
    drawn = grouping.mean_curve(alone, lambda run: run.values('test_accuracy'))
    assert drawn.mean[-1] == 0.6 and np.isnan(drawn.deviation).tolist() == [False, False, True]
    words = Page(render(partial)).words
    assert '(4 seeds, 3 after round 1, 2 after round 2)' in words and '(2 of 4 seeds)' in words
    assert 'excluded from the means' in words and '* No seed is finished' in words


@pytest.mark.slow
def test_a_note_states_that_styles_repeat(page, partial, monkeypatch):
    lines = [tuple(pictures.line(i).values()) for i in range(pictures.LINES + 1)]
    assert len(set(lines)) == pictures.LINES and lines[-1] == lines[0]
    dots = [pictures.marker(i) for i in range(pictures.DOTS + 1)]
    assert len(set(dots)) == pictures.DOTS and dots[-1] == dots[0]
    assert 'and shapes repeat' not in page.read_text()
    monkeypatch.setattr(pictures, 'LINES', 1)
    words = Page(render(partial)).words
    assert words.count('After 1 curves the colours and shapes repeat') == 1


def test_unfinished_and_failed_runs_are_shown(no_pictures, tmp_path):
    failed = dict.fromkeys(('test_accuracy', 'test_loss', 'class_accuracy', 'train_loss'))
    lines = [entry(1, 0.3), {**entry(2, 0.1), **failed, 'failed': True}]
    make_run(tmp_path / 'failed', lines, alpha=0.2)
    make_run(tmp_path / 'stopped', lines[:1], ended=False, alpha=0.3)
    make_run(tmp_path / 'new', [], ended=False, counts=False, alpha=0.4)
    (tmp_path / 'new' / 'metrics.jsonl').unlink()
    make_run(tmp_path / 'old', ended=False, alpha=0.5)
    output = tmp_path / 'page.html'
    names = ('failed', 'stopped', 'new', 'old')
    assert main([*(str(tmp_path / name) for name in names), f'--output={output}']) == 0
    words = Page(output.read_text()).words
    for state in ('diverged in round 2', 'unfinished, 1 of 3 rounds', 'unfinished, 0 of 3 rounds'):
        assert words.count(state) == 2
    assert 'all rounds, no summary' in words
    # A single run, and a run without a round, have a page.
    assert main([str(tmp_path / 'new'), f'--output={output}']) == 0
    assert 'Curves' not in Page(output.read_text()).words


def test_a_run_that_stopped_early_is_unfinished(no_pictures, tmp_path):
    make_run(tmp_path / 'whole', method='fedlmd')
    for seed, last in ((0, 0.9), (1, 0.7)):
        folder = make_run(tmp_path / f'early{seed}', [entry(1, last)], seed=seed, alpha=2.0)
        summary = json.loads((folder / 'summary.json').read_text())
        summary |= {'stopped_early': True, 'experiments': 8}
        files.write_json(folder / 'summary.json', summary)
    names = sorted(map(str, tmp_path.iterdir()))
    table = tmp_path / 'table.csv'
    assert main([*names, f'--output={tmp_path}/page.html', f'--csv={table}']) == 0
    words = Page((tmp_path / 'page.html').read_text()).words
    assert words.count('stopped early, 1 of 3 rounds') == 3  # in results, and each directory
    assert '80.00 ± 14.14 *' in words and 'No seed is finished' in words
    assert '1 MiB for 8 runs at once' in words
    states = {row['label']: row['state'] for row in csv.DictReader(table.read_text().splitlines())}
    assert states == {'fedavg': 'stopped early, 1 of 3 rounds', 'fedlmd': 'finished'}
    # Next to a seed with all rounds it is in no mean.
    make_run(tmp_path / 'other', seed=2, alpha=2.0)
    groups = grouping.group([read_run(tmp_path / n) for n in ('early0', 'early1', 'other')])
    assert [run.config['seed'] for run in groups[0].counted] == [2]
    assert 'seed 0: stopped early, 1 of 3 rounds' in grouping.state(groups[0])
    summary['stopped_early'] = 1
    files.write_json(tmp_path / 'early1' / 'summary.json', summary)
    with pytest.raises(ValueError, match='"stopped_early" is neither true nor false'):
        read_run(tmp_path / 'early1')


@pytest.mark.parametrize(
    'bad', ['<script>alert(1)</script>', '=cmd|calc!A0', '\x1b[2J\x1b]0;owned\x07\r\n', '$\\frac{$']
)
def test_every_string_is_inert_in_page_csv_and_terminal(bad, tmp_path, capsys):
    folder = tmp_path / re.sub(r'[/\x00-\x1f]', '', bad)
    image = '"><img src=x onerror=alert(1)>'
    line = {**entry(1, 0.5), bad: 1.0, image: 2}
    make_run(tmp_path / 'run', [line], method=bad, seed=0).rename(folder)
    config = json.loads((folder / 'config.json').read_text())
    config |= {'dataset': image, image: bad, 'versions': {bad: image}, 'model': "';alert(1)//"}
    config['device'] = {'kind': bad, 'count': bad, 'cpu_cores': bad}
    config['method_parts'] = [{'name': bad, 'hyperparameters': {bad: image}, 'phase': 0}]
    (folder / 'config.json').write_text(json.dumps(config))
    lines = [line, {**line, 'round': 2, 'update_norm': 3.0, bad: 2.0}]
    make_run(tmp_path / '{{ 7 * 7 }}', lines, method='{{ 7 * 7 }}', ended=False)
    with (tmp_path / '{{ 7 * 7 }}' / 'metrics.jsonl').open('a') as file:
        file.write('{"rou')  # for a warning
    with_summary(folder, method=bad, dataset=image, **{bad: bad}, trackers_failed={bad: bad})
    output, table = tmp_path / 'page.html', tmp_path / 'table.csv'
    names = str(folder), str(tmp_path / '{{ 7 * 7 }}')
    assert main([*names, f'--output={output}', f'--csv={table}']) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, table.read_text()):
        assert all(c.isprintable() or c == '\n' for c in text)
    assert shown.err.count('\n') == 1
    for row in csv.reader(table.open()):
        assert not any(cell.startswith(('=', '+', '@', '\t', '\r')) for cell in row)
    parsed = Page(output.read_text())
    assert len(parsed.all('script')) == 1
    assert not parsed.all('img')
    assert not [a for _, a in parsed.elements if any(name.startswith('on') for name in a)]
    for text in (bad, image, '{{ 7 * 7 }}'):
        assert ' '.join(text.split()) in parsed.words


def test_the_picture_of_a_partition_is_embedded_without_counts(tmp_path):
    from PIL import Image

    make_run(tmp_path / 'a', counts=False)
    Image.new('RGB', (3, 2)).save(tmp_path / 'a' / 'partition.png')
    output = tmp_path / 'page.html'
    assert main([str(tmp_path / 'a'), f'--output={output}']) == 0
    (image,) = Page(output.read_text()).all('img')
    data = image['src'].removeprefix('data:image/png;base64,')
    assert base64.b64decode(data) == (tmp_path / 'a' / 'partition.png').read_bytes()
    assert image['alt']


def with_summary(folder, **fields):
    summary = json.loads((folder / 'summary.json').read_text())
    files.write_json(folder / 'summary.json', summary | fields)
    return folder


def test_sweeps_and_folders_of_runs_are_read_as_their_runs(no_pictures, tmp_path, capsys):
    runs_ = tmp_path / 'runs'
    make_run(runs_ / 'alone', method='fedlmd')
    sweep = [make_run(runs_ / 'sweep' / f'seed{seed}', seed=seed) for seed in (0, 1)]
    (runs_ / 'sweep' / 'sweep.csv').write_text('')
    (runs_ / 'sweep' / '.together' / 'x').mkdir(parents=True)
    output = f'--output={tmp_path}/page.html'
    for folders in ([runs_ / 'alone', runs_ / 'sweep'], [runs_]):
        assert main([*map(str, folders), output]) == 0
        assert re.fullmatch(r'\S+\.html: \d runs?\n', capsys.readouterr().out)
        words = Page((tmp_path / 'page.html').read_text()).words
        assert words.startswith('3 runs on digits') and str(sweep[1]) in words
    assert main([str(runs_ / 'sweep'), str(sweep[0]), output]) == 2
    assert 'is in two of the named folders' in capsys.readouterr().err
    (tmp_path / 'empty').mkdir()
    assert main([str(tmp_path / 'empty'), output]) == 2
    assert 'neither it nor a folder in it has a config.json' in capsys.readouterr().err


def test_the_header_has_the_important_settings(no_pictures, tmp_path):
    for seed in range(8):
        make_run(tmp_path / str(seed), seed=seed, alpha=0.5)
    make_run(tmp_path / 'x', method='fedlmd', partition='sharding', num_clients=10, batch_size=8)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert dict(grouping.header(groups).values()) == {
        'method': 'fedavg, fedlmd', 'dataset': 'digits', 'partition': 'dirichlet, sharding',
        'alpha': '0.5', 'min size': '10', 'balanced': 'false', 'shards per client': '2',
        'clients': '20, 10', 'clients a round': '5', 'rounds': '3', 'local epochs': '5',
        'batch size': '50, 8', 'learning rate': '0.01', 'seeds': '0, 1, 2, … 7 (8 values)',
    }  # fmt: skip
    words = Page(render(groups)).words
    assert 'clients a round 5' in words and 'further settings, equal in all runs' in words


def test_constant_numbers_have_no_curve(no_pictures, tmp_path):
    lines = [entry(r, 0.2 * r, clients=5, update_norm=2.0) for r in (1, 2, 3)]
    make_run(tmp_path / 'a', lines)
    make_run(tmp_path / 'b', [{**line, 'update_norm': 2.5} for line in lines], alpha=1.0)
    groups = grouping.group([read_run(tmp_path / name) for name in 'ab'])
    curves = figures.curves(groups)
    titles = [picture.caption for picture in (*curves.main, *curves.further)]
    assert 'Test accuracy' in titles and "Norm of the clients' updates" in titles
    assert curves.constant == {
        'Clients whose update arrived': '5', 'Learning rate': '0.01', 'Seconds a round': '0.5',
    }  # fmt: skip
    assert not set(titles) & set(curves.constant)
    assert 'Clients whose update arrived = 5' in Page(render(groups)).words
    # One round alone is no constant.
    make_run(tmp_path / 'c', lines[:1], rounds=1)
    assert figures.curves(grouping.group([read_run(tmp_path / 'c')])).constant == {}


def test_bars_and_bands_end_at_0_and_100_percent(monkeypatch):
    drawn = {}

    def errorbar(self, x, y, ends, inner=pictures.Axes.errorbar, **keywords):
        drawn['bars'] = ends
        return inner(self, x, y, ends, **keywords)

    def fill_between(self, x, low, high, inner=pictures.Axes.fill_between, **keywords):
        drawn['band'] = low, high
        return inner(self, x, low, high, **keywords)

    monkeypatch.setattr(pictures.Axes, 'errorbar', errorbar)
    monkeypatch.setattr(pictures.Axes, 'fill_between', fill_between)
    mean, deviation = np.array([0.1, 0.5, 0.9]), np.array([0.3, 0.2, 0.3])
    pictures.draw_classes([(0, mean, deviation)], 'classes')
    np.testing.assert_allclose(drawn['bars'], [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    curve = grouping.MeanCurve(np.arange(3), mean, deviation)
    pictures.draw_curves([(0, curve)], 'curve', percent=True, bounded=True)
    np.testing.assert_allclose(drawn['band'], [[0, 0.3, 0.6], [0.4, 0.7, 1]])
    pictures.draw_curves([(0, curve)], 'curve', percent=True)
    np.testing.assert_allclose(drawn['band'], [[-0.2, 0.3, 0.6], [0.4, 0.7, 1.2]])


def best_cells(groups, target=None):
    table = tables.results(groups, target)
    marked = [
        (group.label, column)
        for group, row in zip(groups, table.rows, strict=True)
        for column, cell in zip(table.columns, row, strict=True)
        if cell.best
    ]
    return sorted(marked)


def test_a_folder_may_hold_a_run_and_others(tmp_path):
    for name, seed in (('one', 0), ('one/two', 1), ('one/more/three', 2)):
        make_run(tmp_path / name, seed=seed)
    found = find_workdirs(tmp_path / 'one')
    assert found == [tmp_path / name for name in ('one', 'one/more/three', 'one/two')]
    (tmp_path / 'one' / 'export').mkdir()
    (tmp_path / 'one' / 'export' / 'config.json').write_text('{"model_type": "bert"}')
    assert find_workdirs(tmp_path / 'one') == found
    with pytest.raises(ValueError, match=r'two is in two of the named folders'):
        read_runs([tmp_path / 'one', tmp_path / 'one' / 'two'])


def test_means_that_print_the_same_have_no_mark(no_pictures, tmp_path):
    for method, last in (('fedavg', 0.6), ('fedlmd', 0.60001)):
        make_run(tmp_path / method, [entry(1, 0.1), entry(3, last)], method=method)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert not [column for _, column in best_cells(groups) if 'accuracy' in column]


def test_runs_with_other_numbers_of_classes_have_no_mean_of_a_class(tmp_path):
    for seed, number in ((0, 2), (1, 3)):
        lines = [entry(r, 0.5, class_accuracy=[0.5] * number) for r in (1, 2, 3)]
        make_run(tmp_path / str(seed), lines, seed=seed, counts=False)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert figures.classes(groups) == (None, None, [])


def test_best_means_are_marked(no_pictures, tmp_path):
    for seed, last in ((0, 0.6), (1, 0.8)):
        make_run(tmp_path / f'a{seed}', [entry(1, 0.1), entry(3, last)], seed=seed)
        make_run(tmp_path / f'b{seed}', [entry(1, 0.9), entry(3, 0.5)], seed=seed, method='fedlmd')
    make_run(tmp_path / 'unfinished', [entry(1, 0.95)], method='fedprox', ended=False)
    make_run(tmp_path / 'other', [entry(1, 0.99), entry(3, 0.99)], alpha=5.0, method='fedntd')
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    expected = [
        ('fedavg', 'forgetting (%)'), ('fedavg', 'last accuracy (%)'),
        ('fedlmd', 'best accuracy (%)'), ('fedlmd', 'moving average (%)'),
    ]  # fmt: skip
    assert best_cells(groups) == expected
    # FedAvg reaches 0.7 with one of two seeds, so its rounds do not compare.
    assert best_cells(groups, 0.7) == expected
    assert ('fedlmd', 'rounds to target') in best_cells(groups, 0.55)
    text = render(groups)
    assert '<strong>70.00 ± 14.14 ★</strong>' in text and 'The best mean of its column' in text
    assert '★' not in render(groups[:1])


def test_means_over_other_seeds_have_no_mark(no_pictures, tmp_path):
    for seed, last in enumerate((0.5, 0.6, 0.7)):
        make_run(tmp_path / f'a{seed}', [entry(1, 0.1), entry(3, last)], seed=seed)
        lines = [entry(1, 0.1), entry(3, last - 0.01, failed=not seed)]
        make_run(tmp_path / f'b{seed}', lines, seed=seed, method='fedlmd')
        if seed:  # worse than FedAvg with each of its seeds
            lines = [entry(1, 0.1), entry(3, last - 0.02)]
            make_run(tmp_path / f'c{seed}', lines, seed=seed, method='kd')
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    cells = {group.label: row[0] for group, row in zip(groups, tables.results(groups, None).rows)}
    assert [cells[name].text[:5] for name in ('fedavg', 'fedlmd', 'kd')] == [
        '60.00',
        '64.00',
        '63.00',
    ]
    assert not best_cells(groups)


def test_a_mean_over_some_of_the_runs_says_so(no_pictures, tmp_path):
    for seed, value in ((0, 0.5), (1, None)):
        lines = [entry(1, 0.1), entry(3, 0.6, personal_accuracy=value)]
        make_run(tmp_path / str(seed), lines, seed=seed)
    (group,) = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    cell = tables.group_cell(group, RecordedRun.personal_accuracy, tables.percent)
    assert (cell.text, cell.key) == ('50.00 (1 of 2)', 0.5)
    assert not tables.mark_best({0: cell, 1: tables.Cell('40.00', 0.4)})[0].best


def test_rounds_to_different_targets_are_not_compared(no_pictures, tmp_path):
    lines = [entry(1, 0.4), entry(2, 0.6), entry(3, 0.9)]
    for name, target in (('a', 0.5), ('b', 0.8), ('c', None)):
        make_run(tmp_path / name, lines, method=f'fed{name}', target_accuracy=target)
    groups = grouping.group([read_run(tmp_path / name) for name in 'abc'])
    for several, chosen, column in (
        (groups, None, False),
        (groups, 0.8, True),
        (groups[:1], None, True),
    ):
        page = render(several, target=chosen)
        assert ('>rounds to target' in page) == column
        assert ('have different targets' in page) != column
    rows = tables.results(groups, 0.8)
    assert {row[rows.columns.index('rounds to target')].text for row in rows.rows} == {'3'}
    for several, chosen, expected in (
        (groups, None, ['', '', '']), (groups, 0.5, ['2', '2', '2']),
        (groups[1:], None, ['3', '3']),  # one has no target
    ):  # fmt: skip
        table = csv.DictReader(table_of_runs(several, chosen).splitlines())
        assert [row['rounds_to_target'] for row in table] == expected


def test_runs_with_a_fixed_part_of_the_randomness_are_other_groups(no_pictures, tmp_path):
    for seed in range(3):
        make_run(tmp_path / f'free{seed}', [entry(1, 0.5)], seed=seed)
        make_run(tmp_path / f'batch{seed}', [entry(1, 0.5)], batch_seed=seed)
        make_run(tmp_path / f'dealt{seed}', [entry(1, 0.5)], seed=seed, partition_seed=0)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert {group.label: len(group.runs) for group in groups} == {
        'fedavg, fixed seeds batch_seed': 3, 'fedavg, fixed seeds partition_seed': 3,
        'fedavg, fixed seeds –': 3,
    }  # fmt: skip


def test_runs_on_the_same_fixed_partition_are_a_group(no_pictures, tmp_path):
    for seed in range(3):
        for dealt in range(2):
            path = tmp_path / f'{dealt}{seed}'
            make_run(path, [entry(1, 0.5)], seed=seed, partition_seed=dealt)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert [len(group.runs) for group in groups] == [3, 3]
    groups = grouping.group([read_run(tmp_path / name) for name in ('00', '11')])
    assert [len(group.runs) for group in groups] == [2]  # each has its own partition


def test_times_of_a_shared_program_have_no_deviation(no_pictures, tmp_path):
    for seed, seconds in ((0, 10.0), (1, 20.0)):
        folder = make_run(tmp_path / f'a{seed}', seed=seed)
        with_summary(folder, seconds_total=seconds, compile_seconds=seconds)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    time = tables.results(groups, None).columns.index('time')
    assert '± 7.07' in tables.results(groups, None).rows[0][time].text
    assert '†' not in render(groups)
    for folder in tmp_path.iterdir():
        with_summary(folder, experiments=2)
    groups = grouping.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    cell = tables.results(groups, None).rows[0][time]
    assert (cell.text, cell.key) == ('15.0 s †', 15)
    costs = tables.costs(groups)
    assert costs.rows[0][costs.columns.index('compilation')].text == '15.0 s †'
    assert Page(render(groups)).words.count('† Runs shared a program') == 2


def test_results_for_a_paper(no_pictures, partial, tmp_path, capsys):
    text = paper.latex_table(partial, 0.7)
    header, row, other = (line for line in text.splitlines() if line.endswith(r'\\'))
    assert header == (
        r' & last accuracy (\%) & best accuracy (\%) & moving average (\%) & rounds to target'
        r' & forgetting (\%) \\'
    )
    assert row.startswith(r'fedavg, alpha 0.1 & 70.00 $\pm$ 14.14 & 70.00 $\pm$ 14.14 & ')
    assert r' & 3 (1 of 2) & ' in row and r' & 20.00 $\pm$ 14.14 * & ' in other
    states = 'fedavg, alpha 0.1: mean of 2 of 4 seeds; seed 2: diverged in round 2; seed 3'
    spread = r'\caption{digits: mean and standard deviation over 2 seeds. Target: 70 \%.'
    assert f'{spread} {states}' in text
    for name, method, last in (('a_b', 'fedavg', 0.6), ('c', 'fedlmd_tf', 0.9)):
        make_run(tmp_path / name, [entry(1, 0.1), entry(3, last)], method=method)
    folders = [str(tmp_path / name) for name in ('a_b', 'c')]
    files = [f'--{flag}={tmp_path}/x{suffix}' for flag, suffix in
             (('output', '.html'), ('latex', '.tex'), ('figure', '.pdf'))]  # fmt: skip
    assert main([*folders, *files]) == 0
    text = (tmp_path / 'x.tex').read_text()
    assert r'\caption{digits: one seed.}' in text and r'fedlmd\_tf & \textbf{90.00} &' in text
    assert (tmp_path / 'x.pdf').read_bytes().startswith(b'%PDF')
    make_run(tmp_path / 'v', [entry(3, 0.6)], method='fedavg', validation=0.1)
    held_out = 'are on held-out training examples.}'
    assert main([*folders, str(tmp_path / 'v'), *files]) == 0
    whose = 'Accuracies of runs with validation above 0'
    assert f'partition, rounds and seeds. {whose} {held_out}' in (tmp_path / 'x.tex').read_text()
    (tmp_path / 'x.html').unlink()
    assert main([str(tmp_path / 'v'), *files[1:]]) == 0
    assert not (tmp_path / 'x.html').exists()
    assert f'one seed. Accuracies {held_out}' in (tmp_path / 'x.tex').read_text()
    make_run(tmp_path / 'short', [entry(2, 0.95)], method='fedavg', rounds=2)
    assert main([*folders, str(tmp_path / 'short'), *files]) == 0
    text = (tmp_path / 'x.tex').read_text()
    assert r'\textbf{90.00} &' in text and r'\textbf{95.00}' not in text
    assert 'Bold: the best of its column among finished runs with the same data' in text
    for suffix, start in (('.svg', b'<?xml'), ('.png', b'\x89PNG')):
        assert main([*folders, files[0], f'--figure={tmp_path}/x{suffix}']) == 0
        assert (tmp_path / f'x{suffix}').read_bytes().startswith(start)
    make_run(tmp_path / '$x^$', [entry(3, 0.6)])  # wrong mathematics
    assert main([*folders, str(tmp_path / '$x^$'), files[0], f'--figure={tmp_path}/x.svg']) == 0
    make_run(tmp_path / 'none', [entry(1, None)], ended=False)
    capsys.readouterr()
    assert main([f'{tmp_path}/none', files[0], f'--figure={tmp_path}/none.svg']) == 2
    assert 'none.svg cannot be drawn: no run was evaluated.' in capsys.readouterr().err
    assert not (tmp_path / 'none.svg').exists()


def test_results_as_csv(no_pictures, runs, tmp_path):
    output, table = tmp_path / 'page.html', tmp_path / 'table.csv'
    assert main([*map(str, runs), f'--output={output}', f'--csv={table}']) == 0
    assert main([str(runs[0]), f'--csv={table}']) == 0  # which replaces its own file
    assert len(list(csv.DictReader(table.open()))) == 1
    table.write_text('label,workdir,of,an,earlier,version\n')
    assert main([*map(str, runs), f'--csv={table}']) == 0
    rows = list(csv.DictReader(table.open()))
    assert [row['label'] for row in rows] == ['fedavg'] * 2 + ['fedlmd'] * 2
    assert [float(row['last_accuracy']) for row in rows] == [0.5, 0.7] * 2
    # 0.4, a round without evaluation, and 0.5 or 0.7
    assert [float(row['last10_accuracy']) for row in rows] == pytest.approx([0.45, 0.55] * 2)
    assert all(float(row['moving_accuracy']) <= float(row['best_accuracy']) for row in rows)
    assert {row['best_round'] for row in rows} == {'3'}
    assert {row['rounds_to_target'] for row in rows} == {''}
    assert {row['personal_accuracy'] for row in rows} == {''}


def test_tables_draw_no_picture_and_need_a_baseline_that_exists(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, '_svg', None)  # drawing fails
    arguments = [*map(str, runs), f'--csv={tmp_path}/x.csv', f'--latex={tmp_path}/x.tex']
    assert main([*arguments, '--baseline=none']) == 2
    assert not list(tmp_path.iterdir())
    assert main(arguments) == 0
    assert {path.name for path in tmp_path.iterdir()} == {'x.csv', 'x.tex'}


def test_an_incomplete_line_is_skipped_with_a_warning(no_pictures, tmp_path, capsys):
    folder = make_run(tmp_path / 'a', ended=False)
    metrics = folder / 'metrics.jsonl'
    metrics.write_text(metrics.read_text()[:-20])
    output = tmp_path / 'page.html'
    assert main([str(folder), f'--output={output}']) == 0
    warning = f'{metrics}: line 3 is incomplete; the report skips it'
    assert f'warning: {warning}' in capsys.readouterr().err
    words = Page(output.read_text()).words
    assert warning in words and 'unfinished, 2 of 3 rounds' in words
    # Only the end of the line is missing, so no data is.
    metrics.write_text(''.join(json.dumps(entry(r, 0.5)) + '\n' for r in (1, 2))[:-1])
    assert read_run(folder).rounds == 2


def test_a_measure_may_be_undefined_for_a_class(tmp_path, monkeypatch):
    field = 'class_precision'
    precision = measures.Measure('Precision.', arrays=(field,), by_class=(field,))
    monkeypatch.setitem(measures.MEASURES, 'precision', precision)
    lines = [entry(1, 0.2, class_precision=[None, None, 0.5, None])]
    assert read_run(make_run(tmp_path / 'a', lines, rounds=1)).metrics == lines
    for name, values in (
        (field, [None, 'x', 0.5, None]),
        ('class_accuracy', [None, 0.1, 0.5, 0.2]),
    ):
        folder = make_run(tmp_path / name, [entry(1, 0.2) | {name: values}], rounds=1)
        with pytest.raises(ValueError, match=f'line 1: "{name}" is not a list of numbers'):
            read_run(folder)


def replace_line(number, text):
    def change(folder):
        path = folder / 'metrics.jsonl'
        lines = path.read_text().splitlines()
        lines[number - 1] = text
        path.write_text('\n'.join(lines) + '\n')

    return change


def rewrite(name, text):
    return lambda folder: (folder / name).write_bytes(text)


@pytest.mark.parametrize(
    'change, name, message',
    [
        (lambda folder: (folder / 'config.json').unlink(), '', 'contains no run'),
        (rewrite('config.json', b'{"method": "fe'), 'config.json', 'line 1'),
        (rewrite('config.json', b'[]'), 'config.json', 'not a JSON object'),
        (rewrite('config.json', b'{"method": 3}'), 'config.json', '"method" is not a string'),
        (rewrite('config.json', b'\xff\xfe'), 'config.json', 'utf-8'),
        (rewrite('config.json', b'[' * 100_000), 'config.json', 'nested too deeply'),
        (rewrite('config.json', b'{"method": "\\ud800"}'), 'config.json', 'surrogates'),
        (rewrite('config.json', b'{"seed": ' + b'9' * 5000 + b'}'), 'config.json', 'too large'),
        (rewrite('summary.json', b'{"cost": 3}'), 'summary.json', '"cost"'),
        (rewrite('summary.json', b''), 'summary.json', 'cannot be read'),
        (rewrite('partition.json', b'{"label_counts": [[1], [1, 2]]}'), 'partition.json', 'matrix'),
        (rewrite('partition.json', b'{"label_counts": [[-1]]}'), 'partition.json', 'matrix'),
        (replace_line(2, 'nonsense'), 'metrics.jsonl', 'line 2'),
        (replace_line(2, '3'), 'metrics.jsonl', 'line 2: it is not a JSON object'),
        (replace_line(2, '{"round": 1}'), 'metrics.jsonl', 'line 2: "round" is 1'),
        (replace_line(2, '{"round": true}'), 'metrics.jsonl', 'line 2: "round"'),
        (replace_line(2, '{"round": 2, "x": NaN}'), 'metrics.jsonl', 'NaN is not a finite'),
        (replace_line(2, '{"round": 2, "x": 1e999}'), 'metrics.jsonl', '1e999 is not a finite'),
        (replace_line(2, '{"round": 2, "test_accuracy": 1.5}'), 'metrics.jsonl', 'not from 0 to 1'),
        (replace_line(2, '{"round": 2, "class_accuracy": [1]}'), 'metrics.jsonl', '1 classes'),
        (replace_line(2, '{"round": 2, "confusion": [[1, 2]]}'), 'metrics.jsonl', 'square'),
        (replace_line(3, '{"round": 3'), 'metrics.jsonl', 'line 3'),
    ],
)  # fmt: skip
def test_damaged_records_are_refused(change, name, message, tmp_path, capsys):
    folder = make_run(tmp_path / 'a')
    change(folder)
    output = tmp_path / 'page.html'
    output.write_text('kept')
    assert main([str(folder), f'--output={output}']) == 2
    shown = capsys.readouterr().err
    assert shown.startswith('error: ') and shown.count('\n') == 1
    assert str(folder / name) in shown and message in shown
    assert output.read_text() == 'kept'
    assert {path.name for path in tmp_path.iterdir()} == {'a', 'page.html'}


def test_invalid_arguments_are_refused(no_pictures, runs, tmp_path, capsys, monkeypatch):
    run, page = str(runs[0]), str(tmp_path / 'page.html')
    (tmp_path / 'folder.html').mkdir()
    (tmp_path / 'file').write_text('')
    sweep = tmp_path / 'sweep'
    sweep.mkdir()
    (sweep / run_files.CLAIMS).write_text('')
    other = tmp_path / 'other.csv'
    other.write_text('stage,dataset\n')
    for arguments, message in [
        ([run], 'name a file to write: --output=FILE.html'),
        ([f'--output={page}'], 'WORKDIR'),
        ([run, f'--output={page}', '--colour=red'], '--colour=red'),
        ([str(tmp_path / 'absent'), f'--output={page}'], 'absent is not a directory'),
        ([str(tmp_path / 'file'), f'--output={page}'], 'file is not a directory'),
        ([run, f'{run}/../{runs[0].name}', f'--output={page}'], 'the same directory'),
        ([run, f'--output={tmp_path}/config.json'], 'must end in .html'),
        ([run, f'--output={tmp_path}/folder.html'], 'folder.html is a directory'),
        ([run, f'--output={tmp_path}/absent/page.html'], 'no directory'),
        ([run, '--output=/proc/page.html'], '--output=/proc/page.html'),
        ([run, f'--output={page}', f'--csv={run}/metrics.csv'], '--csv='),
        ([run, f'--output={page}', f'--csv={sweep}/sweep.csv'], 'is a record of a run or sweep'),
        ([run, f'--output={page}', f'--figure={run}/accuracy.png'], 'is a record of a run or sw'),
        ([run, f'--output={page}', f'--figure={run}/partition.png'], 'is a record of a run or s'),
        (
            [run, f'--csv={other}'],
            'other.csv is not a table of this report; name another file, or ',
        ),
        ([run, '--latex=a.tex', '--latex_by_data=./a.tex'], 'name the same file a.tex; name two.'),
        ([run, f'--output={page}', '--latex=a.html'], '--latex must end in .tex, got a.html'),
        ([run, f'--output={page}', '--figure=a'], '--figure must end in .png or .svg or .pdf'),
        ([run, f'--output={page}', '--target_accuracy=60'], 'at most 1, got 60.'),
        ([run, f'--output={page}', '--target_accuracy=x'], '--target_accuracy: invalid float'),
        ([run, f'--output={page}', '--target_accuracy=nan'], 'at most 1, got nan.'),
    ]:
        assert main(arguments) == 2
        shown = capsys.readouterr().err
        assert shown.startswith('error: ') and shown.count('\n') == 1
        assert message in shown

    def full(*_):
        raise OSError('no space left')

    (tmp_path / 'page.html').write_text('kept')
    with monkeypatch.context() as patch:
        patch.setattr(run_files.os, 'replace', full)
        assert main([run, f'--output={page}']) == 2
    assert f'{page} cannot be written: no space left' in capsys.readouterr().err
    assert (tmp_path / 'page.html').read_text() == 'kept'
    assert not list(tmp_path.glob('.*'))


@pytest.mark.slow
@pytest.mark.filterwarnings('error')
def test_unusual_numbers_are_drawn(tmp_path):
    huge = {'train_loss': 1e200, 'update_norm': -1e200, 'other': 2**64, 'test_loss': 1e-320}
    lines = [entry(1, 0.0, 1, **huge), entry(10**15, 1.0, 1, other=0, train_loss=-1e200)]
    folders = [make_run(tmp_path / str(seed), lines, seed=seed) for seed in (0, 2**62)]
    folders.append(make_run(tmp_path / 'none', [entry(1, None, train_loss=None)], alpha=1.0))
    folders.append(make_run(tmp_path / 'one', [entry(7, 0.5, 200)], alpha=2.0))
    run_files.write_partition(
        tmp_path / 'one' / 'partition.json', np.zeros((300, 150), int), {}, np.ones(150, int)
    )
    words = Page(render(grouping.group([read_run(folder) for folder in folders]))).words
    assert '50.00' in words and 'other' in words


@pytest.mark.skipif(shutil.which('chromium') is None, reason='there is no chromium')
def test_a_browser_renders_it_without_the_network(page, tmp_path):
    done = subprocess.run(
        [
            'chromium', '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom',
            '--host-resolver-rules=MAP * ~NOTFOUND', '--proxy-server=127.0.0.1:9',
            '--window-size=400,800', '--virtual-time-budget=2000',
            '--proxy-bypass-list=<-loopback>', f'--user-data-dir={tmp_path}', page.as_uri(),
        ],
        capture_output=True, text=True, timeout=3600, check=True,
    )  # fmt: skip
    shown = done.stdout
    # The policy let the script run: it adds a button to each head of a sortable table.
    assert '<th scope="col"><button>' in shown
    assert shown.count('<svg') == page.read_text().count('<svg')
    # The page is wider than this window only inside its tables, which say so.
    results = shown[shown.index('id="results"') : shown.index('id="settings"')]
    assert '<p class="hint">' in results and '<div class="cut more">' in results
    assert 'role="button"' in shown and '60.00 ± 14.14' in shown
    assert 'Refused' not in done.stderr and 'Content Security Policy' not in done.stderr
