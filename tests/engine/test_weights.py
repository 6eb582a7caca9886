"""The weights of the clients' updates: those of the clients that arrive sum to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxfed import methods
from jaxfed.engine.local import Context
from jaxfed.engine.round import weights_of
from jaxfed.engine.stacking import STACKED
from jaxfed.engine.types import RoundInputs, ServerState, Tuned
from jaxfed.methods._steps import effective_steps
from jaxfed.methods.method import CombineView
from jaxfed.models import as_model
from jaxfed.types import Cohort
from tests.engine.test_round import Normalised, make, set_up, training_data

CLIENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=6)


def weights(name, clients, aggregation):
    """(shares, weights) of clients, (epochs, examples) of each."""
    epochs, size = np.array(clients, np.int32).T
    method = make(name)
    model = as_model(Normalised) if name == 'fedbn' else None  # needs batch normalisation
    _, local, *_ = set_up(method, model, aggregation=aggregation, dropout=0.5)
    data = training_data()
    counts = jnp.zeros((1, len(size), 4), jnp.int32)
    data = data._replace(size=jnp.asarray(size)[None], label_counts=counts)
    cohort = Cohort(jnp.arange(len(size))[None], jnp.asarray(epochs)[None])
    server = ServerState((), (), jnp.zeros(1, jnp.int32))
    inputs = RoundInputs(server, cohort, Tuned(jnp.array([0.1])), (), data)
    context = Context(None, method, local, None, None, None, STACKED)
    return epochs, size, *map(np.asarray, weights_of(context, inputs, 0))


@pytest.mark.parametrize('aggregation', ['size', 'uniform'])
@pytest.mark.parametrize('name', list(methods.METHODS))
def test_weights_of_arriving_clients_sum_to_one(name, aggregation):
    @settings(max_examples=10, derandomize=True)
    @given(CLIENTS)
    def check(clients):
        epochs, size, shares, got = weights(name, clients, aggregation)
        arrived = (epochs > 0) & (size > 0)
        assert shares.sum() == pytest.approx(float(arrived.any()), abs=1e-6)
        assert not shares[~arrived].any() and not got[~arrived].any()
        assert (shares[arrived] > 0).all()
        if name == 'fednova':
            steps = np.asarray(effective_steps(epochs * -(-size // 5), 0.9))
            got = got * steps / max(np.dot(shares, steps), 1e-9)
        if name == 'dp':
            got = got * len(clients) * 0.5 / max(arrived.sum(), 1)
        assert got.sum() == pytest.approx(float(arrived.any()), abs=1e-5)

    check()


def test_a_lost_client_has_neither_examples_nor_labels_nor_steps():
    seen = []

    def weigh(cohort):
        seen.append(cohort)
        return cohort.weights

    data = training_data()
    counts = jnp.asarray([[[3, 1, 0, 0], [0, 2, 0, 0], [1, 1, 1, 1]]])
    data = data._replace(size=counts.sum(-1), label_counts=counts)
    _, local, *_ = set_up(methods.Method(weigh=weigh))
    cohort = Cohort(jnp.array([[2, 0, 1]]), jnp.array([[1, 0, 2]]))
    server = ServerState((), (), jnp.zeros(1, jnp.int32))
    inputs = RoundInputs(server, cohort, Tuned(jnp.array([0.1])), (), data)
    context = Context(None, methods.Method(weigh=weigh), local, None, None, None, STACKED)
    weights_of(context, inputs, 0)
    assert seen[0].size.tolist() == [4, 0, 2]
    assert seen[0].label_counts.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 2, 0, 0]]
    assert seen[0].steps.tolist() == [1, 0, 2]


@pytest.mark.parametrize('name', ['median', 'trimmed_mean trim=0.3', 'krum', 'multikrum'])
@pytest.mark.parametrize('arrived', [6, 5, 4, 2, 1])
def test_equal_updates_combine_to_themselves(name, arrived):
    rng = np.random.default_rng(arrived)
    came = jnp.asarray(rng.permutation(6) < arrived)
    update = {'kernel': jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}
    rows = jax.tree.map(lambda leaf: came[:, None, None] * leaf, update)
    share = came * jnp.asarray(rng.integers(1, 9, 6), jnp.float32)
    got = make(name).combine(CombineView(rows, share / share.sum(), came, None))
    np.testing.assert_allclose(got['kernel'], update['kernel'], rtol=1e-5)
