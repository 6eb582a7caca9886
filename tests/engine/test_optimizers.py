"""The optimizers of local training against formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from jaxfed.engine.optimizers import OPTIMIZERS, local_optimizer

GRADIENTS = np.array([[3.0, -4.0], [0.3, 0.4], [-1.0, 2.0], [0.5, 0.5]])
START = np.array([1.0, -2.0])


def run(name, gradients=GRADIENTS, *, momentum=0.0, weight_decay=0.0, **changes):
    """The parameters after every step."""
    optimizer = local_optimizer(
        name, jnp.float32(0.1), momentum=momentum, weight_decay=weight_decay, **changes
    )
    params = jnp.asarray(START, jnp.float32)
    state, steps = optimizer.init(params), []
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(jnp.asarray(gradient, jnp.float32), state, params)
        params = optax.apply_updates(params, updates)
        steps.append(params)
    return np.stack(steps)


def by_hand(step, gradients=GRADIENTS):
    w, steps = START.copy(), []
    for number, gradient in enumerate(gradients, 1):
        w = w - 0.1 * step(gradient, w, number)
        steps.append(w)
    return np.stack(steps)


@pytest.mark.parametrize('nesterov', [False, True])
def test_sgd(nesterov):
    m = np.zeros(2)

    def step(gradient, w, number):
        g = gradient + 0.5 * w
        m[:] = 0.9 * m + g
        return g + 0.9 * m if nesterov else m

    found = run('nesterov' if nesterov else 'sgd', momentum=0.9, weight_decay=0.5)
    assert_allclose(found, by_hand(step), rtol=1e-5)


@pytest.mark.parametrize('decoupled', [False, True])
def test_adam(decoupled):
    m, v = np.zeros(2), np.zeros(2)

    def step(gradient, w, number):
        g = gradient if decoupled else gradient + 0.5 * w
        m[:], v[:] = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        direction = m / (1 - 0.9**number) / (np.sqrt(v / (1 - 0.999**number)) + 1e-8)
        return direction + 0.5 * w if decoupled else direction

    found = run('adamw' if decoupled else 'adam', weight_decay=0.5)
    assert_allclose(found, by_hand(step), rtol=1e-4)


def test_adagrad():
    v = np.full(2, 0.1)

    def step(gradient, w, number):
        v[:] += gradient**2
        return gradient / np.sqrt(v + 1e-7)

    assert_allclose(run('adagrad'), by_hand(step), rtol=1e-5)


def test_clipping_limits_the_norm_before_weight_decay():
    def step(gradient, w, number):
        norm = np.linalg.norm(gradient)
        return gradient * min(1, 1 / norm) + 0.5 * w

    assert_allclose(run('sgd', weight_decay=0.5, clip_norm=1.0), by_hand(step), rtol=1e-5)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_accumulation_is_a_step_with_the_mean_gradient(name):
    found = run(name, momentum=0.9, weight_decay=0.1, accumulate_steps=2)
    pairs = GRADIENTS.reshape(2, 2, 2).mean(axis=1)
    want = run(name, pairs, momentum=0.9, weight_decay=0.1)
    assert_allclose(found[1::2], want, rtol=1e-5)
    assert_allclose(found[0], START)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_steps_that_do_not_train_an_array_change_nothing_of_it(name):
    settings = {'momentum': 0.9, 'weight_decay': 0.1}
    optimizer = local_optimizer(name, jnp.float32(0.1), **settings, each_array=True)
    params = {'a': jnp.asarray(START, jnp.float32), 'b': jnp.asarray(START, jnp.float32)}
    state, trains = optimizer.init(params), [(True, False), (True, False), (False, True)]
    for gradient, (a, b) in zip(GRADIENTS, trains):
        mask = {'a': jnp.bool_(a), 'b': jnp.bool_(b)}
        both = jax.tree.map(lambda keep, g=gradient: keep * jnp.float32(g), mask)
        updates, state = jax.jit(optimizer.update)(both, state, params, mask=mask)
        params = optax.apply_updates(params, updates)
    assert_allclose(params['a'], run(name, GRADIENTS[:2], **settings)[-1], rtol=1e-5)
    assert_allclose(params['b'], run(name, GRADIENTS[2:3], **settings)[-1], rtol=1e-5)


def test_sgd_without_momentum_has_no_buffer():
    optimizer = local_optimizer('sgd', 0.1, momentum=0.0, weight_decay=0.0)
    assert not jax.tree.leaves(optimizer.init(jnp.ones(3)))
