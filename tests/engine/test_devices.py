"""Devices, their arrays, and shared work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfed
from jaxfed.engine import devices
from jaxfed.engine.devices import check_devices, make_mesh, replicate, split
from jaxfed.engine.evaluation import evaluate
from jaxfed.engine.local_evaluation import evaluate_locals
from jaxfed.runs import prepare
from jaxfed.types import Outputs


@pytest.mark.parametrize('wanted', ['0', '-1', 'two', '', '1.5'])
def test_devices_are_all_or_a_number(wanted):
    with pytest.raises(ValueError, match=rf"--devices must be at least 1, or 'all', got {wanted}"):
        check_devices(wanted)


def test_more_devices_than_there_are():
    with pytest.raises(ValueError, match=r'--devices must be at most 8, .*, got 9'):
        jaxfed.simulate(jaxfed.Config(devices='9', clients_per_round=9))


def test_more_lanes_on_devices_than_clients():
    for settings, most in (({'devices': '6'}, 5), ({'devices': '2', 'lanes': 3}, 1)):
        message = f'--devices must be at most {most}, a client of --clients_per_round=5'
        with pytest.raises(ValueError, match=message):
            jaxfed.simulate(jaxfed.Config(**settings))


def test_every_core_is_too_late_after_jax_was_used(monkeypatch):
    monkeypatch.delenv('XLA_FLAGS', raising=False)
    monkeypatch.setattr(devices, 'cores', lambda: 3)  # tests have eight devices
    jax.devices()
    with pytest.raises(RuntimeError, match=r'use_every_core\(\) must come before JAX is used: res'):
        devices.use_every_core()


def test_mesh_has_only_devices_with_work():
    assert make_mesh().size == make_mesh('all').size == 8
    assert make_mesh('3').size == make_mesh(3).size == make_mesh(most=3).size == 3
    assert make_mesh('2', most=3).size == 2


def test_replicated_arrays_are_not_copied_for_each_device():
    mesh = make_mesh(4)
    original = np.arange(6, dtype=np.int32).reshape(2, 3)
    placed = replicate({'a': original, 'key': jax.random.key(0)}, mesh)
    assert placed['a'].sharding.is_fully_replicated
    at = {shard.data.unsafe_buffer_pointer() for shard in placed['a'].addressable_shards}
    assert len(at) == 1
    original[:] = 0  # the devices have a copy
    assert placed['a'].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert len(placed['key'].devices()) == 4


def test_split_arrays_are_on_their_devices():
    parts = split(np.arange(8).reshape(4, 2), make_mesh(4))
    assert [shard.data.tolist() for shard in parts.addressable_shards] == [
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
        [[6, 7]],
    ]


def linear(params, x):
    return Outputs(x @ params, x)


def problem(examples):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((examples, 5)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(rng.integers(0, 3, examples), jnp.int32)


@pytest.mark.parametrize('examples', [1, 3, 7, 1203])
def test_evaluation_on_several_devices_is_the_same(examples):
    x, y = problem(examples)
    params = jnp.asarray(np.random.default_rng(1).standard_normal((5, 3)), jnp.float32)
    alone = evaluate(linear, params, x, y)
    logits = np.asarray(x @ params)
    assert float(alone.accuracy) == pytest.approx((logits.argmax(-1) == np.asarray(y)).mean())
    shared = jax.jit(functools.partial(evaluate, linear, mesh=make_mesh(4)))(params, x, y)
    for a, b in zip(alone, shared, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize('lanes', [1, 2, 3])
def test_local_accuracies_are_those_of_each_model(lanes):
    x, y = problem(50)
    params = jnp.asarray(np.random.default_rng(1).standard_normal((2, 4, 5, 3)), jnp.float32)
    clients = np.array([4, 3], np.int32)
    got, agreement = jax.jit(
        functools.partial(evaluate_locals, linear, mesh=make_mesh(2), lanes=lanes)
    )(params, clients, x, y)
    assert agreement is None  # without a teacher
    for device in range(2):
        for i in range(clients[device]):
            expected = evaluate(linear, params[device, i], x, y)
            of_model = jax.tree.map(lambda all_, at=(device, i): all_[at], got)
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-6), of_model, expected
            )


@pytest.mark.slow
def test_lanes_are_as_many_as_memory_allows(cheap_runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = {
        'devices': '1', 'rounds': 1, 'partition': 'iid', 'model': 'mlp', 'clients_per_round': 3,
        'local_epochs': 1,
    }  # fmt: skip
    whole = jaxfed.simulate(jaxfed.Config(**settings)).summary
    assert whole['lanes'] == 3
    have = 0.8 * whole['memory_bytes']
    monkeypatch.setattr(prepare, 'memory', lambda mesh: have)
    fewer = jaxfed.simulate(jaxfed.Config(**settings)).summary
    assert 1 <= fewer['lanes'] < 3
    assert fewer['memory_bytes'] <= have
    advice = (
        '--batch_size=50, or lower --lanes=3, or set --stream=on, or set --checkpoint_every=0 '
        'if clients have a state, or lower --clients_per_round=3, or choose a smaller --model'
    )
    with pytest.raises(jaxfed.TooLarge, match=advice):
        jaxfed.simulate(jaxfed.Config(**settings, lanes=3, workdir='again'))
    assert not (tmp_path / 'again').exists()  # free for another try
    monkeypatch.setattr(prepare, 'memory', lambda mesh: 1000.0)
    with pytest.raises(jaxfed.TooLarge, match=r'about \d+ MiB of memory on each of 1 device'):
        jaxfed.simulate(jaxfed.Config(**settings, lanes=fewer['lanes']))


@pytest.mark.slow
def test_exhausted_memory_is_reported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def exhausted(*arguments, **settings):
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.')

    monkeypatch.setattr(prepare, 'run_waves', exhausted)
    settings = jaxfed.Config(
        rounds=1, partition='iid', model='mlp', devices='2', clients_per_round=2
    )
    with pytest.raises(jaxfed.TooLarge, match=r'9 bytes.*lower --devices=2, because'):
        jaxfed.simulate(settings)


def test_client_states_beyond_the_memory_are_reported(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def exhausted(*arguments):
        raise MemoryError

    monkeypatch.setattr(prepare.states_of, 'create', exhausted)
    message = r'--method=scaffold keeps a state .* --num_clients=20 need'
    with pytest.raises(jaxfed.TooLarge, match=message):
        jaxfed.simulate(jaxfed.Config(method='scaffold', model='mlp'))
