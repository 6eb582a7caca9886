"""`load` reads a trained network back and reports damaged files."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import jaxfed
from jaxfed.data import channel_statistics, load_digits
from jaxfed.internal import files
from jaxfed.models.heads import with_projection
from jaxfed.recording import run_files
from jaxfed.runs.experiment import set_up
from jaxfed.runs.model_file import save_model

QUICK = {
    'model': 'mlp',
    'devices': '1',
    'lanes': 1,
    'rounds': 2,
    'local_epochs': 1,
    'clients_per_round': 2,
    'alpha': 1.0,
}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """Trains once for each method, and returns the result."""
    done = {}

    def of(method, **settings):
        if method not in done:
            workdir = tmp_path_factory.mktemp('trained') / 'run'
            made = jaxfed.Config(workdir=str(workdir), method=method, **{**QUICK, **settings})
            done[method] = made, jaxfed.simulate(made)
        return done[method]

    return of


@pytest.fixture
def copied(run, tmp_path):
    folder = tmp_path / 'run'
    shutil.copytree(run('fedavg')[1].workdir, folder)
    return folder


def saved(folder, method=None, **settings):
    """Writes a run as if it were trained; returns the experiment and its parameters."""
    experiment = set_up(jaxfed.Config(workdir=str(folder), **{**QUICK, **settings}), method)
    model = experiment.model
    params = model.init(jax.random.key(1))
    # Statistics as after training, some far from their initial values.
    stats = jax.tree.map(lambda leaf: leaf + jnp.linspace(0, 1, leaf.size), model.stats)
    save_model(folder, experiment, params, stats)
    files.write_json(folder / run_files.SUMMARY, {})
    return experiment, params, stats


def expected(experiment, params, stats, x):
    mean, std = channel_statistics(experiment.dealt.dataset.x_train)
    evaluate = jax.jit(experiment.model.evaluate)
    return evaluate(params, (x.astype(np.float32) - mean) / std, stats).logits


def accuracy(loaded):
    dataset = load_digits()
    found = np.argmax(loaded.apply(dataset.x_test), axis=1) == dataset.y_test
    return round(float(np.mean(found.astype(np.float32))), 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    'method, settings',
    [
        ('fedavg', {'learning_rate': 0.1}),
        ('moon+fedavgm', {'hyperparameters': {'projection': True}}),
    ],
)
def test_a_loaded_model_gives_the_same_outputs(method, settings, run, cheap_runs):
    config, result = run(method, **settings)
    loaded = jaxfed.load(result.workdir)
    assert accuracy(loaded) == loaded.summary['final_accuracy']
    assert loaded.summary['final_accuracy'] == result.metrics[-1]['test_accuracy']
    assert loaded.config == config
    assert loaded.stats == ()
    jax.tree.map(np.testing.assert_array_equal, loaded.params, jax.device_get(result.params))
    assert ('project1' in loaded.params) == (method != 'fedavg')
    x = load_digits().x_test[:3]
    np.testing.assert_array_equal(loaded.apply(x), loaded.apply(x.astype(np.float64)))
    assert loaded.apply(x[:0]).shape == (0, 10)
    np.testing.assert_array_equal(loaded.apply(x), loaded.apply(x[..., 0]))
    with pytest.raises(ValueError, match=r'x must be images \[m, 8, 8, 1\].* got shape \(3, 8\)'):
        loaded.apply(x[..., 0, 0])


@pytest.mark.slow
def test_batch_statistics_are_read_back(tmp_path):
    network = {'model': 'mobilenet', 'width': 0.05, 'norm': 'batch', 'precision': 'bfloat16'}
    experiment, params, stats = saved(tmp_path / 'run', **network)
    loaded = jaxfed.load(tmp_path / 'run')
    jax.tree.map(np.testing.assert_array_equal, loaded.stats, stats)
    x = load_digits().x_test[:8]
    np.testing.assert_allclose(
        loaded.apply(x), expected(experiment, params, stats, x), rtol=1e-2, atol=1e-2
    )
    path = tmp_path / 'run' / 'model.safetensors'
    names = set(load_file(path))
    assert 'classifier.kernel' in names
    assert any(name.startswith('batch_stats.') and name.endswith('.var') for name in names)
    with safe_open(path, framework='numpy') as file:
        described = json.loads(file.metadata()['jaxfed'])
    assert described['network']['width'] == 0.05
    assert described['input_shape'] == [8, 8, 1]
    assert described['num_classes'] == 10
    assert described['adapted'] is False


def test_a_custom_method(tmp_path):
    # `load` needs the method only if it adapts the network.
    x = load_digits().x_test[:8]
    plain, adapting = tmp_path / 'plain', tmp_path / 'adapting'
    trained = saved(plain, jaxfed.Method())
    np.testing.assert_allclose(
        jaxfed.load(plain).apply(x), expected(*trained, x), rtol=1e-5, atol=1e-6
    )
    method = jaxfed.Method(adapt=with_projection)
    trained = saved(adapting, method)
    loaded = jaxfed.load(adapting, method=method)
    np.testing.assert_allclose(loaded.apply(x), expected(*trained, x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r'model\.safetensors .*adapts the network.*method='):
        jaxfed.load(adapting)
    with pytest.raises(ValueError, match=r'model\.safetensors .*in the file, but .*256'):
        jaxfed.load(plain, method=method)


def change(path, damage):
    path.write_bytes(damage(path.read_bytes()))


def flip(content):
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


@pytest.mark.parametrize(
    'damage',
    [
        lambda content: content[:-100],
        lambda content: content[:20],
        lambda content: b'',
        lambda content: b'\xff' * 64,
        flip,
        lambda content: content.replace(rb'\"num_classes\": 10', rb'\"num_classes\": 11'),
    ],
    ids=['cut', 'header', 'empty', 'noise', 'a bit', 'metadata'],
)
def test_a_damaged_model_is_reported(damage, copied):
    change(copied / 'model.safetensors', damage)
    with pytest.raises(ValueError, match=r'model\.safetensors cannot be read .*damaged'):
        jaxfed.load(copied)


def test_a_model_of_another_kind_is_reported(copied):
    path = copied / 'model.safetensors'
    save_file(load_file(path), path)
    with pytest.raises(ValueError, match=r'model\.safetensors was not written by jaxfed'):
        jaxfed.load(copied)


@pytest.mark.parametrize('name', ['config.json', 'summary.json', 'model.safetensors'])
def test_a_missing_file_is_reported(name, copied):
    (copied / name).unlink()
    with pytest.raises(ValueError, match=name.replace('.', r'\.')):
        jaxfed.load(copied)
    with pytest.raises(ValueError, match='nowhere is not a run'):
        jaxfed.load('nowhere')


@pytest.mark.parametrize(
    'content', [b'', b'[1]', b'[' * 100_000, b'\xff', b'{"rounds": "many"}', b'{"rounds": {}}']
)
def test_a_damaged_config_is_reported(content, copied):
    (copied / 'config.json').write_bytes(content)
    with pytest.raises(ValueError, match=r'config\.json .*damaged'):
        jaxfed.load(copied)


def test_a_model_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / 'model.safetensors'
    path.write_bytes(b'before')

    def full(*_):
        raise OSError('no space left')

    monkeypatch.setattr(run_files.os, 'replace', full)
    with pytest.raises(OSError, match='no space left'):
        files.write_atomic(path, b'after')
    assert [p.name for p in tmp_path.iterdir()] == ['model.safetensors']
    assert path.read_bytes() == b'before'


def test_a_name_is_no_method(tmp_path):
    with pytest.raises(ValueError, match=r"method must be a jaxfed\.Method, got 'fedlmd'"):
        jaxfed.load(tmp_path, method='fedlmd')
