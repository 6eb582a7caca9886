"""The vmapped round against a plain loop, for every method and many shapes of a round."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxfed import methods
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import make_mesh, replicate
from jaxfed.engine.execution import lower_round
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import LocalSettings
from jaxfed.engine.round import Round, make_round
from jaxfed.engine.stacking import STACKED, UNROLLED
from jaxfed.engine.types import ServerState, TrainingData
from jaxfed.internal.backend import compile_all
from jaxfed.methods.chain import chain
from jaxfed.methods.method import Method
from jaxfed.models import DEFAULT_CONVOLUTION, as_model, make_model, with_precision
from jaxfed.models.blocks import ConvNorm
from jaxfed.models.layers import linear
from jaxfed.types import Batch, Model, Outputs
from tests import oracle
from tests.marks import only_fast, slow
from tests.rounds import add_axis, run_round

CLASSES = 4
SIZES = (6, 21, 1, 11, 30, 16)  # of six unequal clients; batches of 5 and of 1
SHAPE = (2, 2, 1)


def normalise(x):
    return (jnp.asarray(x, jnp.float32) - 100.0) / 60.0


def network():
    """A small network with few shapes of arrays; the plain loop compiles its steps for each."""

    def init(key):
        first, second = jax.random.split(key)
        return {
            'hidden': 0.3 * jax.random.normal(first, (4, 4)),
            'classifier': {
                'kernel': 0.3 * jax.random.normal(second, (4, CLASSES)),
                'bias': jnp.ones(4),
            },
        }

    def apply(params, x):
        features = jnp.tanh(x.reshape(len(x), -1) @ params['hidden'])
        return Outputs(
            features @ params['classifier']['kernel'] + params['classifier']['bias'], features
        )

    return Model(init, apply)


class Normalised(nnx.Module):
    """A convolution with batch normalisation."""

    def __init__(self, rngs):
        self.body = ConvNorm(1, 6, 2, 2, norm='batch', convolution=DEFAULT_CONVOLUTION, rngs=rngs)
        self.classifier = linear(6, CLASSES, rngs=rngs)

    def __call__(self, x, mask=None):
        features = jnp.tanh(self.body(x, mask)).mean((1, 2))
        return Outputs(self.classifier(features), features)


def training_data(shape=SHAPE):
    rng = np.random.default_rng(0)
    total = sum(SIZES) + 3  # three examples belong to no client
    y = rng.choice(CLASSES, total, p=(0.55, 0.25, 0.15, 0.05)).astype(np.int32)
    x = rng.integers(0, 256, (total, *shape)).astype(np.uint8)
    order = rng.permutation(total)[: sum(SIZES)]
    size = np.array(SIZES, np.int32)
    start = (np.cumsum(size) - size).astype(np.int32)
    groups = [order[a : a + n] for a, n in zip(start, size, strict=True)]
    counts = np.stack([np.bincount(y[g], minlength=CLASSES) for g in groups]).astype(np.int32)
    auxiliary = Batch(normalise(x[:40]), jnp.asarray(y[:40]), jnp.ones(40, bool))
    leaves = map(jnp.asarray, (x, y, order.astype(np.int32), start, size, counts))
    return TrainingData(*leaves, auxiliary)


def drifting(*, uploads=True):
    """A method that uses every hook and every kind of state."""

    def init(params, stats):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {'mean': zeros, 'rounds': jnp.zeros(())}, {'h': zeros, 'seen': jnp.zeros(())}

    def finish(client):
        moved = jax.tree.map(jnp.subtract, client.params, client.global_params)
        seen = client.fold(lambda n, batch: n + jnp.sum(batch.mask * batch.y), jnp.zeros(()))
        h = jax.tree.map(lambda h, d: h - 0.5 * d, client.state['h'], moved)
        upload = moved if uploads else ()
        return {'h': h, 'seen': client.state['seen'] + seen + client.begun}, upload

    def penalty(view):
        products = jax.tree.map(jnp.vdot, view.state['h'], view.params)
        return 0.1 * view.static * sum(jax.tree.leaves(products)) * view.shared

    def merge(view):
        uploaded = view.uploads if uploads else view.update
        mean = jax.tree.map(lambda u: u / view.round.cohort_size, uploaded)
        update = jax.tree.map(lambda u, m: u + 0.1 * m, view.update, view.state['mean'])
        return update, {'mean': mean, 'rounds': view.state['rounds'] + 1}

    return Method(
        init=init,
        prepare=lambda info: info.label_counts[0] / info.size,
        share=lambda server: server.round.learning_rate * (1 + server.state['rounds']),
        weigh=lambda cohort: cohort.weights / jnp.sqrt(cohort.steps),
        begin=lambda client: jnp.float32(client.steps),
        penalty=penalty,
        finish=finish,
        merge=merge,
        uploads=uploads,
    )


def make(name):
    if name == 'drifting':
        return drifting()
    if name == 'drifting chained':
        return chain(methods.METHODS['fedcad'](source='client'), drifting(), drifting())
    if name == 'personal chained':
        every = ('fedrep', 'topk', 'quantize', 'median')
        return chain(
            drifting(uploads=False)._replace(weigh=Method().weigh),
            *(methods.METHODS[n]() for n in every),
        )
    specification, *settings = name.split()
    options = {}
    for setting in settings:
        key, value = setting.split('=')
        options[key] = value if value.isalpha() else float(value)
    switched = 1 if ',' in specification else None
    return methods.build(methods.resolve(specification, options), switch_round=switched)


METHODS = [
    # These need batch statistics, or more clients.
    *(name for name in methods.METHODS if name not in ('fedbn', 'trimmed_mean')),
    'trimmed_mean trim=0.3',
    'scaffold+fedavgm',
    'fedlmd+fedprox+fedavgm',
    'fedrs+moon+fedadam',
    'fedcad source=client',
    'fedlmd+fedprox',
    'fedntd+label_smoothing',
    'drifting',
    'drifting chained',
    'personal chained',
    'fedper+fedlmd',
    'ditto+fedprox',
    'apfl+dp',
    'moon+median',
    'moon+fedper',
    'fedlmd+topk+quantize+dp+fedavgm',
    'fedlmd+fedper+topk+fedbuff+fedavgm',
    'ditto+kd,ditto+fedlmd+fedavgm',
    'scaffold+kd,scaffold+fedlmd',
]
# One of each kind: no state, server state, client state, weights, a pass before and after training
# with uploads, own parameters, combined updates, a pair of parameters.
KINDS = [
    'fedlmd', 'fedavgm', 'scaffold', 'moon', 'fednova', 'drifting', 'fedper+fedlmd', 'median',
    'ditto',
]  # fmt: skip


def set_up(method, model=None, *, devices=1, stack=None, **changes):
    model = method.adapt(model or network())
    settings = LocalSettings(
        local_epochs=2,
        batch_size=5,
        momentum=0.9,
        weight_decay=1e-2,
        aggregation='size',
        longest=max(SIZES),
        image_shape=SHAPE,
    )._replace(**changes)
    params = model.init(jax.random.key(1))
    server_state, client_state = method.init(params, model.stats)
    server = ServerState(params, server_state, jnp.zeros((), jnp.int32), model.stats)
    states = jax.tree.map(lambda s: np.stack([s] * len(SIZES)), client_state)
    run = jitted(model, method, settings, lambda key, x: normalise(x), devices=devices, stack=stack)
    return model, settings, server, states, run


def jitted(model, method, settings, augment, *, devices=1, stack=None):
    """A round's functions jitted, and the mesh they run on."""
    mesh = make_mesh(devices)
    made = make_round(model, method, settings, augment, normalise, mesh=mesh, stack=stack)
    return Round(*map(jit_once, made)), mesh


def jit_once(function):
    """`jax.jit` that fails if it traces the function again: one program serves every round."""
    traces = []

    def traced(*arguments):
        traces.append(function)
        assert len(traces) == 1, 'a round was traced a second time'
        return function(*arguments)

    return jax.jit(traced)


def plan(settings, cohort, lanes, devices):
    steps = settings.local_epochs * -(-np.array(SIZES)[cohort] // settings.batch_size)
    return schedule(steps, lanes=lanes, devices=devices)


def rounds(run, settings, server, states, cohorts, lanes, data):
    """Several rounds by the engine; returns the last server state, all states, the losses."""
    programs, mesh = run
    losses, states = [], jax.tree.map(np.copy, states)
    server, data, key = replicate((server, data, jax.random.key(5)), mesh)
    for i, cohort in enumerate(cohorts):
        cohort = np.asarray(cohort, np.int32)
        dealt = plan(settings, cohort, lanes, mesh.size)
        server, metrics, _ = run_round(
            programs,
            mesh,
            server,
            states,
            everyone(cohort, settings.local_epochs),
            dealt,
            0.03 * 0.9**i,
            key,
            data,
        )
        losses.append(float(metrics.train_loss))
    return server, states, losses


def rounds_by_oracle(model, method, settings, server, states, cohorts, data):
    losses = []
    for i, cohort in enumerate(cohorts):
        cohort = np.asarray(cohort, np.int32)
        rows = jax.tree.map(lambda s, c=cohort: jnp.asarray(s[c]), states)
        rate = jnp.float32(0.03 * 0.9**i)
        params, stats, state, rows, loss = oracle.run_round(
            model, method, settings, normalise, server, cohort, rows, rate, jax.random.key(5), data
        )
        server = ServerState(params, state, server.round + 1, stats)
        states = jax.tree.map(lambda s, r, c=cohort: jnp.asarray(s).at[c].set(r), states, rows)
        losses.append(loss)
    return server, states, losses


@pytest.mark.parametrize('name', only_fast(METHODS, *KINDS))
def test_round_equals_plain_loop(name):
    method, data = make(name), training_data()
    model, settings, server, states, run = set_up(method, devices=2, stack=STACKED)
    cohorts = [[0, 1, 2, 3], [1, 2, 4, 5]]
    got = rounds(run, settings, server, states, cohorts, 2, data)
    want = rounds_by_oracle(model, method, settings, server, states, cohorts, data)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), got[0].params, server.params)
    assert max(jax.tree.leaves(moved)) > 1e-2  # training had an effect
    chex.assert_trees_all_equal(rounds(run, settings, server, states, cohorts, 2, data), got)
    chex.assert_trees_all_equal_shapes_and_dtypes(got[0], server)
    chex.assert_trees_all_equal_shapes_and_dtypes(got[1], states)


SWITCHED = 'fedavg,median'
COMBINED = [  # all methods, because a product of one of them is also one of the combination
    'fedlmd+quantize+fedbuff+fedavgm+fedlc+feddecorr',
    'moon+fedper+topk+dp+logit_adjustment',
    'fedprox+scaffold+fedcurv+fedlsd+fedadam',
    'feddyn+fedrs+kd+mse+fedyogi',
    'fednova+fedntd+fedgkd+label_smoothing+fedadagrad',
    'fedlmd_tf+fedntd_tf+fedcad+fedssd',
    'ditto', 'apfl', 'fedrep', 'median', 'trimmed_mean trim=0.3', 'krum', 'multikrum',
    'personal chained', 'drifting chained', SWITCHED,
]  # fmt: skip


def test_all_methods_are_combined():
    combined = {name for entry in COMBINED for name in entry.split()[0].split('+')}
    assert combined >= {*methods.METHODS} - {'fedavg', 'fedbn'}


@pytest.mark.parametrize('name', only_fast(COMBINED, *COMBINED[:2], 'ditto', 'median', SWITCHED))
def test_products_have_the_digits_of_float32(name):
    method, clients = make(name), everyone([0, 1, 2, 3], 2)
    model = with_precision(method.adapt(network()), 'float32')
    plain = method._replace(adapt=lambda model: model)
    _, settings, server, states, (functions, mesh) = set_up(plain, model)
    arguments = server, states, clients, plan(settings, clients.clients, 2, 1), 0.03
    lowered = lower_round(
        functions, mesh, *add_axis(*arguments, jax.random.key(5), training_data())
    )
    assert 'HIGHEST' in lowered.train.as_text()
    for program in lowered:  # a GPU and a TPU take fewer digits by default
        assert 'DEFAULT' not in program.as_text()


WITH_STATISTICS = [
    'fedavg', 'fedlmd+fednova', 'moon', 'fedgkd', 'fedcurv', 'fedcad source=client', 'fedbn',
    'fedper+median',
]  # fmt: skip


@pytest.mark.parametrize('name', only_fast(WITH_STATISTICS, 'fedavg', 'fedbn'))
def test_round_with_batch_statistics_equals_plain_loop(name):
    shape = (4, 4, 1)  # one example has several values to normalise
    method, data = make(name), training_data(shape)
    model, settings, server, states, run = set_up(
        method, as_model(lambda rngs: Normalised(rngs)), devices=2, image_shape=shape
    )
    cohorts = [[0, 1, 2, 3], [1, 2, 4, 5]]
    got = rounds(run, settings, server, states, cohorts, 1, data)
    want = rounds_by_oracle(model, method, settings, server, states, cohorts, data)
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)
    for before, after in zip(jax.tree.leaves(server.stats), jax.tree.leaves(got[0].stats)):
        assert np.abs(before - after).min() > 1e-3
    assert min(leaf.min() for leaf in jax.tree.leaves(got[0].stats['body']['norm']['var'])) > 0


@pytest.mark.parametrize(
    'changes',
    only_fast(
        [
            {'momentum': 0.0},
            {'weight_decay': 0.0},
            {'aggregation': 'uniform'},
            {'batch_size': 1},
            {'batch_size': 64},
            {'local_epochs': 1},
        ],
        {'batch_size': 1},
    ),
    ids=str,
)
def test_settings_equal_plain_loop(changes):
    method, data = make('fedlmd'), training_data()
    model, settings, server, states, run = set_up(method, **changes)
    cohorts = [[0, 2, 4]]
    got = rounds(run, settings, server, states, cohorts, 3, data)
    want = rounds_by_oracle(model, method, settings, server, states, cohorts, data)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'lenet', 'mlp'])
def test_networks_equal_plain_loop(name):
    method, data = make('fedlmd'), training_data((16, 16, 1))
    model = make_model(name, input_shape=(16, 16, 1), num_classes=CLASSES)
    model, settings, server, states, run = set_up(
        method, model, local_epochs=1, batch_size=8, image_shape=(16, 16, 1)
    )
    cohorts = [[0, 1]]  # batches of two sizes: each takes the plain loop long to compile
    got = rounds(run, settings, server, states, cohorts, 2, data)
    want = rounds_by_oracle(model, method, settings, server, states, cohorts, data)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)


# One of each kind: no state, client state, server state, uploads, passes before and after training.
WAYS = ['drifting chained', 'fedlmd', 'scaffold', 'fedcurv', 'moon', 'fedcad source=client']


@pytest.mark.parametrize('name', only_fast(WAYS, 'fedcurv'))
def test_result_does_not_depend_on_lanes(name):
    method, data = make(name), training_data()
    _, settings, server, states, _ = set_up(method)

    def augment(key, x):
        noise = jax.random.normal(key, x.shape)
        return normalise(x) + 0.1 * noise

    run = functools.partial(jitted, method.adapt(network()), method, settings, augment)
    cohorts = [[0, 1, 2, 3, 4], [5, 4, 3, 2, 1]]
    # With a lane for every client this is the plain padded engine.
    padded = rounds(run(stack=STACKED), settings, server, states, cohorts, 5, data)
    for lanes in (1, 2, 3) if name == 'drifting chained' else (2,):
        other = rounds(run(stack=UNROLLED), settings, server, states, cohorts, lanes, data)
        chex.assert_trees_all_close(other, padded, rtol=1e-5, atol=1e-5)
    for devices, lanes in ((3, 1), (2, 2)) if name == 'drifting chained' else ():
        other = rounds(run(devices=devices), settings, server, states, cohorts, lanes, data)
        chex.assert_trees_all_close(other, padded, rtol=1e-5, atol=1e-5)


def test_one_trace_for_all_cohorts():
    _, settings, server, states, run = set_up(make('fedlmd'), devices=2)
    cohorts = [[0, 1, 2], [3, 4, 5], [2, 1, 5], [4, 0, 2]]
    server, _, losses = rounds(run, settings, server, states, cohorts, 1, training_data())
    assert int(server.round) == 4
    assert np.isfinite(losses).all()
    with pytest.raises(AssertionError, match='second time'):
        rounds(run, settings, server, states, [[0, 1]], 1, training_data())


@functools.cache
def trained(name):
    _, settings, server, states, run = set_up(make(name))
    cohorts = [[0, 1, 3], [4, 2, 5]]
    return rounds(run, settings, server, states, cohorts, 2, training_data())[0].params


@pytest.mark.parametrize(
    'special, limit',
    [
        ('fedcad beta=0 gamma=0', 'fedavg'),
        ('fedssd max_weight=0', 'fedavg'),
        ('fedlmd beta=0', 'fedavg'),
        ('fedntd beta=0', 'fedavg'),
        ('fedcad beta=0.4 gamma=0.4', 'fedlsd alpha=0.4'),
        slow('fedcad beta=0 gamma=0 source=client', 'fedavg'),
        slow('fedssd max_weight=4 form=linear', 'fedssd max_weight=2 form=squared'),
        slow('fedlmd_tf beta=0', 'fedavg'),
        slow('fedntd_tf beta=0', 'fedavg'),
        slow('fedprox mu=0', 'fedavg'),
        slow('kd beta=0', 'fedavg'),
        slow('mse alpha=0', 'fedavg'),
        slow('label_smoothing smoothing=0', 'fedavg'),
        slow('fedlsd alpha=0', 'fedavg'),
        slow('topk share=1', 'fedavg'),
        slow('feddecorr beta=0', 'fedavg'),
        slow('fedlc tau=0', 'logit_adjustment tau=0'),
        slow('fedcad beta=0.4 gamma=0.4 source=client', 'fedlsd alpha=0.4'),
    ],
)
def test_limits(special, limit):
    chex.assert_trees_all_close(trained(special), trained(limit), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_fedlmd_without_majority_is_fedntd():
    # All classes have the same number of examples: n_c > n / C holds for none.
    rng = np.random.default_rng(3)
    data = training_data()
    x = rng.integers(0, 256, (24, *SHAPE)).astype(np.uint8)
    y = np.tile(np.arange(CLASSES, dtype=np.int32), 6)
    data = data._replace(
        x=jnp.asarray(x),
        y=jnp.asarray(y),
        order=jnp.arange(24, dtype=jnp.int32),
        start=jnp.array([0, 8], jnp.int32),
        size=jnp.array([8, 16], jnp.int32),
        label_counts=jnp.array([[2] * 4, [4] * 4], jnp.int32),
    )
    cohort, steps = everyone([0, 1], 2), np.array([4, 8])
    params = {}
    for name in ('fedlmd', 'fedntd', 'fedavg'):
        _, _, server, _, run = set_up(make(name))
        arguments = (server, (), cohort, schedule(steps, lanes=2), 0.1, jax.random.key(0), data)
        params[name] = run_round(*run, *arguments)[0].params
    chex.assert_trees_all_close(params['fedlmd'], params['fedntd'], rtol=1e-6, atol=1e-6)
    difference = jnp.abs(params['fedlmd']['hidden'] - params['fedavg']['hidden']).max()
    assert difference > 1e-4


def test_client_without_examples_changes_nothing():
    data = training_data()
    method = make('fedlmd')
    model, settings, server, _, _ = set_up(method)
    run = functools.partial(jitted, model, method, settings, lambda key, x: normalise(x))
    empty = data._replace(size=data.size.at[0].set(0), label_counts=data.label_counts.at[0].set(0))
    rest = (0.1, jax.random.key(0), empty)
    both, one = everyone([0, 3], 2), everyone([3], 2)
    with_empty = run_round(*run(), server, (), both, schedule([0, 6], lanes=2), *rest)
    alone = run_round(*run(), server, (), one, schedule([6], lanes=1), *rest)
    chex.assert_trees_all_close(with_empty[0].params, alone[0].params, rtol=1e-6, atol=1e-6)
    chex.assert_tree_all_finite(with_empty)


COLLECTIVE = re.compile('all.reduce|all.gather|all.to.all|collective.permute|reduce.scatter')


@pytest.mark.parametrize('name', only_fast(METHODS, *KINDS))
def test_devices_communicate_only_to_merge(name):
    method, data = make(name), training_data()
    model, settings, server, states, _ = set_up(method)
    mesh = make_mesh(2)
    made = make_round(model, method, settings, lambda _, x: normalise(x), normalise, mesh=mesh)
    server, data, key = replicate((server, data, jax.random.key(5)), mesh)
    cohort = np.arange(4, dtype=np.int32)
    arguments = (everyone(cohort, 2), plan(settings, cohort, 1, 2), 0.1, key, data)
    lowered = lower_round(made, mesh, *add_axis(server, states, *arguments))
    # XLA adds none: the compiled programs of one method show it.
    for programs in (lowered, compile_all(lowered)) if name == 'drifting' else (lowered,):
        train, merge = (program.as_text() for program in programs)
        assert not COLLECTIVE.findall(train)
        assert {word.replace('_', '-') for word in COLLECTIVE.findall(merge)} == {'all-reduce'}


def test_a_prepared_batch_passes_a_barrier():
    # Otherwise a GPU prepares a pixel again wherever it is read.
    method, data = make('fedlmd'), training_data()
    model, settings, server, states, _ = set_up(method)
    mesh = make_mesh(1)
    made = make_round(
        model, method, settings, lambda _, x: normalise(x), normalise, mesh=mesh, stack=STACKED
    )
    cohort = np.arange(4, dtype=np.int32)
    arguments = (everyone(cohort, 2), plan(settings, cohort, 2, 1), 0.1, jax.random.key(5), data)
    lowered = lower_round(made, mesh, *add_axis(server, states, *arguments))
    batches = 'x'.join(map(str, (2, settings.batch_size, *SHAPE)))  # of two lanes
    text = lowered.train.as_text()
    assert batches in re.findall(r'stablehlo.optimization_barrier .* : tensor<(\S+)xf32>', text)
