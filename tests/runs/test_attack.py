"""Malicious clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfed
from jaxfed import Config
from jaxfed.methods import METHODS
from jaxfed.methods.attacks import ATTACKS
from jaxfed.methods.method import ClientView
from jaxfed.runs import checks
from jaxfed.runs.attack import with_attack
from jaxfed.runs.deal import deal
from jaxfed.types import ClientInfo


def client(number, update):
    info = ClientInfo(jnp.ones(2, jnp.int32), jnp.int32(2), jnp.int32(number))
    view = ClientView(*[None] * len(ClientView._fields))
    return view._replace(info=info, update=update, key=jax.random.key(number))


UPDATE = {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([[4.0]])}  # of norm 5


def test_sign_flip_of_the_first_clients():
    send = ATTACKS['sign_flip'](clients=2, scale=3.0).send
    np.testing.assert_array_equal(send(client(1, UPDATE))['a'], [-9, 0])
    np.testing.assert_array_equal(send(client(2, UPDATE))['a'], [3, 0])


def test_gaussian_noise_has_the_norm_of_the_update():
    send = ATTACKS['gaussian'](clients=2, scale=3.0).send
    noise = send(client(0, UPDATE))
    norm = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in noise.values()))
    assert norm == pytest.approx(15, rel=1e-5)
    assert not np.allclose(noise['a'], send(client(1, UPDATE))['a'])
    np.testing.assert_array_equal(send(client(2, UPDATE))['b'], [[4]])


@pytest.mark.parametrize(
    'method, sent, kept', [('ditto', 'model', 'own'), ('fedper', 'features', 'classifier')]
)
def test_parameters_that_clients_keep_do_not_count_for_the_noise(method, sent, kept):
    config = Config(malicious=0.5, attack='gaussian', attack_scale=3.0)
    attacked = with_attack(config, METHODS[method]())
    update = {sent: {'w': jnp.array([3.0, 4.0])}, kept: {'w': jnp.full(50, 7.0)}}
    view = client(0, update)._replace(params=update, stats=(), global_params=update)
    _, state = attacked.init(update, ())
    pair = (), ()
    view = view._replace(state=state, static=pair, shared=pair, begun=pair)
    noise = attacked.send(view)
    assert float(jnp.linalg.norm(noise[sent]['w'])) == pytest.approx(15, rel=1e-5)
    np.testing.assert_array_equal(noise[kept]['w'], 0)


def test_label_flip_changes_the_labels_of_the_first_clients_only():
    plain, flipped = (
        deal(Config(num_clients=10, malicious=share, attack='label_flip')) for share in (0, 0.2)
    )
    for number, part in enumerate(plain.partition):
        np.testing.assert_array_equal(flipped.partition[number], part)
        before, after = plain.dataset.y_train[part], flipped.dataset.y_train[part]
        np.testing.assert_array_equal(after, 9 - before if number < 2 else before)
    np.testing.assert_array_equal(flipped.label_counts[0], plain.label_counts[0][::-1])


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'attack': 'gaussian'}, '--attack=gaussian needs malicious clients; set'),
        ({'attack': 'label_flip'}, 'needs malicious clients; set --malicious=0.2, or remove --att'),
        ({'attack_scale': 2.0}, '--attack_scale=2.0 is for malicious clients'),
        (
            {'attack': 'label_flip', 'malicious': 0.2, 'attack_scale': 2.0},
            'is for malicious clients',
        ),
    ],
)
def test_settings_without_effect(settings, message):
    with pytest.raises(ValueError, match=message):
        checks.check(Config(**settings))


def test_methods_that_upload_more_are_not_attacked():
    config = Config(method='scaffold', malicious=0.2)
    with pytest.raises(ValueError, match='--method=scaffold uploads more'):
        with_attack(config, METHODS['scaffold']())


def test_less_than_one_client_is_refused():
    with pytest.raises(ValueError, match=r'--malicious=0\.01 of --num_clients=20 is no client'):
        checks.check(Config(malicious=0.01))
    method = METHODS['fedavg']()
    assert with_attack(Config(), method) is method


@pytest.mark.slow
def test_a_median_withstands_what_breaks_a_mean(cheap_runs, tmp_path):
    accuracy = {}
    for method in ('fedavg', 'median'):
        config = Config(
            method=method, num_clients=10, clients_per_round=10, partition='iid', model='mlp',
            rounds=8, malicious=0.2, workdir=str(tmp_path / method),
        )  # fmt: skip
        accuracy[method] = jaxfed.simulate(config).summary['final_accuracy']
    assert accuracy['median'] > accuracy['fedavg'] + 0.3
