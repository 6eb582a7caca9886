"""Functions of the learning rate as optimizers of the clients."""

import functools
import json
import re

import jax
import optax
import pytest
from numpy.testing import assert_allclose

import jaxfed
from jaxfed.engine import optimizers
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.own_optimizer import name_optimizers

QUICK = {'model': 'mlp', 'partition': 'iid', 'rounds': 2, 'local_epochs': 1, 'clients_per_round': 2}


@pytest.fixture(autouse=True)
def registry():
    before = dict(optimizers.OPTIMIZERS)
    yield
    optimizers.OPTIMIZERS.clear()
    optimizers.OPTIMIZERS.update(before)


def names(*functions):
    return [
        config.optimizer
        for config in name_optimizers(jaxfed.Config(optimizer=f) for f in functions)
    ]


def test_optimizers_that_read_the_momentum():
    names(optax.lion)
    optimizers.OPTIMIZERS['own'] = optimizers.of_gradient(optax.adamax)
    optimizers.OPTIMIZERS['three'] = lambda learning_rate, momentum, weight_decay: None
    reading = [name for name in optimizers.OPTIMIZERS if optimizers.reads_momentum(name)]
    assert reading == ['sgd', 'nesterov', 'three']


def test_names():
    partial = functools.partial(optax.lion, b1=0.8)
    assert names('sgd', optax.lion, partial) == ['sgd', 'optax.lion', 'optax.lion(b1=0.8)']
    twice = functools.partial(functools.partial(optax.lion, b1=0.8), b2=0.9)
    assert names(twice) == ['optax.lion(b1=0.8, b2=0.9)']


@pytest.mark.parametrize(
    'wrong, message',
    [
        ([optax.adam(0.1)], 'must be a name or a function .* got a GradientTransformation'),
        ([None], 'must be a name or a function .* got a NoneType'),
        ([lambda rate: 5], 'must be a function of the learning rate that returns an optimizer'),
        ([lambda: optax.sgd(0.1)], 'must be a function of the learning rate'),
        ([optax.lbfgs], 'must be a function of the learning rate'),
        ([lambda rate: optax.sgd(rate), lambda rate: optax.adam(rate)], 'have the name .*<lambda>'),
    ],
)
def test_what_is_no_optimizer(wrong, message):
    with pytest.raises(ValueError, match=message):
        names(*wrong)


def broken(learning_rate, momentum, weight_decay):
    raise KeyError('rate')


@pytest.mark.parametrize(
    'function, reason',
    [
        (lambda rate: optax.sgd(rate), r' must be a .*\(TypeError: .* 1 positional .*\)\.'),
        (lambda *_: None, r' must be .* returns an optimizer .*\(AttributeError: .*None.*\)\.'),
        (broken, r" \(test_own_optimizer\.py, line \d+\) must be a .*\(KeyError: 'rate'\)\."),
    ],
)
def test_a_registered_function_that_makes_no_optimizer(function, reason):
    optimizers.OPTIMIZERS['mine'] = function
    with pytest.raises(ValueError) as error:
        make_experiment(jaxfed.Config(**QUICK, optimizer='mine'))
    assert re.fullmatch(r"OPTIMIZERS\['mine'\]" + reason, str(error.value))


@pytest.mark.slow
def test_a_function_trains_like_the_optimizer_of_that_name(cheap_runs, tmp_path):
    def run(name, optimizer, **changes):
        settings = {**QUICK, 'learning_rate': 0.005, **changes}
        config = jaxfed.Config(optimizer=optimizer, workdir=str(tmp_path / name), **settings)
        return jaxfed.simulate(config, quiet=True)

    own, built_in = run('own', optax.adam), run('built_in', 'adam')
    jax.tree.map(assert_allclose, own.params, built_in.params)
    config = json.loads((tmp_path / 'own' / 'config.json').read_text())
    assert config['optimizer'] == 'optax.adam'
    with pytest.raises(ValueError, match=r'--momentum=0\.5 has no effect .*=optax\.lion;'):
        run('momentum', optax.lion, momentum=0.5)
    with pytest.raises(ValueError, match='--method=scaffold reads the local steps'):
        run('scaffold', optax.lion, method='scaffold')


@pytest.mark.slow
def test_functions_in_several_experiments(cheap_runs, tmp_path):
    configs = {
        'lion': jaxfed.Config(optimizer=optax.lion, learning_rate=0.001, **QUICK),
        'sgd': jaxfed.Config(**QUICK),
    }
    results = jaxfed.simulate_all(configs, tmp_path / 'both', quiet=True)
    assert results['lion'].summary['experiments'] == 1
    again = jaxfed.simulate_all(configs, tmp_path / 'both', quiet=True)
    assert again['lion'].metrics == results['lion'].metrics
