"""Tests of the outputs of fixed parameters."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from jaxfed.engine.fixed import evaluate_fixed
from jaxfed.engine.stacking import row
from jaxfed.models import make_model
from jaxfed.types import Model, Outputs

CLIENTS, BATCH, SHAPE = 3, 2, (8, 8, 1)
# The mapped ones of parameters, images and statistics.
AXES = {
    'one teacher': (None, 0, None),
    'a teacher each': (0, 0, 0),
    'parameters of each client': (0, 0, None),
    'statistics of each client': (None, 0, 0),
    'one batch': (0, None, 0),
}


@pytest.fixture(scope='module')
def network():
    return make_model('resnet8', num_classes=3, input_shape=SHAPE)


def arguments(network, axes):
    params, stats = network.init(jax.random.key(0)), network.stats
    x = jax.random.normal(jax.random.key(1), (BATCH, *SHAPE))
    factors = 1 + jnp.arange(CLIENTS) / 10

    def stack(tree, axis):
        if axis is None:
            return tree
        return jax.tree.map(lambda leaf: jax.vmap(jnp.multiply, (0, None))(factors, leaf), tree)

    return [stack(tree, axis) for tree, axis in zip((params, x, stats), axes, strict=True)]


@pytest.mark.parametrize('axes', AXES.values(), ids=AXES)
def test_mapped_outputs_are_those_of_each_client(network, axes):
    arrays = arguments(network, axes)
    mapped = jax.jit(jax.vmap(functools.partial(evaluate_fixed, network), axes))(*arrays)
    for client in range(CLIENTS):
        params, x, stats = (
            tree if axis is None else row(tree, client)
            for tree, axis in zip(arrays, axes, strict=True)
        )
        outputs = network.evaluate(params, x, stats)
        chex.assert_trees_all_close(
            row(mapped, client), outputs._replace(stats=()), rtol=1e-4, atol=1e-5
        )


def test_clients_that_share_parameters_are_one_batch():
    shapes = []

    def apply(params, x):
        shapes.append(x.shape)
        return Outputs(params * x.reshape(len(x), -1), params + x)

    model = Model(lambda key: jnp.ones(()), apply)
    x = jax.random.normal(jax.random.key(0), (5, CLIENTS, BATCH, *SHAPE))
    of_clients = jax.vmap(functools.partial(evaluate_fixed, model), (None, 0, None))
    outputs = jax.vmap(of_clients, (None, 0, None))(jnp.float32(2), x, ())
    assert shapes[-1] == (5 * CLIENTS * BATCH, *SHAPE)
    chex.assert_trees_all_close(outputs.logits, 2 * x.reshape(5, CLIENTS, BATCH, -1))
    chex.assert_trees_all_close(outputs.features, 2 + x)


def test_parameters_of_which_some_are_mapped():
    model = Model(lambda key: {}, lambda params, x: Outputs(params['w'] * x + params['b'], x))
    x = jnp.arange(12.0).reshape(CLIENTS, 4, 1)
    params = {'w': jnp.arange(1.0, 1 + CLIENTS), 'b': jnp.float32(1)}
    axes = ({'w': 0, 'b': None}, 0, None)
    outputs = jax.vmap(functools.partial(evaluate_fixed, model), axes)(params, x, ())
    chex.assert_trees_all_close(outputs.logits, params['w'][:, None, None] * x + 1)


def test_fixed_parameters_get_no_gradient(network):
    params, x, stats = arguments(network, AXES['one teacher'])

    def loss(params, x):
        outputs = evaluate_fixed(network, params, x, stats)
        return outputs.logits.sum() + outputs.features.sum()

    gradients = jax.jit(jax.grad(loss, (0, 1)))(params, x[0])
    chex.assert_trees_all_equal(gradients, jax.tree.map(jnp.zeros_like, gradients))
    mapped = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, x)
    chex.assert_trees_all_equal(mapped, jax.tree.map(jnp.zeros_like, mapped))
