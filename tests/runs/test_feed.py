"""Rounds in waves of clients, and the test data of local models."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxfed
from jaxfed.data.augment import normalise
from jaxfed.engine.devices import make_mesh
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local_evaluation import HeldOut, personal_accuracy
from jaxfed.runs import feed
from jaxfed.runs.evaluate import (
    held_out_examples,
    only_tested,
    personal_fields,
    room_for,
    spread,
)
from jaxfed.runs.experiment import make_experiment, set_up
from jaxfed.runs.feed import ahead, plan_wave, split_waves
from jaxfed.types import Outputs


@settings(max_examples=100)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(50, 120))
def test_waves_hold_every_client_once_and_no_more_than_fits(sizes, room):
    sizes = np.array(sizes)
    waves = split_waves(sizes, np.arange(len(sizes)), room)
    assert sorted(slot for wave in waves for slot in wave) == list(range(len(sizes)))
    held = [sizes[wave].sum() for wave in waves]
    assert max(held) <= room
    # No two waves would fit into one.
    assert all(a + b > room for i, a in enumerate(held) for b in held[:i])


def test_schedules_of_waves_have_one_shape_and_name_places_in_the_cohort():
    steps = np.array([5, 9, 2, 7, 4])
    waves = [np.array([1, 3]), np.array([0, 4, 2])]
    plans = [plan_wave(steps, slots, lanes=1, devices=3) for slots in waves]
    whole = schedule(steps, lanes=1, devices=3)
    for plan, slots in zip(plans, waves):
        assert [leaf.shape for leaf in plan] == [leaf.shape for leaf in whole]
        used = np.arange(plan.slot.shape[1]) < plan.clients[:, None]
        assert sorted(plan.slot[used]) == sorted(slots)
        assert plan.steps.sum() == steps[slots].sum()


def test_tasks_run_ahead_of_their_use():
    started = [threading.Event() for _ in range(3)]

    def task(i):
        started[i].set()
        return i

    results = ahead(functools.partial(task, i) for i in range(3))
    assert next(results) == 0
    assert started[1].wait(3600)  # while 0 is used
    assert not started[2].is_set()
    assert list(results) == [1, 2]


def test_an_exception_in_a_task_is_raised():
    def fail():
        raise OSError('disk gone')

    results = ahead([lambda: 1, fail, lambda: 3])
    assert next(results) == 1
    with pytest.raises(OSError, match='disk gone'):
        next(results)


LOCAL = {
    'method': 'scaffold',
    'model': 'mlp',
    'rounds': 3,
    'devices': '2',
    'augment': 'crop',
    'local_epochs': 2,
    'local_eval_every': 2,
    'personal_test': 0.2,
    'momentum': 0.0,
}


def without_times(metrics):
    return [{k: v for k, v in entry.items() if 'seconds' not in k} for entry in metrics]


def test_all_processes_stream_if_one_must(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = {}

    def minimum(what, value):  # another process has one device, and no room for the images
        asked[what] = value
        return {'devices with one copy': 1, 'images that fit': 0}.get(what, value)

    monkeypatch.setattr(feed.distributed, 'minimum', minimum)
    monkeypatch.setattr(feed, 'memory', lambda mesh: 60_000.0)
    rooms = []
    place_some = feed.place_some
    monkeypatch.setattr(
        feed, 'place_some', lambda *a, room: rooms.append(room) or place_some(*a, room=room)
    )
    experiment = set_up(jaxfed.Config(**LOCAL))
    _, streams = feed.make_feed([experiment], make_mesh(2), lambda x: x)
    assert streams and asked['devices with one copy'] == 2
    largest, image = int(experiment.dealt.size.max()), experiment.dealt.dataset.x_train[0].nbytes
    assert rooms == [max(int(60_000 * feed.IMAGE_SHARE / feed.WAVES / image), largest)]


def test_a_skipped_round_does_not_shift_the_waves(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(feed, 'memory', lambda mesh: 1.0)
    experiment = set_up(jaxfed.Config(**LOCAL, lanes=1))
    rounds, streams = feed.make_feed([experiment], make_mesh(1), lambda x: x)
    assert streams
    skipping = rounds(1, 1)
    next(skipping)
    got, want = (list(next(of).waves) for of in (skipping, rounds(1, 2)))
    assert len(got) == len(want) > 0
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.slow
def test_waves_give_the_results_of_whole_rounds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    whole = jaxfed.simulate(jaxfed.Config(**LOCAL, stream='off'))
    # The smallest possible memory: a wave has room for the largest client only.
    monkeypatch.setattr(feed, 'memory', lambda mesh: 1.0)
    placed = []
    place_some = feed.place_some

    def count(*arguments, room):
        place = place_some(*arguments, room=room)
        return lambda clients: placed.append((len(clients), room)) or place(clients)

    monkeypatch.setattr(feed, 'place_some', count)
    waves = jaxfed.simulate(jaxfed.Config(**LOCAL))
    for a, b in zip(without_times(whole.metrics), without_times(waves.metrics)):
        assert a.keys() == b.keys()
        for name in a:
            if a[name] is not None:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5, err_msg=name)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        whole.params,
        waves.params,
    )
    assert min(clients for clients, _ in placed) < 5
    assert len({room for _, room in placed}) == 1
    assert whole.metrics[0]['personal_accuracy'] is None
    assert 0 < whole.metrics[1]['personal_accuracy'] <= 1


def test_no_personal_test_without_its_evaluation():
    with pytest.raises(ValueError, match=r'--personal_test=0.2.*--local_eval_every=0'):
        jaxfed.simulate(jaxfed.Config(personal_test=0.2))


def test_clients_hold_out_their_own_examples(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    experiment = set_up(jaxfed.Config(**LOCAL, num_clients=8))
    dealt, cohort = experiment.dealt, np.array([6, 1, 3, 7, 2])
    room = room_for([experiment], make_mesh(2))._replace(models=3)
    examples = held_out_examples(experiment, cohort, devices=2, room=room)
    assert not examples.mask[1, 2].any()  # room for a sixth
    for slot, client in enumerate(cohort):
        place, part = divmod(slot, 3), dealt.personal[client]
        assert not set(part) & set(dealt.partition[client])
        x, y, mask = (leaf[place] for leaf in examples)
        np.testing.assert_array_equal(x[mask], dealt.dataset.x_train[part])
        np.testing.assert_array_equal(y[mask], dealt.dataset.y_train[part])


@pytest.mark.parametrize('lanes', [1, 2])
def test_personal_accuracy_by_hand(lanes):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 7, 5)).astype(np.float32)
    y = rng.integers(0, 3, (2, 3, 7)).astype(np.int32)
    count = np.array([3, 2], np.int32)
    held = np.array([[7, 4, 0], [1, 6, 5]])
    mask = np.arange(7) < held[..., None]
    params = rng.standard_normal((2, 3, 5, 3)).astype(np.float32)
    common = rng.standard_normal((5, 3)).astype(np.float32)

    def linear(params, x):
        return Outputs(x @ params, x)

    measure = functools.partial(personal_accuracy, linear, mesh=make_mesh(2), lanes=lanes)
    held_out = HeldOut(*map(jnp.asarray, (x, y, mask)))
    local, global_ = jax.jit(measure)(params, common, count, held_out)
    for d in range(2):
        for i in range(3):
            n = held[d, i] if i < count[d] else 0
            for got, w in ((local, params[d, i]), (global_, common)):
                right = ((x[d, i, :n] @ w).argmax(-1) == y[d, i, :n]).sum()
                assert float(got[d, i]) == pytest.approx(right / max(n, 1))


@pytest.mark.parametrize('count, worst', [(1, 1), (10, 1), (11, 2), (25, 3)])
def test_spread_over_clients(count, worst):
    accuracy = np.random.default_rng(count).permutation(np.arange(count) / count)
    found = spread(accuracy)
    assert np.isclose(found['personal_accuracy'], (count - 1) / 2 / count)
    assert np.isclose(found['personal_worst_tenth'], (worst - 1) / 2 / count)
    assert np.isclose(found['personal_deviation'], np.sqrt((count**2 - 1) / 12) / count)


def test_personal_fields_are_those_of_the_tested_clients():
    local, global_ = np.array([0.5, 0.0, 1.0]), np.array([0.25, 0.0, 0.75])
    found = personal_fields(only_tested(local, global_, np.array([True, False, True])))
    assert found == {
        'personal_accuracy': 0.75,
        'personal_worst_tenth': 0.5,
        'personal_deviation': 0.25,
        'personal_global_accuracy': 0.5,
    }
    assert personal_fields(only_tested(local, global_, np.zeros(3, bool))) == {}


@pytest.mark.slow
def test_personal_accuracy_of_the_global_model_is_after_the_round(tmp_path):
    config = jaxfed.Config(
        model='mlp', rounds=1, num_clients=8, clients_per_round=8, local_eval_every=1,
        personal_test=0.2, workdir=str(tmp_path / 'run'),
    )  # fmt: skip
    experiment = make_experiment(config)
    result = jaxfed.simulate(config, quiet=True)
    dealt, shares = experiment.dealt, []
    for part in filter(len, dealt.personal):
        images = dealt.dataset.x_train[part]
        x = normalise(jnp.asarray(images), mean=experiment.mean, std=experiment.std)
        logits = experiment.model.evaluate(result.params, x, experiment.model.stats).logits
        shares.append(np.mean(np.argmax(logits, axis=-1) == dealt.dataset.y_train[part]))
    assert result.metrics[0]['personal_global_accuracy'] == pytest.approx(np.mean(shares))
