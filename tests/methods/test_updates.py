"""What clients send and how the server combines it, against NumPy."""

import types
from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxfed.methods import METHODS, chain, switch
from jaxfed.methods.hooks import check_hooks
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    CombineView,
    MergeView,
    MessageSize,
    Method,
)
from jaxfed.types import Model

UPDATES = np.random.default_rng(0).normal(size=(9, 4, 3)).astype(np.float32)


def combine(name, updates=UPDATES, arrived=None, **hyper):
    arrived = np.ones(len(updates), bool) if arrived is None else arrived
    updates = np.where(arrived[:, None, None], updates, 0)
    weights = arrived / arrived.sum()
    view = CombineView({'w': jnp.asarray(updates)}, weights, jnp.asarray(arrived), None)
    return METHODS[name](**hyper).combine(view)['w']


def client(update, state=(), seed=0, steps=1):
    view = ClientView(*[None] * len(ClientView._fields))
    key = jax.random.key(seed)
    return view._replace(update=update, state=state, key=key, params=update, steps=steps)


LOST = np.arange(9) < 6


@pytest.mark.parametrize('arrived', [None, LOST, np.arange(9) < 1], ids=['all', 'six', 'one'])
def test_median(arrived):
    kept = UPDATES if arrived is None else UPDATES[arrived]
    assert_allclose(combine('median', arrived=arrived), np.median(kept, axis=0), rtol=1e-6)


@pytest.mark.parametrize('trim, cut', [(0.0, 0), (0.2, 1), (0.34, 3), (1 / 3, 3)])
def test_trimmed_mean(trim, cut):
    want = np.sort(UPDATES, axis=0)[cut : 9 - cut].mean(axis=0)
    assert_allclose(combine('trimmed_mean', trim=trim), want, rtol=1e-5, atol=1e-7)
    six = np.sort(UPDATES[:6], axis=0)[1:5].mean(axis=0)
    assert_allclose(combine('trimmed_mean', arrived=LOST, trim=0.2), six, rtol=1e-5, atol=1e-7)


def krum_order(updates, byzantine):
    flat = updates.reshape(len(updates), -1)
    distance = np.square(flat[:, None] - flat[None]).sum(-1)
    scores = []
    for i in range(len(flat)):
        others = np.sort(np.delete(distance[i], i))
        scores.append(others[: len(flat) - byzantine - 2].sum())
    return np.argsort(scores)


def test_krum_and_multikrum():
    order = krum_order(UPDATES, 1)
    assert_allclose(combine('krum', byzantine=0.2), UPDATES[order[0]], rtol=1e-6)
    assert_allclose(combine('krum', selected=3), UPDATES[order[:3]].mean(0), rtol=1e-5, atol=1e-7)
    assert_allclose(combine('multikrum'), UPDATES[order[:8]].mean(0), rtol=1e-5, atol=1e-7)
    order = krum_order(UPDATES[:6], 1)
    assert_allclose(combine('krum', arrived=LOST), UPDATES[order[0]], rtol=1e-6)


def test_a_lost_client_takes_no_place_of_one_whose_distances_overflow():
    far = UPDATES.copy()
    far[4] = 1e25
    arrived = np.arange(len(far)) > 0
    mean = combine('multikrum', far, arrived=arrived, byzantine=0.0)
    assert_allclose(mean, far[arrived].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize('outlier', [1e6, 1e20, np.inf])
@pytest.mark.parametrize('name', ['median', 'trimmed_mean', 'krum', 'multikrum'])
def test_outliers_do_not_move_a_robust_sum(name, outlier):
    spoilt = UPDATES.copy()
    spoilt[4] = outlier
    assert np.abs(combine(name, spoilt)).max() < 3


@pytest.mark.parametrize('name', ['krum', 'multikrum'])
def test_krum_does_not_choose_a_diverged_update(name):
    spoilt = UPDATES.copy()
    spoilt[4, 0, 0] = np.nan
    assert np.abs(combine(name, spoilt)).max() < 3


@pytest.mark.parametrize('name, hyper', [('krum', {'byzantine': 0.45}), ('trimmed_mean', {})])
def test_cohorts_that_are_too_small(name, hyper):
    with pytest.raises(ValueError, match='of a round'):
        combine(name, UPDATES[:4] if name == 'trimmed_mean' else UPDATES[:5], **hyper)


def test_quantize_is_unbiased_and_coarse():
    u = jnp.asarray(UPDATES[0])
    method = METHODS['quantize'](bits=3)
    send = jax.jit(lambda u, seed: method.send(client({'w': u}, seed=seed))['w'])
    draws = jax.vmap(send, (None, 0))(u, jnp.arange(4000))
    norm = float(jnp.linalg.norm(u))
    levels = np.asarray(draws) * 3 / norm
    assert_allclose(levels, np.round(levels), atol=1e-5)
    assert np.abs(levels).max() <= 3 + 1e-5
    # The deviation of a rounding is at most half a step.
    assert_allclose(draws.mean(0), u, atol=5 * norm / 3 / 2 / np.sqrt(4000))
    assert_array_equal(send(jnp.zeros(4), 0), np.zeros(4))


def test_topk_keeps_the_rest_for_the_next_round():
    method = METHODS['topk'](share=0.5)
    view = client({'w': jnp.array([1.0, -3.0, 2.0, 0.5])}, {'w': jnp.array([0.0, 0.0, 0.0, 4.0])})
    assert_array_equal(method.send(view)['w'], [0, -3, 0, 4.5])
    state, _ = method.finish(view)
    assert_array_equal(state['w'], [1, 0, 2, 0])
    equal = METHODS['topk'](share=0.3).send(
        client({'w': jnp.ones((2, 5))}, {'w': jnp.zeros((2, 5))})
    )
    assert_array_equal(equal['w'], [[1, 1, 1, 0, 0], [0] * 5])
    least = METHODS['topk'](share=1e-6)
    assert_array_equal(least.send(view)['w'], [0, 0, 0, 4.5])
    assert least.message_size(view.update, MessageSize(4)).kept == 1
    everything = METHODS['topk'](share=1.0)
    large = {'w': jax.ShapeDtypeStruct((8_000_000,), jnp.float32)}
    assert everything.message_size(large, MessageSize(8_000_000)).kept == 8_000_000
    assert_array_equal(everything.send(view)['w'], [1, -3, 2, 4.5])


def test_topk_keeps_its_rest_if_an_update_is_not_finite():
    method = METHODS['topk'](share=0.5)
    for wrong in (jnp.nan, jnp.inf):
        view = client({'w': jnp.array([wrong, 3.0, wrong, wrong, 2.0])}, {'w': jnp.ones(5)})
        assert not np.isfinite(method.send(view)['w']).all()  # a robust sum leaves it out
        state, _ = method.finish(view)
        assert_array_equal(state['w'], np.ones(5))


def test_moon_keeps_no_model_that_is_not_finite():
    method, before = METHODS['moon'](), ({'w': jnp.ones(2)}, {'mean': jnp.zeros(3)})
    for i, wrong in ((0, {'w': jnp.array([2.0, jnp.nan])}), (1, {'mean': jnp.full(3, jnp.inf)})):
        trained = [{'w': jnp.array([2.0, 5.0])}, {'mean': jnp.ones(3)}]
        for model, kept in ((trained, trained), ([*trained[:i], wrong, *trained[i + 1 :]], before)):
            view = client(None, before)._replace(params=model[0], stats=model[1])
            chex.assert_trees_all_equal(method.finish(view)[0], tuple(kept))


@pytest.mark.parametrize('share', [0.1, 0.3, 0.7])
@pytest.mark.parametrize('size', [30, 2_400, 51_200])
def test_topk_sends_as_many_entries_if_a_sweep_traces_the_share(share, size):
    u, rest = {'w': jnp.arange(1.0, size + 1)}, {'w': jnp.zeros(size)}

    @jax.jit
    def sent(share):
        return jnp.sum(METHODS['topk'](share=share).send(client(u, rest))['w'] > 0)

    number = -(-Fraction(str(share)) * size // 1)
    assert sent(share) == number
    assert METHODS['topk'](share=share).message_size(u, MessageSize(size)).kept == number


@pytest.mark.parametrize('steps, learning_rate', [(0, 0.1), (3, 0.0)])
def test_scaffold_keeps_the_variates_without_a_gradient(steps, learning_rate):
    round_ = types.SimpleNamespace(momentum=0.0, learning_rate=jnp.float32(learning_rate))
    view = client({'w': jnp.ones(3)}, {'w': jnp.array([1.0, 2.0, 3.0])}, steps=jnp.int32(steps))
    view = view._replace(shared=view.params, global_params=view.params, round=round_)
    state, upload = METHODS['scaffold']().finish(view)
    assert_array_equal(state['w'], [1, 2, 3])
    assert_array_equal(upload['w'], [0, 0, 0])


def test_dp_clips_the_norm_of_all_arrays_and_adds_noise():
    method = METHODS['dp'](clip=2.0, noise=1.5)
    long, short = {'a': jnp.full(4, 3.0), 'b': jnp.full(4, 4.0)}, {'a': jnp.ones(4)}
    clipped = method.send(client(long))  # of norm 10
    assert_allclose(clipped['a'], np.full(4, 0.6), rtol=1e-6)
    assert_allclose(clipped['b'], np.full(4, 0.8), rtol=1e-6)
    assert_array_equal(method.send(client(short))['a'], short['a'])  # of norm 2
    view = MergeView(*[None] * len(MergeView._fields))._replace(
        update={'a': jnp.ones(40_000), 'b': jnp.ones(40_000)},
        key=jax.random.key(0),
        round=type('Round', (), {'expected_size': 5.0}),
    )
    noise = np.stack([np.asarray(leaf) - 1 for leaf in method.merge(view)[0].values()])
    # The standard error of a deviation over 40 000 draws is 0.35 %.
    assert_allclose(noise.std(axis=1), [1.5 * 2 / 5] * 2, rtol=0.02)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.03
    assert_allclose(noise.mean(), 0, atol=0.015)


def test_dp_counts_an_update_that_is_not_finite_as_zero():
    for wrong in (np.nan, np.inf):
        sent = METHODS['dp']().send(client({'w': jnp.array([1.0, wrong])}))
        assert_array_equal(sent['w'], [0, 0])


def test_fedbuff_delays_updates_and_weighs_them_less():
    method = METHODS['fedbuff'](delay=2, exponent=1.0)
    state, _ = method.init({'w': jnp.zeros(1)}, ())
    pending, seen = np.zeros((3, 2)), set()  # sum of weighted updates and their number, by delay
    for round_ in range(6):
        uploads = []
        for i in range(4):
            view = client({'w': jnp.array([1.0 + i])}, seed=10 * round_ + i)
            uploads.append(method.finish(view)[1])
            late = int(np.argmax(uploads[-1][1]))
            pending[late] += [(1 + i) / (1 + late), 1]
            seen.add(late)
        total = jax.tree.map(lambda *leaves: sum(leaves), *uploads)
        empty = MergeView(*[None] * len(MergeView._fields))
        update, state = method.merge(empty._replace(state=state, uploads=total))
        assert_allclose(update['w'], [pending[0, 0] / max(pending[0, 1], 1)], rtol=1e-5)
        pending = np.concatenate([pending[1:], np.zeros((1, 2))])
    assert seen == {0, 1, 2}


def test_fedbuff_without_delay_is_the_mean():
    method = METHODS['fedbuff'](delay=0)
    state, _ = method.init({'w': jnp.zeros(1)}, ())
    clients = [client({'w': jnp.array([x])}) for x in (1.0, 2.0, 6.0)]
    clients.append(client({'w': jnp.zeros(1)}, steps=0))  # has no examples
    uploads = [method.finish(view)[1] for view in clients]
    total = jax.tree.map(lambda *leaves: sum(leaves), *uploads)
    empty = MergeView(*[None] * len(MergeView._fields))
    update, state = method.merge(empty._replace(state=state, uploads=total))
    assert_allclose(update['w'], [3.0], rtol=1e-6)


@pytest.mark.parametrize('name', ['fedavgm', 'fedadam', 'fedyogi', 'fedadagrad'])
def test_a_server_optimizer_waits_in_a_round_in_which_no_update_arrives(name):
    buffered = chain(METHODS['fedbuff'](delay=1), METHODS[name]())
    params = {'w': jnp.ones(2)}
    state, _ = buffered.init(params, ())
    late = 0.25 * jnp.eye(2)[1]  # the update arrives in the second round
    empty = MergeView(*[None] * len(MergeView._fields))
    moves = []
    for arrives in (late, 0 * late, 0 * late):
        uploads = ({'w': jnp.multiply.outer(arrives, jnp.array([1.0, -2.0]))}, jnp.sign(arrives))
        view = empty._replace(params=params, uploads=(uploads, ()), key=jax.random.key(0))
        before = state
        update, state = buffered.merge(view._replace(state=state))
        moves.append(np.abs(update['w']).max())
    assert moves[0] == moves[2] == 0 < moves[1]
    chex.assert_trees_all_equal(state[1], before[1])


def test_updates_pass_through_the_parts():
    half = Method(send=lambda c: jax.tree.map(lambda u: u / 2, c.update))
    both = chain(METHODS['topk'](share=0.5), half)
    state = ({'w': jnp.zeros(2)}, ())
    update = {'w': jnp.array([4.0, 2.0])}
    view = client(update, state)._replace(
        static=((), ()), shared=((), ()), begun=((), ()), params=update
    )
    assert_array_equal(both.send(view)['w'], [2, 0])
    assert_array_equal(both.finish(view)[0][0]['w'], [0, 2])
    other = chain(half, METHODS['topk'](share=0.5))
    view = view._replace(state=state[::-1])
    assert_array_equal(other.finish(view)[0][1]['w'], [0, 1])


@pytest.mark.parametrize('form', ['stats', 'random', 'masked'])
@pytest.mark.parametrize('name', ['ditto', 'apfl'])
def test_a_pair_of_models_has_no_mode_of_training(name, form):
    network = Model(lambda key: {}, lambda params, x, *mode: None)._replace(**{form: True})
    with pytest.raises(ValueError, match='without batch statistics, dropout and mask'):
        METHODS[name]().adapt(network)


def test_a_combination_may_use_the_weights_of_another_part():
    def combine(view):
        return jax.tree.map(lambda rows: (view.weights[:, None] * rows).sum(0), view.updates)

    own = Method(weigh=lambda cohort: 2 * cohort.weights, combine=combine)
    after, before = chain(METHODS['feddyn'](), own), chain(own, METHODS['quantize']())
    cohort = CohortView(jnp.array([0.25, 0.75]), *[jnp.ones(2)] * 3, None)
    assert_array_equal(after.weigh(cohort), [1, 1])  # twice the equal weights of feddyn
    assert_array_equal(before.weigh(cohort), [0.5, 1.5])
    rows, weights = {'w': jnp.array([[1.0], [3.0]])}, jnp.array([0.5, 1.5])
    for both in (after, before):
        assert_array_equal(both.combine(CombineView(rows, weights, None, None))['w'], [5])


@pytest.mark.parametrize(
    'names, message',
    [
        ('median+krum', '2 of the combined methods replace the weighted sum'),
        (
            'fednova+median',
            'method 2 uses no weights, so those of method 1 would have no effect',
        ),
        ('dp+median', 'method 2 uses no weights, so those of method 1 would have no effect'),
        ('dp+quantize', 'method 1 adds noise .* so method 2 must come before it'),
        ('dp+fedper', 'so method 2 must come before it'),
        ('dp+ditto', 'so method 2 must come before it'),
        ('dp+fednova', 'so method 2 must come before it'),
        ('fedavgm+dp', 'so method 1 must come after it'),
        ('scaffold+dp', 'changes updates only, but method 1 uploads more'),
        ('feddyn+quantize', 'but method 1 uploads more'),
        ('fedcurv+topk', 'but method 1 uploads more'),
        (
            'fedper+fedssd',
            'keeps parameters at the clients, but method 2 evaluates the global model',
        ),
        ('fedgkd+ditto', 'keeps parameters at the clients'),
        ('fedper+scaffold', 'at the clients, but method 2 uploads values that may cover them'),
        ('feddyn+fedbn', 'at the clients, but method 1 uploads values that may cover them'),
        ('ditto+fedcurv', 'at the clients, but method 2 uploads values that may cover them'),
        ('fednova+fedrep', 'may train an array in some of the local steps, but method 1 counts'),
        ('fedper+ditto', 'trains a model of each client, so method 1 cannot keep a part of it'),
        ('ditto+apfl', 'trains a model of each client'),
        ('ditto+fedrs', 'trains two models, so method 2 must change the network before it'),
        ('fedbuff+topk', 'method 1 delays what the clients send, so method 2 must come before'),
        ('fedavgm+fedbuff', 'delays the sum of updates, so method 1 must come after it'),
        ('fedbuff+dp', 'delays updates, but method 2 needs those of one round; remove one'),
        ('fedbuff+median', 'delays updates, but method 2 needs those of one round'),
        ('scaffold+fedbuff', 'changes updates only, but method 1 uploads more'),
    ],
)
def test_parts_that_would_undo_each_other(names, message):
    with pytest.raises(ValueError, match=message):
        chain(*(METHODS[name]() for name in names.split('+')))


def test_a_method_that_changes_messages_and_their_sum_has_no_place_beside_noise():
    both = Method(send=lambda client: client.update, merge=lambda view: (view.update, view.state))
    for parts in (METHODS['dp'](), both), (both, METHODS['dp']()):
        with pytest.raises(ValueError, match=r'adds noise to .* changes both; remove one'):
            chain(*parts)


@pytest.mark.parametrize(
    'names',
    [
        'fedlmd+topk+dp+fedavgm',
        'ditto+dp',
        'apfl+topk+dp',
        'fedper+quantize',
        'moon+krum',
        'topk+fedbuff',
    ],
)
def test_parts_that_combine(names):
    combined = chain(*(METHODS[name]() for name in names.split('+')))
    assert combined.alters_messages


@pytest.mark.parametrize('around', ['{}+dp', 'dp+{}', '{}+fedbuff', 'fedbuff+{}', 'ditto+{}'])
@pytest.mark.parametrize('inner', [chain, lambda *parts: switch(*parts, rounds=3)])
def test_a_combination_combines_like_its_parts(inner, around):
    both = inner(METHODS['fedlmd'](), METHODS['fedprox']())
    chain(*(both if name == '{}' else METHODS[name]() for name in around.split('+')))
    sends = inner(METHODS['fedlmd'](), METHODS['topk']())
    with pytest.raises(ValueError, match='adds noise to what the clients send, so method 2 must'):
        chain(METHODS['dp'](), sends)


def test_a_switch_of_methods_without_a_hook_combines_with_one_that_has_it():
    chain(switch(METHODS['fedlmd_tf'](), METHODS['fedlmd'](), rounds=3), METHODS['median']())
    chain(switch(METHODS['fedprox'](), METHODS['moon'](), rounds=3), METHODS['label_smoothing']())
    with pytest.raises(ValueError, match='uses no weights, so those of method 1'):
        chain(switch(METHODS['fedavg'](), METHODS['fednova'](), rounds=3), METHODS['median']())


@pytest.mark.parametrize('name', ['fedper', 'ditto'])
def test_personal_models_cannot_follow_another_method(name):
    with pytest.raises(ValueError, match='keep parameters at the clients'):
        switch(METHODS['fedavg'](), METHODS[name](), rounds=2)


@pytest.mark.parametrize('name', ['dp', 'fedbuff'])
def test_noise_and_delays_need_every_round(name):
    with pytest.raises(ValueError, match='name them last in both, as in kd'):
        switch(METHODS[name](), METHODS['fedavg'](), rounds=2)


@pytest.mark.parametrize('name', ['ditto', 'apfl', 'dp'])
def test_methods_refuse_batch_statistics(name):
    model = Model(lambda key: {}, lambda params, x: x, stats={'norm': {'mean': jnp.zeros(1)}})
    with pytest.raises(ValueError, match='batch statistics'):
        check_hooks(METHODS[name]()).adapt(model)
