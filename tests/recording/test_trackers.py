"""Metrics as CSV, in TensorBoard and in Weights & Biases."""

import contextlib
import csv
import importlib.util
import json
import re
import time
import types

import numpy as np
import pytest

from jaxfed import Config, simulate
from jaxfed.metrics.measures import MEASURES, Measure
from jaxfed.recording import run_files, trackers
from jaxfed.report.__main__ import main as report
from jaxfed.runs.experiment import set_up

WANDB = importlib.util.find_spec('wandb') is not None
MLFLOW = importlib.util.find_spec('mlflow') is not None


@pytest.fixture(scope='module')
def result(tmp_path_factory):
    """A run that all trackers follow, W&B and MLflow where they are installed."""
    workdir = tmp_path_factory.mktemp('runs') / 'out'
    config = Config(
        method='fedlmd', model='mlp', rounds=3, clients_per_round=2, local_epochs=1, eval_every=2,
        measure='forgetting,confusion', csv=True, tensorboard=True, wandb=WANDB,
        mlflow=MLFLOW,         workdir=str(workdir),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('WANDB_MODE', 'offline')
        patch.setenv('WANDB_SILENT', 'true')
        return simulate(config)


@pytest.mark.skipif(not MLFLOW, reason='mlflow is not installed')
def test_mlflow_has_every_scalar(result):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(result.workdir / 'mlruns').as_uri())
    experiment = client.get_experiment_by_name('jaxfed')
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == 'FINISHED' and run.info.run_name == 'out'
    assert run.data.params['fedlmd.tau'] == '1.0' and run.data.params['method'] == 'fedlmd'
    for name in ('train_loss', 'test_accuracy', 'learning_rate'):
        history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
        want = {e['round']: e[name] for e in result.metrics if e[name] is not None}
        assert history == pytest.approx(want)
    assert run.data.metrics['class_accuracy/9'] == result.metrics[-1]['class_accuracy'][9]


def test_csv_has_every_number(result):
    text = (result.workdir / 'metrics.csv').read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(row['round']) for row in rows] == [1, 2, 3]
    # Nothing was evaluated in the first round, and yet the header is whole.
    assert rows[0]['class_accuracy_9'] == rows[0]['test_accuracy'] == rows[0]['forgetting'] == ''
    for row, entry in zip(rows[1:], result.metrics[1:], strict=True):
        for name in ('test_accuracy', 'train_loss', 'learning_rate', 'forgetting', 'seconds'):
            assert float(row[name]) == entry[name]
        accuracies = [float(row[f'class_accuracy_{c}']) for c in range(10)]
        assert accuracies == entry['class_accuracy']
    assert not [name for name in rows[0] if name.startswith(('confusion', 'class_accuracy_10'))]
    assert rows[0].keys() == rows[2].keys()
    assert list(rows[0])[:4] == ['round', 'test_accuracy', 'test_loss', 'class_accuracy_0']


def test_numbers_of_each_class_are_those_that_measures_name(monkeypatch):
    mine = Measure('Mine.', arrays=('margin', 'ids'), by_class=('margin',))
    monkeypatch.setitem(MEASURES, 'mine', mine)
    entry = {'round': 1, 'margin': [0.5, 2], 'ids': [3, 4], 'cohort_labels': [7], 'seconds': 1.0}
    assert trackers.scalars(entry) == {
        'margin/0': 0.5, 'margin/1': 2, 'cohort_labels/0': 7, 'seconds': 1.0,
    }  # fmt: skip


def test_tensorboard_has_every_scalar(result):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = accumulator.EventAccumulator(str(result.workdir / 'tensorboard'))
    events.Reload()
    names = set(events.Tags()['scalars'])
    assert {'train_loss', 'class_accuracy/9', 'class_forgetting/0', 'seconds'} <= names
    assert not [name for name in names if name.startswith(('confusion', 'round'))]
    for name in ('test_accuracy', 'train_loss', 'forgetting'):
        want = [(e['round'], e[name]) for e in result.metrics if e[name] is not None]
        got = [(event.step, event.value) for event in events.Scalars(name)]
        np.testing.assert_allclose(got, want, rtol=1e-6)
    got = [event.value for event in events.Scalars('class_accuracy/3')]
    want = [e['class_accuracy'][3] for e in result.metrics[1:]]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    content = events.PluginTagToContent('hparams')['_hparams_/session_start_info']
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams['learning_rate'].number_value == 0.01
    assert hparams['fedlmd.tau'].number_value == 1
    assert hparams['method'].string_value == 'fedlmd'


@pytest.mark.skipif(not WANDB, reason='wandb is not installed')
def test_wandb_keeps_every_scalar_offline(result):
    (run,) = (result.workdir / 'wandb').glob('offline-run-*')
    (file,) = run.glob('*.wandb')
    held = file.read_bytes()
    for name in ('test_accuracy', 'class_accuracy/9', 'forgetting', 'learning_rate', 'fedlmd'):
        assert name.encode() in held
    for entry in result.metrics:
        assert json.dumps(entry['train_loss']).encode() in held


@pytest.mark.skipif(not WANDB, reason='wandb is not installed')
def test_runs_of_wandb_that_are_open_at_once_get_their_own_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    described = {'method_parts': [], 'partition_settings': {}}
    places = [tmp_path / name for name in 'ab']
    with contextlib.ExitStack() as stack:
        tracks = []
        for place in places:
            place.mkdir()
            tracks.append(stack.enter_context(trackers.wandb(place, described)))
        for round_ in (1, 2):
            for place, track in zip(places, tracks, strict=True):
                track({'round': round_, f'of_{place.name}_{round_}': 0.5})
    for place, other in zip(places, 'ba', strict=True):
        (file,) = (place / 'wandb').glob('offline-run-*/*.wandb')
        for _ in range(36_000):  # W&B's own process writes it, some time
            if f'of_{place.name}_2'.encode() in (held := file.read_bytes()):
                break
            time.sleep(0.1)
        for round_ in (1, 2):
            assert f'of_{place.name}_{round_}'.encode() in held
            assert f'of_{other}_{round_}'.encode() not in held


@pytest.mark.slow
def test_run_is_complete_with_its_partition(result, tmp_path):
    held = json.loads((result.workdir / 'partition.json').read_text())
    counts = np.array(held['label_counts'])
    dealt = set_up(Config(workdir=str(tmp_path / 'again'))).dealt
    assert np.array_equal(counts, dealt.label_counts)
    assert result.summary['trackers_failed'] == {}
    assert report([str(result.workdir), f'--output={tmp_path / "page.html"}']) == 0
    page = (tmp_path / 'page.html').read_text()
    assert 'Partition' in page and 'Confusion' in page and 'forward passes' in page


def test_csv_gets_new_columns_in_place(tmp_path):
    lines = [
        {'round': 1, 'a': None, 'list': None, 'z': 1.5},
        {'round': 2, 'a': 2.0, 'list': None, 'z': 2.5},
        {'round': 3, 'a': None, 'list': [0.5, None] + [1] * 9, 'z': None, 'nested': [[1]], 'd': {}},
        {'round': 4, 'late': True},
    ]
    with trackers.csv_file(tmp_path, {}) as track:
        for count, line in enumerate(lines, 1):
            track(line)
            rows = list(csv.DictReader((tmp_path / 'metrics.csv').open()))
            assert [int(row['round']) for row in rows] == list(range(1, count + 1))
            assert None not in rows[-1] and None not in rows[-1].values()
    assert list(rows[0]) == ['round', 'a', *(f'list_{i}' for i in range(11)), 'z', 'late']
    assert [row['a'] for row in rows] == ['', '2.0', '', '']
    assert [row['list_0'] for row in rows] == ['', '', '0.5', '']
    assert rows[3]['late'] == 'True'
    assert [path.name for path in tmp_path.iterdir()] == ['metrics.csv']


@pytest.mark.parametrize('name', trackers.PACKAGES)
@pytest.mark.parametrize('spec', [None, types.SimpleNamespace(origin=None)])
def test_missing_packages_are_reported_before_any_write(name, spec, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        trackers.importlib.util,
        'find_spec',
        lambda n, *a: spec if n == trackers.PACKAGES[name] else found(n, *a),
    )
    message = f"--{name} needs the package {trackers.PACKAGES[name]}: pip install -e '.[{name}]'"
    with pytest.raises(ValueError, match=re.escape(message)):
        set_up(Config(workdir=str(tmp_path / 'out'), **{name: True}))
    assert not (tmp_path / 'out').exists()


def start(folder, **chosen):
    config = Config(workdir=str(folder), **chosen)
    run_files.make_workdir(config, [])
    return config


def test_a_failed_tracker_is_reported_and_the_others_continue(tmp_path, monkeypatch, capsys):
    writer = pytest.importorskip('tensorboardX.record_writer')
    write = writer.RecordWriter.write

    def full(self, data):
        if b'second' in data:
            raise OSError(28, 'No space left on device')
        write(self, data)

    monkeypatch.setattr(writer.RecordWriter, 'write', full)
    config = start(tmp_path / 'out', csv=True, tensorboard=True)
    with trackers.follow(config, [], tmp_path / 'out') as (track, failed):
        track({'round': 1, 'first': 1.0})
        assert failed == {}
        track({'round': 2, 'second': 1.0})
        track({'round': 3, 'third': 1.0})
    assert failed == {'tensorboard': 'failed in round 2: [Errno 28] No space left on device'}
    shown = capsys.readouterr().err
    assert shown.count('warning: --tensorboard: failed in round 2') == shown.count('\n') == 1
    rows = list(csv.DictReader((tmp_path / 'out' / 'metrics.csv').open()))
    assert [row['round'] for row in rows] == ['1', '2', '3']


@pytest.mark.parametrize('error', [None, KeyboardInterrupt, RuntimeError])
def test_trackers_are_closed_after_every_end_of_training(error, tmp_path, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def tracker(workdir, config):
        try:
            yield seen.append
            seen.append('done')
        except BaseException as raised:
            seen.append(type(raised))
            raise

    monkeypatch.setitem(trackers.OPEN, 'wandb', tracker)
    config = start(tmp_path / 'out', wandb=True)
    with (
        contextlib.suppress(*([error] if error else [])),
        trackers.follow(config, [], tmp_path / 'out') as (track, failed),
    ):
        track({'round': 1})
        if error:
            raise error
    assert seen == [{'round': 1}, error or 'done']
    assert failed == {}


def test_a_tracker_that_cannot_be_opened_leaves_the_work_directory_free(tmp_path, monkeypatch):
    closed = []

    @contextlib.contextmanager
    def fine(workdir, config):
        yield closed.append
        closed.append('never')

    @contextlib.contextmanager
    def refused(workdir, config):
        raise RuntimeError('no login')
        yield

    monkeypatch.setattr(trackers, 'OPEN', {'tensorboard': fine, 'wandb': refused})
    workdir = tmp_path / 'out'
    config = start(workdir, tensorboard=True, wandb=True)
    for name in ('partition.json', 'partition.png'):
        (workdir / name).write_text('of these settings')
    message = '--wandb cannot be used: no login; WANDB_MODE=offline'
    with (
        pytest.raises(trackers.Unavailable, match=message),
        trackers.follow(config, [], workdir),
    ):
        closed.append('never')
    assert not closed
    assert not workdir.exists()


def test_an_existing_csv_file_is_kept(tmp_path):
    (tmp_path / 'metrics.csv').write_text('precious')
    config = start(tmp_path, csv=True)
    with (
        pytest.raises(trackers.Unavailable, match='already exists'),
        trackers.follow(config, [], tmp_path),
    ):
        raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ['metrics.csv']
    assert (tmp_path / 'metrics.csv').read_text() == 'precious'


def test_the_summary_names_a_failed_tracker(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def broken(workdir, config):
        yield lambda entry: 1 / (2 - entry['round'])

    monkeypatch.setitem(trackers.OPEN, 'csv', broken)
    config = Config(
        model='mlp', rounds=3, clients_per_round=2, local_epochs=1, eval_every=2, method='fedlmd',
        csv=True, workdir=str(tmp_path / 'out'),
    )  # fmt: skip
    result = simulate(config)
    assert result.summary['trackers_failed'] == {'csv': 'failed in round 2: division by zero'}
    assert len((tmp_path / 'out' / 'metrics.jsonl').read_text().splitlines()) == 3
