"""Methods with state or a server step, compared with NumPy over several rounds.

Gradients, memories and server's steps are written by hand from the papers, in float64 and on flat
parameters. They use only the engine's order of examples.
"""

import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxfed import methods
from jaxfed.engine.cohorts import everyone
from jaxfed.engine.devices import make_mesh, replicate
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import LocalSettings, epoch_order
from jaxfed.engine.round import Round, make_round
from jaxfed.engine.types import ServerState, TrainingData
from jaxfed.types import Model, Outputs
from tests.rounds import run_round

INPUTS, FEATURES, CLASSES = 4, 5, 3
SIZES = np.array([5, 12, 3, 8, 10, 7], np.int32)  # of six unequal clients
EPOCHS, BATCH, WEIGHT_DECAY = 2, 4, 0.01
STEPS = EPOCHS * -(-SIZES // BATCH)
# Client 1 takes part in three consecutive rounds, 0 and 3 return after a break, 4 is new in round
# 3, and 5 never takes part. In round 4 there are more models than FedGKD keeps.
COHORTS = ([0, 1, 2], [1, 2, 3], [0, 1, 4], [4, 0, 3])
KEY = jax.random.key(5)
HEAVY, UNIFORM = {'momentum': 0.9}, {'aggregation': 'uniform'}


def rate_of(number):
    return 0.2 * 0.9**number


def network():
    """Softmax regression on features that are linear and learned, which MOON compares."""

    def init(key):
        first, second, third = jax.random.split(key, 3)
        classifier = {
            'kernel': 0.5 * jax.random.normal(first, (FEATURES, CLASSES)),
            'bias': 0.5 * jax.random.normal(second, (CLASSES,)),
        }
        hidden = 0.5 * jax.random.normal(third, (INPUTS, FEATURES))
        return {'classifier': classifier, 'hidden': hidden}

    def apply(params, x):
        product = functools.partial(jnp.matmul, precision='highest')
        features = product(x, params['hidden'])
        logits = product(features, params['classifier']['kernel'])
        return Outputs(logits + params['classifier']['bias'], features)

    return Model(init, apply)


@functools.cache
def examples():
    """Each client's x and y."""
    rng = np.random.default_rng(0)
    y = [rng.integers(0, CLASSES, size).astype(np.int32) for size in SIZES]
    y[0] %= 2  # no example of class 2
    y[2][:] = 2  # of no other
    y[4] = np.maximum(y[4], 1)
    noise = [rng.normal(size=(size, INPUTS)) for size in SIZES]
    x = [(e + np.eye(CLASSES, INPUTS)[labels]).astype(np.float32) for e, labels in zip(noise, y)]
    return x, y


@functools.cache
def training_data():
    x, y = examples()
    order = np.random.default_rng(1).permutation(SIZES.sum()).astype(np.int32)
    counts = np.stack([np.bincount(labels, minlength=CLASSES) for labels in y]).astype(np.int32)
    place = np.argsort(order)  # clients' examples are not contiguous
    start = (np.cumsum(SIZES) - SIZES).astype(np.int32)
    return TrainingData(
        np.concatenate(x)[place], np.concatenate(y)[place], order, start, SIZES, counts
    )


@functools.cache
def batches(client, number):
    """The batches of a client's local training in a round."""
    key = jax.random.fold_in(jax.random.fold_in(KEY, number), client)
    key, _ = jax.random.split(key)
    x, y = (array[client] for array in examples())
    result = []
    for epoch in range(EPOCHS):
        order = epoch_order(jax.random.fold_in(key, epoch), SIZES[client], SIZES.max())
        order = np.asarray(order)[: SIZES[client]]
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            result.append((x[chosen].astype(np.float64), y[chosen]))
    assert len(result) == STEPS[client]
    return result


# The engine.


def flat(tree):
    """Parameters as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


@functools.cache
def compiled(name, hyper, momentum, aggregation):
    method, mesh = methods.METHODS[name](**dict(hyper)), make_mesh(2)
    model = method.adapt(network())
    settings = LocalSettings(
        EPOCHS, BATCH, momentum, WEIGHT_DECAY, aggregation, max(SIZES), (INPUTS,), True
    )
    made = make_round(model, method, settings, lambda _, x: x, lambda x: x, mesh=mesh)
    programs = Round(jax.jit(made.train), jax.jit(made.merge))
    return method, model.init(jax.random.key(1)), programs, mesh


def set_up(name, hyper, *, momentum=0.0, aggregation='size'):
    """A function that runs one round, the first server state, and all clients' states."""
    made = compiled(name, tuple(hyper.items()), momentum, aggregation)
    method, params, programs, mesh = made
    server_state, client_state = method.init(params, ())
    states = jax.tree.map(lambda s: np.stack([s] * len(SIZES)), client_state)
    server = ServerState(params, server_state, jnp.zeros((), jnp.int32))
    server, data, key = replicate((server, training_data(), KEY), mesh)

    def run(server, cohort):
        """The next server state and the local parameters, client -> vector."""
        cohort = np.array(cohort, np.int32)
        plan = schedule(STEPS[cohort], lanes=1, devices=mesh.size)
        rate = rate_of(int(server.round))
        server, _, kept = run_round(
            programs, mesh, server, states, everyone(cohort, EPOCHS), plan, rate, key, data
        )
        trained, _ = kept
        local = {
            int(client): flat(jax.tree.map(lambda leaf, i=i: leaf[i], trained))
            for i, client in enumerate(cohort[plan.slot[plan.used]])
        }
        return server, local

    return run, server, states


def engine(name, hyper, cohorts):
    """Global parameters after each round."""
    run, server, _ = set_up(name, hyper, **HEAVY)
    params = []
    for cohort in cohorts:
        server, _ = run(server, cohort)
        params.append(flat(server.params))
    return params


# NumPy. Flat parameters are bias (may be missing), kernel, hidden.


def unpack(w):
    cut = len(w) - INPUTS * FEATURES
    bias, kernel, hidden = np.split(w, [cut - FEATURES * CLASSES, cut])
    return bias, kernel.reshape(FEATURES, CLASSES), hidden.reshape(INPUTS, FEATURES)


def forward(w, x):
    """(features, logits)."""
    bias, kernel, hidden = unpack(w)
    logits = x @ hidden @ kernel
    return x @ hidden, logits + bias if len(bias) else logits


def backward(w, x, by_logits, by_features=0.0):
    """The gradient of a loss by w from those by logits [B, C] and by features [B, F]."""
    bias, kernel, hidden = unpack(w)
    by_hidden = x.T @ (by_logits @ kernel.T + by_features)
    parts = by_logits.sum(0)[: len(bias)], (x @ hidden).T @ by_logits, by_hidden
    return np.concatenate([part.ravel() for part in parts])


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cosine(f, a):
    """Cosine similarity [B] and its gradient by f [B, F]."""
    norm_f, norm_a = (np.linalg.norm(v, axis=1, keepdims=True) for v in (f, a))
    cos = (f * a).sum(1, keepdims=True) / (norm_f * norm_a)
    return cos[:, 0], a / (norm_f * norm_a) - cos * f / norm_f**2


class FedAvg:
    """The base of the other methods."""

    def __init__(self, w, momentum=0.0, aggregation='size', **hyper):
        self.w, self.momentum, self.aggregation = w, momentum, aggregation
        self.number = 0  # of rounds done
        self.trained = False
        self.memory = {}  # client -> its state
        self.__dict__.update(hyper)

    def round(self, cohort):
        self.begin()
        local = np.array([self.train(client) for client in cohort])
        weights = SIZES[cohort] / SIZES[cohort].sum()
        if self.aggregation == 'uniform':
            weights = np.full(len(cohort), 1 / len(cohort))
        self.w = self.finish(cohort, local, weights)
        self.number += 1
        self.trained = True

    def train(self, client):
        w, m = self.w, 0.0
        for x, y in batches(client, self.number):
            m = self.momentum * m + self.gradient(client, w, x, y) + WEIGHT_DECAY * w
            w = w - rate_of(self.number) * m
        return w

    def reach(self, client):
        """The update of unit gradients in a round, in learning rates."""
        way = m = 0.0
        for _ in range(STEPS[client]):
            m = self.momentum * m + 1
            way += m
        return way

    def gradient(self, client, w, x, y):
        return backward(w, x, (softmax(forward(w, x)[1]) - np.eye(CLASSES)[y]) / len(y))

    def begin(self):
        pass

    def finish(self, cohort, local, weights):
        """The next global parameters."""
        return weights @ local


class Scaffold(FedAvg):
    c = 0.0

    def gradient(self, client, w, x, y):
        return super().gradient(client, w, x, y) + self.c - self.memory.get(client, 0.0)

    def finish(self, cohort, local, weights):
        change = 0.0
        for client, w in zip(cohort, local):
            old = self.memory.get(client, 0.0)
            step = self.reach(client) * rate_of(self.number)
            self.memory[client] = old - self.c + (self.w - w) / step
            change += self.memory[client] - old
        self.c = self.c + change / len(SIZES)
        return self.w + getattr(self, 'server_lr', 1.0) * (weights @ local - self.w)


class FedNova(FedAvg):
    def finish(self, cohort, local, weights):
        a = np.array([self.reach(client) for client in cohort])
        return self.w - (weights @ a) * (weights / a) @ (self.w - local)


class FedDyn(FedAvg):
    h = 0.0

    def gradient(self, client, w, x, y):
        pull = self.alpha * (w - self.w) - self.memory.get(client, 0.0)
        return super().gradient(client, w, x, y) + pull

    def finish(self, cohort, local, weights):
        for client, w in zip(cohort, local):
            self.memory[client] = self.memory.get(client, 0.0) - self.alpha * (w - self.w)
        self.h = self.h - self.alpha / len(SIZES) * (local - self.w).sum(0)
        return local.mean(0) - self.h / self.alpha


class Moon(FedAvg):
    def __init__(self, w, **settings):
        super().__init__(w, **settings)
        self.first = w

    def gradient(self, client, w, x, y):
        ours = super().gradient(client, w, x, y)
        previous = self.memory.get(client, self.first)
        f, f_g, f_p = (forward(v, x)[0] for v in (w, self.w, previous))
        (towards, by_towards), (away, by_away) = cosine(f, f_g), cosine(f, f_p)
        # The loss is log(1 + exp((away - towards) / tau)).
        slope = self.mu / self.tau / (1 + np.exp((towards - away) / self.tau)) / len(y)
        by_features = slope[:, None] * (by_away - by_towards)
        return ours + backward(w, x, np.zeros((len(y), CLASSES)), by_features)

    def finish(self, cohort, local, weights):
        self.memory.update(zip(cohort, local))
        return weights @ local


class FedCurv(FedAvg):
    last = ()  # (client, Fisher, parameters) of the round before

    def gradient(self, client, w, x, y):
        pull = sum(fisher * (w - left) for other, fisher, left in self.last if other != client)
        return super().gradient(client, w, x, y) + 2 * self.lam * pull

    def finish(self, cohort, local, weights):
        self.last = [(client, self.fisher(client, w), w) for client, w in zip(cohort, local)]
        self.memory.update((client, fisher) for client, fisher, _ in self.last)
        return weights @ local

    def fisher(self, client, w):
        x, y = (array[client] for array in examples())
        alone = [FedAvg.gradient(self, client, w, x[[i]], y[[i]]) for i in range(len(y))]
        return np.mean(np.square(alone), axis=0)


class FedGKD(FedAvg):
    past = ()

    def begin(self):
        if self.trained:  # the initial model is no teacher
            self.past = (*self.past, self.w)[-self.models :]

    def gradient(self, client, w, x, y):
        ours = super().gradient(client, w, x, y)
        if not self.past:
            return ours
        teacher = np.mean(self.past, axis=0)
        p, p_t = (softmax(forward(v, x)[1] / self.tau) for v in (w, teacher))
        # tau^2 from the definition, 1 / tau from the chain rule
        by_logits = self.beta * self.tau * (p - p_t) / len(y)
        return ours + backward(w, x, by_logits)


class FedRS(FedAvg):
    def gradient(self, client, w, x, y):
        counts = np.bincount(examples()[1][client], minlength=CLASSES)
        scale = np.where(counts > 0, 1.0, self.alpha)
        if self.continuous:
            scale = self.alpha + (1 - self.alpha) * counts / counts.max()
        p = softmax(scale * forward(w, x)[1])
        return backward(w, x, scale * (p - np.eye(CLASSES)[y]) / len(y))


class Server(FedAvg):
    """An optimizer on the server; `step` computes the step from the mean update."""

    m = v = 0.0

    def finish(self, cohort, local, weights):
        return self.w + self.server_lr * self.step(weights @ (local - self.w))


class FedAvgM(Server):
    def step(self, delta):
        self.m = self.beta * self.m + (1 - self.beta if self.form == 'ema' else 1) * delta
        return delta + self.beta * self.m if self.form == 'nesterov' else self.m


class FedAdam(Server):
    def step(self, delta):
        self.m = self.b1 * self.m + (1 - self.b1) * delta
        self.v = self.second_moment(delta**2)
        t = self.number + 1
        m, v = self.m / (1 - self.b1**t), self.v / (1 - self.b2**t)
        return m / (np.sqrt(v) + self.eps)

    def second_moment(self, square):
        return self.b2 * self.v + (1 - self.b2) * square


class FedYogi(FedAdam):
    # optax starts both moments of the gradient there, and the gradient is minus the update.
    m, v = -1e-6, 1e-6

    def second_moment(self, square):
        return self.v - (1 - self.b2) * np.sign(self.v - square) * square


class FedAdagrad(Server):
    def step(self, delta):
        self.v = (self.initial if self.number == 0 else self.v) + delta**2
        return delta / np.sqrt(self.v + self.eps)


CLIENTS = FedAvg, Scaffold, FedNova, FedDyn, Moon, FedCurv, FedGKD, FedRS
SERVERS = FedAvgM, FedAdam, FedYogi, FedAdagrad
ORACLES = {oracle.__name__.lower(): oracle for oracle in CLIENTS + SERVERS}
# The engine's client states in the form of `memory`.
MEMORY = {
    'scaffold': lambda states, hyper: states,
    'feddyn': lambda states, hyper: jax.tree.map(lambda s: -hyper['alpha'] * s, states),
    'moon': lambda states, hyper: states[0],
    'fedcurv': lambda states, hyper: states['sums']['fisher'],
}
ADAM = {'server_lr': 0.05, 'b1': 0.8, 'b2': 0.95, 'eps': 1e-3}
CASES = [
    ('fedavg', {}, HEAVY),
    ('scaffold', {}, UNIFORM),
    ('scaffold', {'server_lr': 0.5}, HEAVY),
    ('fednova', {}, UNIFORM),
    ('fednova', {}, HEAVY),
    ('feddyn', {'alpha': 0.3}, HEAVY),
    ('moon', {'mu': 2.0, 'tau': 0.3}, HEAVY),
    ('fedcurv', {'lam': 0.5}, HEAVY),
    ('fedgkd', {'beta': 0.5, 'tau': 2.0, 'models': 2}, HEAVY),
    ('fedrs', {'alpha': 0.5, 'continuous': False}, {}),
    ('fedrs', {'alpha': 0.2, 'continuous': True}, HEAVY),
    ('fedavgm', {'beta': 0.7, 'server_lr': 0.8, 'form': 'heavy_ball'}, {}),
    ('fedavgm', {'beta': 0.6, 'server_lr': 0.8, 'form': 'ema'}, {}),
    ('fedavgm', {'beta': 0.6, 'server_lr': 0.8, 'form': 'nesterov'}, UNIFORM),
    ('fedadam', ADAM, {}),
    ('fedyogi', ADAM, {}),
    ('fedadagrad', {'server_lr': 0.05, 'eps': 1e-3, 'initial': 0.0}, {}),
    ('fedadagrad', {'server_lr': 0.05, 'eps': 1e-2, 'initial': 0.1}, {}),
]


@pytest.mark.parametrize('name, hyper, settings', CASES, ids=str)
def test_rounds_equal_numpy(name, hyper, settings):
    run, server, states = set_up(name, hyper, **settings)
    oracle = ORACLES[name](flat(server.params), **settings, **hyper)
    plain = FedAvg(flat(server.params), **settings)
    for cohort in COHORTS:
        server, _ = run(server, cohort)
        oracle.round(cohort)
        plain.round(cohort)
        assert_allclose(flat(server.params), oracle.w, rtol=1e-5, atol=1e-5)
        kept = MEMORY[name](states, hyper) if name in MEMORY else ()
        for client, memory in oracle.memory.items():
            state = flat(jax.tree.map(lambda leaf, i=client: leaf[i], kept))
            assert_allclose(state, memory, rtol=1e-5, atol=1e-5)
    if name == 'scaffold':
        assert_allclose(flat(server.method), oracle.c, rtol=1e-5, atol=1e-5)
    # The method has an effect, so the comparison is meaningful.
    assert name == 'fedavg' or np.abs(oracle.w - plain.w).max() > 1e-3


@pytest.mark.parametrize(
    'name, hyper', [('fedcurv', {'lam': 0.5}), ('fedgkd', {'beta': 0.5, 'tau': 2.0, 'models': 2})]
)
def test_a_round_without_an_update_is_no_last_round(name, hyper):
    run, server, _ = set_up(name, hyper, **HEAVY)
    oracle = ORACLES[name](flat(server.params), **HEAVY, **hyper)
    for cohort in COHORTS:
        server = server._replace(round=server.round + 1)
        oracle.number += 1
        server, _ = run(server, cohort)
        oracle.round(cohort)
        assert_allclose(flat(server.params), oracle.w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    'special, hyper, limit, of_limit, cohorts',
    [
        ('moon', {'mu': 0.0}, 'fedavg', {}, COHORTS),
        ('fedcurv', {'lam': 0.0}, 'fedavg', {}, COHORTS),
        ('fedavgm', {'beta': 0.0, 'server_lr': 1.0}, 'fedavg', {}, COHORTS),
        ('fednova', {}, 'fedavg', {}, [[0, 3, 5], [5, 0, 3]]),  # equal steps, unequal sizes
        ('scaffold', {}, 'fedavg', {}, COHORTS[:1]),  # the variates are still zero
        ('fedgkd', {'models': 1, 'beta': 1.0}, 'fedavg', {}, COHORTS[:1]),
    ],
)
def test_limits(special, hyper, limit, of_limit, cohorts):
    got, want = (engine(*of, cohorts) for of in ((special, hyper), (limit, of_limit)))
    assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_fedgkd_of_one_model_is_kd_after_round_1():
    ensemble, start, _ = set_up('fedgkd', {'models': 1, 'beta': 0.5, 'tau': 2.0})
    distil, plain, _ = set_up('kd', {'beta': 0.5, 'tau': 2.0})
    start, _ = ensemble(start, COHORTS[0])
    got, _ = ensemble(start, COHORTS[1])
    want, _ = distil(plain._replace(params=start.params, round=start.round), COHORTS[1])
    assert_allclose(flat(got.params), flat(want.params), rtol=1e-6, atol=1e-6)


def test_fedgkd_keeps_no_model_of_a_round_without_an_update():
    method = methods.METHODS['fedgkd'](models=3)
    params = {'w': jnp.ones(2)}
    state, _ = method.init(params, ())

    def merged(state, update):
        view = types.SimpleNamespace(params=params, stats=(), update={'w': update}, state=state)
        return method.merge(view)[1]

    chex.assert_trees_all_equal(merged(state, jnp.zeros(2)), state)  # the initial model still
    trained = merged(state, jnp.ones(2))
    assert trained['trained'] and trained['number'] == 0
    chex.assert_trees_all_equal(merged(trained, jnp.zeros(2)), trained)
    one = merged(trained, jnp.array([0.0, 1.0]))
    assert one['number'] == 1
    assert_allclose(one['past'][0]['w'], [[1, 1], [0, 0]])


def test_fedrs_of_equal_scales_is_fedavg_without_bias():
    # NumPy's FedAvg also accepts parameters without bias.
    run, server, _ = set_up('fedrs', {'alpha': 1.0})
    plain = FedAvg(flat(server.params))
    assert len(plain.w) == FEATURES * (INPUTS + CLASSES)
    for cohort in COHORTS:
        server, _ = run(server, cohort)
        plain.round(cohort)
    assert_allclose(flat(server.params), plain.w, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_feddyn_of_small_alpha_adds_up_updates():
    run, server, _ = set_up('feddyn', {'alpha': 1e-9})
    plainly, plain, _ = set_up('fedavg', {})
    total = 0.0
    for cohort in COHORTS:
        w_g = flat(server.params)
        same = plain._replace(params=server.params, round=server.round)
        _, local_of_fedavg = plainly(same, cohort)
        server, local = run(server, cohort)
        assert local.keys() == set(cohort)
        for client in cohort:
            assert_allclose(local[client], local_of_fedavg[client], rtol=1e-6, atol=1e-6)
        total = total + sum(local[client] - w_g for client in cohort)
        mean = sum(local.values()) / len(cohort)
        assert_allclose(flat(server.params), mean + total / len(SIZES), rtol=1e-5, atol=1e-5)
