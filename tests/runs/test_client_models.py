"""What clients keep is written, and loaded as the model of a client."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxfed
from jaxfed.methods import METHODS, Method
from jaxfed.runs.experiment import make_experiment, set_up
from tests.networks import tiny_networks

QUICK = {
    'model': 'mlp', 'rounds': 2, 'local_epochs': 1, 'num_clients': 4, 'clients_per_round': 4,
    'alpha': 0.3, 'learning_rate': 0.1, 'save_clients': True,
}  # fmt: skip


@pytest.fixture
def tiny():
    with tiny_networks():
        yield


def personal_accuracy(config, workdir):
    """The mean over the clients of the accuracy of their loaded models on their own test data."""
    dealt = make_experiment(dataclasses.replace(config, workdir=None)).dealt
    data, accuracies = dealt.dataset, []
    for client, own in enumerate(dealt.personal):
        logits = jaxfed.load(workdir, client=client).apply(data.x_train[own])
        accuracies.append(np.mean(np.argmax(logits, -1) == data.y_train[own]))
    return np.mean(accuracies)


@pytest.mark.slow
@pytest.mark.parametrize(
    'method, hyper',
    [
        ('ditto', {}),
        ('apfl', {'alpha': 1.0}),  # without the common model
        ('fedlmd+ditto+topk', {}),
    ],
)
def test_a_whole_model_has_the_accuracy_that_was_measured(method, hyper, tmp_path):
    tested = {'personal_test': 0.3, 'local_eval_every': 2, 'workdir': str(tmp_path / 'run')}
    config = jaxfed.Config(method=method, hyperparameters=hyper, **tested, **QUICK)
    result = jaxfed.simulate(config, quiet=True)
    measured = result.metrics[-1]['personal_accuracy']
    assert personal_accuracy(config, result.workdir) == pytest.approx(measured, abs=1e-6)


@pytest.mark.slow
def test_every_experiment_of_a_program_keeps_its_clients(tmp_path):
    config = jaxfed.Config(method='fedper', **QUICK)
    runs = {
        str(mu): {'method': 'fedper+fedprox', 'hyperparameters': {'mu': mu}} for mu in (0.0, 9.0)
    }
    configs = {name: dataclasses.replace(config, **changes) for name, changes in runs.items()}
    results = jaxfed.simulate_all(configs, tmp_path / 'both', quiet=True)
    assert all(result.summary['experiments'] == 2 for result in results.values())
    for name, one in configs.items():
        alone = dataclasses.replace(one, workdir=str(tmp_path / name))
        jaxfed.simulate(alone, quiet=True)
        found, want = (
            load_file(folder / 'clients.safetensors')
            for folder in (tmp_path / 'both' / name, tmp_path / name)
        )
        assert found.keys() == want.keys() == {'classifier.bias', 'classifier.kernel'}
        for key, array in want.items():
            assert len(array) == 4
            np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-5)
    kernels = [
        load_file(tmp_path / n / 'clients.safetensors')['classifier.kernel'] for n in configs
    ]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


@pytest.mark.slow
def test_one_client_with_a_head_of_its_own_is_fedavg(tmp_path):
    alone = {**QUICK, 'num_clients': 1, 'clients_per_round': 1}
    config = jaxfed.Config(method='fedper', workdir=str(tmp_path / 'run'), **alone)
    jaxfed.simulate(config, quiet=True)
    plain = jaxfed.Config(workdir=str(tmp_path / 'plain'), **{**alone, 'save_clients': False})
    want = jaxfed.simulate(plain, quiet=True).params
    loaded = jaxfed.load(tmp_path / 'run', client=0).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), loaded, want)
    common = jaxfed.load(tmp_path / 'run').params
    np.testing.assert_array_equal(common['hidden1']['kernel'], loaded['hidden1']['kernel'])
    assert np.abs(common['classifier']['kernel'] - want['classifier']['kernel']).max() > 1e-3


@pytest.mark.slow
def test_own_methods_are_passed_to_load(tmp_path, monkeypatch):
    config = jaxfed.Config(workdir=str(tmp_path), **QUICK)
    own = METHODS['fedper']()
    jaxfed.simulate(config, method=own, quiet=True)
    with pytest.raises(ValueError, match=r"'own' is not in methods\.METHODS.*method=\.\.\."):
        jaxfed.load(tmp_path, client=1)
    found, common = jaxfed.load(tmp_path, client=1, method=own), jaxfed.load(tmp_path)
    kept = load_file(tmp_path / 'clients.safetensors')['classifier.kernel']
    np.testing.assert_array_equal(found.params['classifier']['kernel'], kept[1])
    body = (one.params['hidden1']['kernel'] for one in (found, common))
    np.testing.assert_array_equal(*body)
    for client in (-1, 4, 1.0, 'a', True):
        with pytest.raises(ValueError, match=r'client must be (an integer|from 0 to 3), got'):
            jaxfed.load(tmp_path, client=client, method=own)
    path = tmp_path / 'clients.safetensors'
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match='its digest does not match'):
        jaxfed.load(tmp_path, client=1, method=own)
    path.unlink()
    with pytest.raises(ValueError, match='only a run with --save_clients writes it'):
        jaxfed.load(tmp_path, client=1, method=own)


@pytest.mark.slow
def test_batch_statistics_are_kept_by_a_run_that_continues(tiny, tmp_path, stopped_before):
    changed = {'method': 'fedbn', 'model': 'tiny_normal', 'rounds': 3, 'checkpoint_every': 1}
    config = jaxfed.Config(workdir=str(tmp_path / 'run'), **{**QUICK, **changed})
    with stopped_before(3):
        jaxfed.simulate(dataclasses.replace(config, save_clients=False), quiet=True)
    for name in ('run', 'whole'):
        jaxfed.simulate(dataclasses.replace(config, workdir=str(tmp_path / name)), quiet=True)
    found, want = (load_file(tmp_path / n / 'clients.safetensors') for n in ('run', 'whole'))
    assert found.keys() == want.keys() and any(name.startswith('batch_stats.') for name in want)
    for name, array in want.items():
        assert 'norm' in name
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    stats = [jaxfed.load(tmp_path / 'run', client=i).stats for i in (0, 1)]
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(*map(jax.tree.leaves, stats)))


@pytest.mark.slow
def test_a_client_without_state_starts_alike_in_every_round(tmp_path):
    # The classifier is that of zeros whenever a client begins; masks are arrays.
    def masks(params, stats):
        return {
            name: jax.tree.map(lambda _, name=name: jnp.bool_(name == 'classifier'), layer)
            for name, layer in params.items()
        }, ()

    def receive(client):
        own, _ = masks(client.params, ())
        return jax.tree.map(lambda m, a: jnp.where(m, 0, a), own, client.params), client.stats

    method = Method(own=masks, receive=receive)
    jaxfed.simulate(jaxfed.Config(workdir=str(tmp_path), **QUICK), method=method, quiet=True)
    params = jaxfed.load(tmp_path, client=2, method=method).params
    assert not params['classifier']['kernel'].any() and params['hidden1']['kernel'].any()


def test_runs_without_models_of_clients_are_refused(tmp_path):
    config = jaxfed.Config(method='scaffold', workdir=str(tmp_path / 'run'), **QUICK)
    with pytest.raises(ValueError, match='clients of --method=scaffold keep no parameters'):
        set_up(config)
    plain = METHODS['fedper']()
    reads = Method(
        init=plain.init, finish=plain.finish, own=plain.own, send=plain.send,
        receive=lambda client: plain.receive(client._replace(params=client.apply(client.params))),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r'must read params, stats and state only \(.*remove it'):
        set_up(dataclasses.replace(config, method='fedavg'), method=reads)
    nothing = plain._replace(own=lambda *trees: jax.tree.map(lambda _: False, trees))
    with pytest.raises(ValueError, match='clients of --method=own keep no parameters'):
        set_up(dataclasses.replace(config, method='fedavg'), method=nothing)
    assert not (tmp_path / 'run').exists()
