"""Networks of users: arguments, results, batch normalisation, dropout, linen."""

import functools
import subprocess
import sys
from math import prod

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxfed
from jaxfed import methods
from jaxfed.models import MODELS, as_model, check_network, make_model, options
from jaxfed.runs import prepare
from jaxfed.runs.experiment import make_experiment
from jaxfed.types import Model, Outputs

SHAPE = {'input_shape': (3, 3, 1), 'num_classes': 3}
MASK = np.array([True, True, False])


class Logits(nnx.Module):
    """One hidden layer; returns logits alone and declares few arguments."""

    def __init__(self, input_shape, num_classes, rngs, width=5):
        self.hidden = nnx.Linear(prod(input_shape), width, rngs=rngs)
        self.classifier = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.classifier(nnx.relu(self.hidden(x.reshape(len(x), -1))))


class Random(Logits):
    """With batch normalisation and dropout."""

    def __init__(self, input_shape, num_classes, rngs):
        super().__init__(input_shape, num_classes, rngs)
        self.norm = nnx.BatchNorm(5, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.hidden(x.reshape(len(x), -1)))
        return self.classifier(self.dropout(nnx.relu(x)))


class Linen(linen.Module):
    """The same layers in linen."""

    num_classes: int
    width: int = 5

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(self.width)(x.reshape(len(x), -1))
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = linen.Dropout(0.5, deterministic=not train)(linen.relu(x))
        features = linen.Dense(4)(x)
        return Outputs(linen.Dense(self.num_classes, name='classifier')(features), features)


def sequential(num_classes, rngs):
    return nnx.Sequential(
        lambda x: x.reshape(len(x), -1), nnx.Linear(9, num_classes, rngs=rngs), nnx.log_softmax
    )


def make(network, monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', network)
    model = make_model('mine', **SHAPE)
    check_network('mine', model, **SHAPE)
    return model


@pytest.mark.parametrize(
    ('network', 'width', 'options_'),
    [
        (Logits, 3, {'width'}),
        (Random, 3, set()),
        (Linen, 4, {'width'}),
        (lambda num_classes: Linen(num_classes), 4, set()),
        (sequential, 3, set()),
        (functools.partial(Logits, width=7), 3, {'width'}),
        (lambda **values: Logits(values['input_shape'], 3, values['rngs']), 3, set()),
    ],
)
def test_networks_declare_what_they_take(network, width, options_, monkeypatch):
    model = make(network, monkeypatch)
    assert set(options('mine')) == options_
    x = np.ones((2, 3, 3, 1), np.float32)
    params = model.init(jax.random.key(0))
    logits, features, stats = model.evaluate(params, x, model.stats)
    assert logits.shape == (2, 3)
    assert features.shape == (2, width)
    assert stats == ()
    if width == 3:  # logits alone are their own features
        np.testing.assert_array_equal(logits, features)


class Norm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(1, momentum=0.9, rngs=rngs)

    def __call__(self, x):
        return self.norm(x).reshape(-1, 1)


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        return linen.BatchNorm(not train, momentum=0.9, name='norm')(x).reshape(-1, 1)


class LinenNormByKeyword(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        return linen.BatchNorm(not train, momentum=0.9, name='norm')(x=x).reshape(-1, 1)


@pytest.mark.parametrize('network', [Norm, LinenNorm, LinenNormByKeyword])
def test_batch_statistics_are_of_the_real_examples(network, monkeypatch):
    model = make_model_of(network, monkeypatch)
    params = model.init(jax.random.key(0))
    x = np.array([1.0, 3.0, 100.0], np.float32).reshape(3, 1, 1, 1)
    outputs = model.train(params, x, model.stats, MASK, jax.random.key(1))
    np.testing.assert_allclose(outputs.stats['norm']['mean'], [0.1 * 2], rtol=1e-6)
    np.testing.assert_allclose(outputs.stats['norm']['var'], [0.9 + 0.1 * 1], rtol=1e-6)
    np.testing.assert_allclose(outputs.logits[:2].ravel(), [-1, 1], rtol=1e-4)
    evaluated = model.evaluate(params, x, {'norm': {'mean': np.ones(1), 'var': np.full(1, 4.0)}})
    np.testing.assert_allclose(evaluated.logits.ravel(), [0, 1, 49.5], rtol=1e-4)


class Masked(nnx.Module):
    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x, mask):
        x = x.reshape(-1, 1) * self.scale
        return x if mask is None else x - jnp.mean(x, where=mask[:, None])


class LinenMasked(linen.Module):
    @linen.compact
    def __call__(self, x, mask):
        x = x.reshape(-1, 1) * self.param('scale', linen.initializers.ones, ())
        return x if mask is None else x - jnp.mean(x, where=mask[:, None])


@pytest.mark.parametrize('network', [Masked, LinenMasked])
def test_a_network_that_declares_the_mask_alone_receives_it(network, monkeypatch):
    model = make_model_of(network, monkeypatch)
    assert not model.random and model.stats == ()
    params, x = model.init(jax.random.key(0)), np.array([1.0, 3.0, 100.0]).reshape(3, 1, 1, 1)
    trained = model.train(params, x, (), MASK)
    np.testing.assert_allclose(trained.logits.ravel(), [-1, 1, 98], rtol=1e-6)
    np.testing.assert_array_equal(model.evaluate(params, x, ()).logits.ravel(), x.ravel())


def make_model_of(network, monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', network)
    return make_model('mine', **SHAPE)


class TwoDropouts(nnx.Module):
    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones(()))
        self.first = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = x.reshape(len(x), -1) * self.scale
        return Outputs(self.first(x), self.second(x))


def test_dropout_depends_on_the_key_alone():
    model = as_model(TwoDropouts)
    assert model.random
    assert model.stats == ()
    params, x = model.init(jax.random.key(0)), np.ones((3, 8, 8, 1), np.float32)

    def outputs(seed):
        return model.train(params, x, (), MASK, jax.random.key(seed))

    chex.assert_trees_all_equal(outputs(1), outputs(1))
    for a, b in ((outputs(1).logits, outputs(2).logits), outputs(1)[:2]):
        assert not np.array_equal(a, b)
    assert set(np.unique(outputs(1).logits)) == {0, 2}
    np.testing.assert_array_equal(model.evaluate(params, x, ()).logits, 1)
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    mapped = jax.vmap(lambda key: model.train(params, x, (), MASK, key))(keys)
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[1], mapped), outputs(1))


def test_custom_statistics_start_at_their_initial_values():
    class Count(nnx.Module):
        def __init__(self, rngs):
            self.scale = nnx.Param(jnp.ones(1))
            self.seen = nnx.BatchStat(jnp.full((), 5.0))
            self.mean = nnx.BatchStat(jnp.full((), 0.5))  # as a batch normalisation names its own

        def __call__(self, x, mask):
            if mask is not None:
                self.seen[...] += mask.sum()
            return x.reshape(-1, 1) * self.scale

    model = as_model(Count)
    assert float(model.stats['seen']) == 5 and float(model.stats['mean']) == 0.5
    x = np.ones((3, 1, 1, 1), np.float32)
    trained = model.train(model.init(jax.random.key(0)), x, model.stats, MASK)
    assert float(trained.stats['seen']) == 7


class NeedsDepth(Logits):
    def __init__(self, depth, rngs):
        pass


class OtherVariable(nnx.Module):
    def __init__(self, rngs):
        self.cache = nnx.Cache(jnp.zeros(3))


class NoStream(nnx.Module):
    def __init__(self):
        pass


class Fails(Logits):
    def __init__(self, rngs):
        self.hidden = rngs.missing.value


class ListOfLayers(nnx.Module):
    def __init__(self, rngs):
        self.layers = [nnx.Linear(3, 3, rngs=rngs)]


class Branches(Logits):
    def __call__(self, x):
        return super().__call__(x if x.sum() > 0 else -x)


class Pair(Logits):
    def __call__(self, x):
        return super().__call__(x), x


class WideLogits(Logits):
    def __init__(self, input_shape, rngs):
        super().__init__(input_shape, 7, rngs)


class Maps(Logits):
    def __call__(self, x):
        return Outputs(super().__call__(x), x)


class NoParameters(nnx.Module):
    def __init__(self, rngs):
        pass

    def __call__(self, x):
        return x[:, :, 0, 0]


class TwoInputs(Logits):
    def __call__(self, x, y):
        return super().__call__(x + y)


class DropoutWithoutKeys(Logits):
    def __init__(self, input_shape, num_classes, rngs):
        super().__init__(input_shape, num_classes, rngs)
        self.dropout = nnx.Dropout(0.5)

    def __call__(self, x):
        return self.dropout(super().__call__(x))


@pytest.mark.parametrize(
    ('network', 'message'),
    [
        (NeedsDepth, "--model=mine requires 'depth', .* input_shape, .* Give 'depth' a default"),
        (OtherVariable, 'other variables than nnx.Param and nnx.BatchStat: cache'),
        (NoStream, '--model=mine must declare rngs, .* got NoStream'),
        (Fails, r'--model=mine fails when it is made \(test_custom\.py, line \d+\): AttributeE'),
        (ListOfLayers, r'--model=mine fails when it is made .*: Found data .*nnx\.List or nnx\.'),
        (Branches, r'--model=mine fails on images .* \(test_custom\.py, line \d+\): TracerBool'),
        (linen.Dense(3), r"MODELS\['mine'\] must be a class or a function .* instance of Dense;"),
        (None, r"MODELS\['mine'\] must be a class or a function .* instance of NoneType;"),
        (Pair, '--model=mine fails .* must return logits .*Outputs.*, got tuple'),
        (WideLogits, r'must return float logits of shape \(2, 3\) .* got float32 \(2, 7\)'),
        (Maps, r'must return features of shape \(2, F\) for 2 images, got \(2, 3, 3, 1\)'),
        (NoParameters, '--model=mine has no parameters'),
        (TwoInputs, "--model=mine fails on images .*TypeError: .* missing .* 'y'"),
        (DropoutWithoutKeys, '--model=mine fails on images .*rngs.* Dropout'),
    ],
)
def test_invalid_networks_raise_one_line(network, message, monkeypatch):
    with pytest.raises(ValueError, match=message) as raised:
        make(network, monkeypatch)
    assert '\n' not in str(raised.value)


class Counted(Logits):
    def __init__(self, input_shape, num_classes, rngs, width: int = 16):
        super().__init__(input_shape, num_classes, rngs)
        assert type(width) is int


def test_a_width_that_counts_may_be_a_float(monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', Counted)
    make_model('mine', **SHAPE, width=8.0)
    with pytest.raises(ValueError, match=r'--width must be an integer, got 8\.5'):
        make_model('mine', **SHAPE, width=8.5)


@pytest.fixture
def config(cheap_runs, tmp_path, monkeypatch):
    """Settings of a tiny run with a custom network."""
    x = np.random.default_rng(0).integers(0, 256, (42, 3, 3, 1)).astype(np.uint8)
    y = np.arange(42) % 3
    np.savez(tmp_path / 'tiny.npz', x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    monkeypatch.setitem(MODELS, 'mine', Random)
    return functools.partial(
        jaxfed.Config, dataset='npz', npz=str(tmp_path / 'tiny.npz'), model='mine', num_clients=3,
        clients_per_round=2, alpha=1.0, batch_size=5, rounds=2, local_epochs=1,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('network', [Random, Linen])
def test_dropout_does_not_depend_on_devices(network, config, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', network)
    one = jaxfed.simulate(config(devices='1', lanes=2, workdir=str(tmp_path / 'one')))
    two = jaxfed.simulate(config(devices='2', lanes=1, workdir=str(tmp_path / 'two')))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-6)
    close((one.params, one.stats), (two.params, two.stats))
    start = make_model('mine', **SHAPE).stats
    changed = jax.tree.map(lambda new, old: not np.allclose(new, old), one.stats, start)
    assert all(jax.tree.leaves(changed))
    loaded = jaxfed.load(one.workdir)
    chex.assert_trees_all_equal((loaded.params, loaded.stats), (one.params, one.stats))


@pytest.mark.slow
def test_dropout_after_an_interruption(config, tmp_path, monkeypatch):
    settings = functools.partial(config, devices='1', lanes=2, checkpoint_every=1)
    whole = jaxfed.simulate(settings(workdir=str(tmp_path / 'whole')))
    run_waves, calls = prepare.run_waves, []

    def stop(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError('interrupted')
        return run_waves(*arguments, **keywords)

    monkeypatch.setattr(prepare, 'run_waves', stop)
    with pytest.raises(OSError, match='interrupted'):
        jaxfed.simulate(settings(workdir=str(tmp_path / 'run')))
    resumed = jaxfed.simulate(settings(workdir=str(tmp_path / 'run')))
    assert len(calls) == 3  # one round more
    chex.assert_trees_all_equal((whole.params, whole.stats), (resumed.params, resumed.stats))


def test_methods_of_features_use_the_logits(config, monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', Logits)
    make_experiment(config(), methods.METHODS['moon']())
    with pytest.raises(ValueError, match=r'--model=mine fails .* requires the input of the class'):
        make_experiment(config(), methods.METHODS['moon'](projection=True))
    monkeypatch.setitem(MODELS, 'mine', sequential)
    with pytest.raises(ValueError, match="must hold a 'classifier'"):
        make_experiment(config(), methods.METHODS['moon'](projection=True))


def test_a_failed_check_leaves_no_folder(config, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, 'mine', Pair)
    with pytest.raises(ValueError, match='must return logits'):
        jaxfed.simulate(config(workdir=str(tmp_path / 'run')))
    assert not (tmp_path / 'run').exists()


PROGRAM = """
from math import prod
from flax import nnx
from jaxfed import main
from jaxfed.models import MODELS

class Mine(nnx.Module):
    def __init__(self, input_shape, num_classes, rngs, width: float = 1.0):
        self.classifier = nnx.Linear(prod(input_shape), num_classes, rngs=rngs)

    def __call__(self, x):
        return self.classifier(x.reshape(len(x), -1))

MODELS['mine'] = Mine
if __name__ == '__main__':
    main.run()
"""


@pytest.mark.slow
def test_command_line(tmp_path):
    (tmp_path / 'mine.py').write_text(PROGRAM)
    flags = ['--model=mine', '--width=0.5', '--rounds=1', '--devices=1', '--workdir=run']
    done = subprocess.run(
        [sys.executable, 'mine.py', *flags], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'run' / 'summary.json').exists()


def linear(input_shape, num_classes):
    """A linear classifier as two functions."""

    def init(key):
        return {'kernel': jax.random.normal(key, (prod(input_shape), num_classes))}

    return init, lambda params, x: x.reshape(len(x), -1) @ params['kernel']


def test_a_pair_of_functions(monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, 'mine', linear)
    model = make_model('mine', **SHAPE)
    x, params = np.arange(18, dtype=np.float32).reshape(2, 3, 3, 1), model.init(jax.random.key(0))
    want = x.reshape(2, 9) @ params['kernel']
    chex.assert_trees_all_close(model.apply(params, x), Outputs(want, want))
    common = {'rounds': 1, 'clients_per_round': 2, 'partition': 'iid', 'local_epochs': 1}
    common |= {'workdir': str(tmp_path / 'run'), 'model': 'mine'}
    result = jaxfed.simulate(jaxfed.Config(method='fedlmd', **common), quiet=True)
    assert result.metrics[0]['train_loss'] > 0 and result.params['kernel'].shape == (64, 10)


def test_a_model_is_used_as_it_is(monkeypatch):
    model = Model(*linear(**SHAPE))
    monkeypatch.setitem(MODELS, 'mine', lambda: model)
    assert make_model('mine', **SHAPE) is model
