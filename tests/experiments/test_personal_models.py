"""The clients that jaxfed and PFLlib share, and the table of their accuracies."""

import json

import jax
import numpy as np
import pytest
from absl import app

from experiments.benchmarks.personal_models import __main__ as personal_models
from experiments.benchmarks.personal_models import clients, networks
from experiments.benchmarks.personal_models.clients import Protocol
from jaxfed import Dataset
from jaxfed.data import channel_statistics
from jaxfed.models import MODELS, make_model

PROTOCOL = Protocol(clients=3, examples=400, multiple=20, seeds=1)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, network in networks.NETWORKS.items():
        monkeypatch.setitem(MODELS, name, network)


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (410, 32, 32, 3), np.uint8), np.arange(410) % 10
    return Dataset.from_arrays(x[:400], y[:400].astype(np.int32), x[400:], y[400:], num_classes=10)


def read(path):
    """A client's examples, as PFLlib reads them."""
    with path.open('rb') as file:
        return np.load(file, allow_pickle=True)['data'].tolist()


def test_pfllib_reads_the_clients_of_jaxfed(dataset, tmp_path):
    personal_models.prepare(PROTOCOL, dataset, tmp_path)
    indices = json.loads((tmp_path / 'seed0' / 'partition.json').read_text())['clients']
    sizes = json.loads((tmp_path / 'seed0' / 'sizes.json').read_text())
    mean, std = channel_statistics(dataset.x_train)
    for client, rows in enumerate(indices):
        parts = [
            read(tmp_path / 'seed0' / 'dataset' / 'Cifar10' / part / f'{client}.npz')
            for part in ('train', 'test')
        ]
        assert [len(part['y']) for part in parts] == sizes[client]
        assert sizes[client] == [len(rows) * 3 // 4, len(rows) // 4] and len(rows) % 20 == 0
        assert parts[0]['x'].dtype == np.float32 and parts[0]['y'].dtype == np.int64
        x = np.concatenate([part['x'] for part in parts]).transpose(0, 2, 3, 1) * std + mean
        found = np.rint(x).astype(np.uint8)
        expected = dataset.x_train[rows]
        assert sorted(map(bytes, found)) == sorted(map(bytes, expected))
        labels = np.concatenate([part['y'] for part in parts])
        assert sorted(labels) == sorted(dataset.y_train[rows])


def test_clients_are_cut_to_whole_batches():
    parts = [np.arange(95), np.arange(100, 139)]
    assert [len(part) for part in clients.cut(parts, 20, None, 0)] == [80, 20]
    equal = clients.cut(parts, 20, 20, 0)
    assert [len(part) for part in equal] == [20, 20] and set(equal[1]) < set(parts[1])


def test_folders_of_another_protocol_are_refused(dataset, tmp_path):
    (tmp_path / 'protocol.json').write_text('{}')
    with pytest.raises(app.UsageError, match='runs of another protocol'):
        personal_models.prepare(PROTOCOL, dataset, tmp_path)


@pytest.mark.parametrize('name', ['unpadded_cnn', 'normalised_cnn'])
def test_start_has_the_layout_of_pytorch(name, dataset, tmp_path):
    clients.write_start(name, dataset, 0, tmp_path / 'start.safetensors')
    with np.load(tmp_path / 'start.npz') as start:
        arrays = dict(start)
    assert {n: a.shape for n, a in arrays.items() if n.endswith('weight')} == {
        'conv1.weight': (32, 3, 5, 5),
        'conv2.weight': (64, 32, 5, 5),
        'hidden.weight': (512, 1600),
        'classifier.weight': (10, 512),
    }
    assert set(arrays) == {
        f'{n.split(".")[0]}.{leaf}' for n in arrays for leaf in ('weight', 'bias')
    }
    params = make_model(name, input_shape=(32, 32, 3), num_classes=10).init(jax.random.key(0))
    maps = np.random.default_rng(0).normal(size=(2, 5, 5, 64))
    channels_first = maps.transpose(0, 3, 1, 2).reshape(2, -1)
    np.testing.assert_allclose(
        channels_first @ arrays['hidden.weight'].T,
        maps.reshape(2, -1) @ np.asarray(params['hidden']['kernel']),
        atol=1e-5,
    )
    kernel = np.asarray(params['conv2']['kernel'])
    assert arrays['conv2.weight'][7, 3, 1, 2] == kernel[1, 2, 3, 7]


@pytest.mark.slow
def test_networks_agree_without_their_normalisation(dataset):
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    plain = make_model('unpadded_cnn', input_shape=(32, 32, 3), num_classes=10)
    normalised = make_model('normalised_cnn', input_shape=(32, 32, 3), num_classes=10)
    params = plain.init(jax.random.key(0))
    norms = {k: v for k, v in normalised.init(jax.random.key(0)).items() if k.startswith('norm')}
    logits = normalised.evaluate({**params, **norms}, x, normalised.stats).logits
    np.testing.assert_allclose(logits, plain.apply(params, x).logits, atol=1e-4)


def test_table_pairs_the_seeds():
    found = {
        'tested': [10, 30],
        'received': {'5': [5, 30]},
        'trained': {'5': [10, 15], '10': [6, 12]},
    }
    curves = personal_models.pfllib_curves(found)
    assert curves['pooled'] == {'5': 35 / 40} and curves['received'] == {'5': 0.75}
    assert curves['trained'] == pytest.approx({'5': 0.75, '10': 0.5})
    fields = personal_models.by_field([curves, curves], last=2)
    assert fields['trained'] == [62.5, 62.5] and fields['best_pooled'] == [87.5, 87.5]
    scores = {
        'jaxfed': {'fedper': {'trained': [63.5, 62.5]}, 'ditto': {'trained': [1.0, 2.0]}},
        'pfllib': {'fedper': fields},
    }
    header, _, *rows = personal_models.table(scores)
    assert rows == ['| FedPer | 63.0 ± 0.7 | 62.5 ± 0.0 | +0.5 ± 0.7 | 75.0 ± 0.0 |']
    assert header.count('|') == rows[0].count('|')
    assert personal_models.describe([-0.01], signed=True) == '+0.0'  # one seed has no deviation
    report = {
        'protocol': PROTOCOL._asdict(),
        'versions': {'PFLlib': 'abc'},
        'command': 'python',
        'sizes': [[[30, 10]]],
        'scores': scores,
    }
    assert {rows[0], '```'} < set(personal_models.document(report).splitlines())


def test_jobs_name_the_files_of_their_seed(tmp_path):
    runs = [run for run in personal_models.PFLLIB if run.name == 'fedbn']
    (job,) = personal_models.make_jobs(PROTOCOL, tmp_path, runs)
    assert job['normalised'] and job['settings']['num_clients'] == 3
    assert job['folder'].endswith('seed0/system') and job['start'].endswith('normalised_cnn.npz')


def test_a_missing_checkout_is_refused(tmp_path):
    class Args:
        pfllib, folder = str(tmp_path), str(tmp_path)

    with pytest.raises(app.UsageError, match='has no folder system/flcore'):
        personal_models.main(Args)
