"""A round of several experiments in one program equals the plain loop over each of them."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed import methods
from jaxfed.engine.devices import make_mesh, replicate
from jaxfed.engine.execution import lower_round, state_rows
from jaxfed.engine.round import Round, make_round
from jaxfed.engine.stacking import STACKED, UNROLLED, row
from jaxfed.engine.types import ServerState, Tuned
from jaxfed.internal.backend import compile_all
from jaxfed.runs.feed import plan_wave
from jaxfed.types import Cohort
from tests import oracle
from tests.engine.test_round import SIZES, make, normalise, set_up, training_data
from tests.rounds import run_experiments

X = 3
# The clients and epochs, rate, momentum and weight decay of each experiment.
COHORTS = Cohort(
    np.array([[0, 1, 4], [5, 1, 2], [2, 3, 0]], np.int32),
    np.array([[2, 1, 2], [2, 0, 2], [1, 2, 0]], np.int32),
)
RATES = np.array([0.03, 0.1, 0.05], np.float32)
MOMENTA = np.array([0.0, 0.9, 0.5], np.float32)
DECAYS = np.array([0.0, 1e-2, 1e-3], np.float32)


def experiments(method):
    """Servers, clients' states and data, all different between experiments."""
    model, settings, _, _, _ = set_up(method)
    servers, every, data = [], [], []
    for x in range(X):
        params = model.init(jax.random.key(x))
        server_state, client_state = method.init(params, model.stats)
        servers.append(ServerState(params, server_state, jnp.int32(x), model.stats))
        every.append(jax.tree.map(lambda s: np.stack([s] * len(SIZES)), client_state))
        base = training_data()
        # Other examples for the same clients.
        order = np.random.default_rng(x).permutation(np.asarray(base.order)).astype(np.int32)
        y = np.asarray(base.y)
        counts = [
            np.bincount(y[order[start : start + n]], minlength=base.label_counts.shape[1])
            for start, n in zip(base.start, base.size)
        ]
        data.append(
            base._replace(
                order=jnp.asarray(order),
                label_counts=jnp.asarray(np.stack(counts).astype(np.int32)),
                auxiliary=base.auxiliary._replace(x=base.auxiliary.x + 0.1 * x),
            )
        )
    return model, settings, servers, every, data


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def together(method, tune, hyper, *, devices, lanes, stack, cohorts=COHORTS):
    model, settings, servers, states, data = experiments(method)
    mesh = make_mesh(devices)
    programs = make_round(
        model, method, settings, lambda _, x: normalise(x), normalise,
        tune=tune, mesh=mesh, stack=stack,
    )  # fmt: skip
    combined = stacked([each._replace(x=()) for each in data])._replace(x=data[0].x)
    size = np.array(SIZES)[cohorts.clients]
    steps = (cohorts.epochs * -(-size // settings.batch_size)).ravel()
    plan = plan_wave(steps, np.flatnonzero(steps), lanes=lanes, devices=devices)
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)
    server, combined, keys = replicate(
        (stacked(servers), combined, jax.random.split(jax.random.key(5), X)), mesh
    )
    tuned = Tuned(RATES, MOMENTA, DECAYS, hyperparameters=hyper)
    arguments = (mesh, server, rows, cohorts, plan, tuned, keys, combined)
    server, metrics, _ = run_experiments(Round(*map(jax.jit, programs)), *arguments)
    return server, rows, metrics, (programs, arguments)


def by_oracle(method, x, hyper_of):
    model, settings, servers, states, data = experiments(method)
    slots = np.flatnonzero(COHORTS.epochs[x])
    clients = COHORTS.clients[x][slots]
    settings = settings._replace(momentum=float(MOMENTA[x]), weight_decay=float(DECAYS[x]))
    keys = jax.random.split(jax.random.key(5), X)
    params, stats, state, rows, loss = oracle.run_round(
        model, hyper_of(x), settings, normalise, servers[x], clients,
        jax.tree.map(lambda s: jnp.asarray(s[clients]), states[x]), jnp.float32(RATES[x]), keys[x],
        data[x], epochs=[int(e) for e in COHORTS.epochs[x][slots]],
    )  # fmt: skip
    return clients, (params, stats, state), rows, loss


NUMBERS = {
    'fedlmd+fedavgm': {'fedlmd.tau': (1.0, 2.0, 3.0), 'fedavgm.beta': (0.0, 0.5, 0.9)},
    'scaffold': {},
    'fednova': {},
    'fedcad+fedadam': {'fedcad.gamma': (0.3, 0.5, 0.9), 'fedadam.b1': (0.0, 0.5, 0.9)},
    'drifting chained': {},
    'moon+fedcurv': {'moon.mu': (0.1, 1.0, 5.0), 'fedcurv.lam': (0.0, 1.0, 10.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    'stack, devices, lanes, name',
    [
        *((UNROLLED, 8, 1, name) for name in ('scaffold', 'moon+fedcurv', 'drifting chained')),
        *((STACKED, 2, 2, name) for name in ('fedlmd+fedavgm', 'fednova', 'fedcad+fedadam')),
        (STACKED, 2, 2, 'drifting chained'),
    ],
)
def test_round_of_several_experiments_equals_plain_loop_over_each(name, stack, devices, lanes):
    numbers = NUMBERS[name]
    parts = [] if 'drifting' in name else methods.resolve(name, {})

    def with_values(values):
        return methods.build(
            [
                part._replace(
                    hyperparameters={
                        key: values.get(f'{part.name}.{key}', value)
                        for key, value in part.hyperparameters.items()
                    }
                )
                for part in parts
            ]
        )

    method = make(name)
    hyper = {key: np.array(values, np.float32) for key, values in numbers.items()} or ()
    server, rows, metrics, _ = together(
        method, with_values if numbers else None, hyper, devices=devices, lanes=lanes, stack=stack
    )
    for x in range(X):

        def hyper_of(x):
            return with_values({key: v[x] for key, v in numbers.items()}) if numbers else method

        clients, want, want_rows, loss = by_oracle(method, x, hyper_of)
        got = row((server.params, server.stats, server.method), x)
        chex.assert_trees_all_close(got, want, rtol=2e-5, atol=2e-5)
        got_rows = jax.tree.map(lambda s, x=x, c=clients: s[x * len(SIZES) + c], rows)
        chex.assert_trees_all_close(got_rows, want_rows, rtol=2e-5, atol=2e-5)
        assert float(metrics.train_loss[x]) == pytest.approx(loss, rel=1e-5)
        assert int(server.round[x]) == x + 1


@pytest.mark.slow
def test_experiment_whose_clients_are_all_lost_does_not_change():
    method = make('scaffold+fedavgm')
    cohorts = COHORTS._replace(epochs=COHORTS.epochs * np.array([[1], [0], [1]], np.int32))
    _, _, servers, states, _ = experiments(method)
    server, rows, _, _ = together(
        method, None, (), devices=2, lanes=1, stack=UNROLLED, cohorts=cohorts
    )
    lost = servers[1]._replace(round=servers[1].round + 1)
    chex.assert_trees_all_equal(row(server, 1), lost)
    before = np.concatenate([jax.tree.leaves(s)[0] for s in states])
    after = jax.tree.leaves(rows)[0]
    changed = np.flatnonzero((after != before).reshape(len(after), -1).any(axis=1))
    want = {*state_rows(cohorts, np.flatnonzero(cohorts.epochs.ravel()), len(SIZES)).tolist()}
    assert {*changed.tolist()} == want
    assert not {*range(len(SIZES), 2 * len(SIZES))} & want  # the second experiment


def test_devices_add_up_one_update_of_each_experiment_and_gather_nothing():
    method = make('scaffold')
    _, _, _, (programs, arguments) = together(method, None, (), devices=8, lanes=1, stack=UNROLLED)
    compiled = compile_all(lower_round(programs, *arguments))
    train, merge = (program.as_text() for program in compiled)
    collectives = ('all-reduce', 'all-gather', 'all-to-all', 'collective-permute', 'reduce-scatter')
    assert not [word for word in collectives if word in train]
    assert [word for word in collectives if word in merge] == ['all-reduce']
    # The sums have the server's size: X updates, X uploads, X losses and X numbers of examples.
    server = arguments[1]
    most = 2 * sum(leaf.size for leaf in jax.tree.leaves(server.params)) + 2 * X
    added = sum(
        int(np.prod([int(n) for n in shape.split(',') if n] or [1]))
        for line in merge.splitlines()
        if ' all-reduce(' in line
        for shape in _shapes(line.split('=')[1].split(' all-reduce(')[0])
    )
    assert 0 < added <= most


def _shapes(text):
    return re.findall(r'f32\[([\d,]*)\]', text)
