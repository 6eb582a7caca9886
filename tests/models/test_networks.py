"""Deeper networks: equal to their explicit layers; batch statistics, memory, options."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxfed.internal.backend import compiling_for
from jaxfed.models import as_model, make_model, with_precision
from jaxfed.models.norm import BatchNorm, group_norm
from jaxfed.models.ops import convolution
from jaxfed.models.remat import recomputed
from jaxfed.models.resnet import Bottleneck, ResNet
from jaxfed.types import Outputs
from tests.marks import only_fast
from tests.models.weights import draw

SHAPE = (12, 10, 3)
MASK = np.array([1, 1, 0, 1, 0], bool)
DEEP = ['resnet8', 'mobilenet']


def images(n=5, shape=SHAPE):
    return np.random.default_rng(1).standard_normal((n, *shape), np.float32)


def make(name, **options):
    options |= {'width': 0.1} if name == 'mobilenet' else {}
    return make_model(name, input_shape=SHAPE, num_classes=4, **options)


# The same networks as plain functions of the parameters.


def conv(x, layer, strides=1, groups=1):
    edge = (layer['conv']['kernel'].shape[0] - 1) // 2
    y = lax.conv_general_dilated(
        x, layer['conv']['kernel'], (strides, strides), [(edge, edge)] * 2,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=groups,
    )  # fmt: skip
    return y + layer['conv'].get('bias', 0.0)


class Norms:
    """Batch normalisation of given real examples, in the order of the layers."""

    def __init__(self, real=None):
        self.real = real

    def __call__(self, x, layer, stats):
        if self.real is None:
            mean, var = stats['norm']['mean'], stats['norm']['var']
        else:
            valid = x[self.real]
            mean, var = valid.mean((0, 1, 2)), valid.var((0, 1, 2))
        scaled = (x - mean) / jnp.sqrt(var + 1e-5)
        return scaled * layer['norm']['scale'] + layer['norm']['bias']


def resnet8(params, stats, x, norm):
    def unit(x, p, s, strides=1):
        return norm(conv(x, p, strides), p, s)

    x = jax.nn.relu(unit(x, params['stem'], stats['stem']))
    for i in range(3):
        p, s = params['blocks'][i], stats['blocks'][i]
        strides = 1 if i == 0 else 2
        y = jax.nn.relu(unit(x, p['conv1'], s['conv1'], strides))
        y = unit(y, p['conv2'], s['conv2'])
        x = jax.nn.relu(y + (unit(x, p['shortcut'], s['shortcut'], strides) if i else x))
    return x.mean((1, 2))


def mobilenet(params, stats, x, norm):
    x = jax.nn.relu(norm(conv(x, params['stem']), params['stem'], stats['stem']))
    for i, strides in enumerate([1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]):
        p, s = params['blocks'][i], stats['blocks'][i]
        y = conv(x, p['depthwise'], strides, groups=x.shape[3])
        x = jax.nn.relu(norm(y, p['depthwise'], s['depthwise']))
        x = jax.nn.relu(norm(conv(x, p['pointwise']), p['pointwise'], s['pointwise']))
    return x.mean((1, 2))


PLAIN = {'resnet8': resnet8, 'mobilenet': mobilenet}


@pytest.mark.parametrize('name', only_fast(PLAIN, 'resnet8'))
def test_network_is_its_layers_written_out(name):
    model, plain = make(name), PLAIN[name]
    params, stats = draw(model, scale=0.3)
    x = images()
    evaluated = jax.jit(model.evaluate)(params, x, stats)
    want = jax.jit(plain, static_argnums=3)(params, stats, x, Norms())
    chex.assert_trees_all_close(evaluated.features, want, rtol=1e-4, atol=1e-4)
    assert evaluated.stats == ()
    trained = jax.jit(model.train)(params, x, stats, MASK)
    # In float32 the layers written out are less exact than the network.
    with jax.enable_x64(True):
        exact = jax.tree.map(np.float64, (params, stats, x))
        want = jax.jit(plain, static_argnums=3)(*exact, Norms(np.flatnonzero(MASK)))
    # The results of padding are not used.
    chex.assert_trees_all_close(trained.features[MASK], np.float32(want)[MASK], atol=1e-3)


class SmallBottlenecks(ResNet):
    block, widths, depths = Bottleneck, (2, 3), (1, 2)


def bottlenecks(params, stats, x, norm):
    def unit(x, name, i, strides=1):
        p, s = params['blocks'][i][name], stats['blocks'][i][name]
        return norm(conv(x, p, strides), p, s)

    x = jax.nn.relu(norm(conv(x, params['stem'], 2), params['stem'], stats['stem']))
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), 'VALID')
    for i, strides in enumerate((1, 2, 1)):
        y = jax.nn.relu(unit(x, 'conv1', i))
        y = jax.nn.relu(unit(y, 'conv2', i, strides))
        y = unit(y, 'conv3', i)
        x = jax.nn.relu(y + (x if i == 2 else unit(x, 'shortcut', i, strides)))
    return x.mean((1, 2))


def test_bottlenecks_and_the_stem_for_large_images():
    def build(rngs):
        return SmallBottlenecks(
            (17, 20, 3), 4, stem='imagenet', convolution=convolution(), rngs=rngs
        )

    model = as_model(build)
    params, stats = draw(model, scale=0.3)
    assert params['stem']['conv']['kernel'].shape == (7, 7, 3, 2)
    x = images(3, (17, 20, 3))
    got = jax.jit(model.evaluate)(params, x, stats).features
    want = jax.jit(bottlenecks, static_argnums=3)(params, stats, x, Norms())
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', DEEP)
def test_padded_examples_change_nothing(name):
    model = make(name)
    params, stats = draw(model, scale=0.3)
    x, labels = images(), np.arange(5) % 4

    def loss(params, x, labels, mask):
        outputs = model.train(params, x, stats, mask)
        picked = jnp.take_along_axis(outputs.logits, labels[:, None], 1)[:, 0]
        return jnp.sum(jnp.where(mask, picked, 0.0)), outputs.stats

    differentiate = jax.jit(jax.value_and_grad(loss, has_aux=True))
    padded = differentiate(params, x, labels, MASK)
    other = x.copy()
    other[~MASK] = 1e3
    chex.assert_trees_all_close(padded, differentiate(params, other, labels, MASK), rtol=1e-5)
    cut = differentiate(params, x[MASK], labels[MASK], np.ones(3, bool))
    chex.assert_trees_all_close(padded, cut, rtol=1e-3, atol=1e-3)


class OneLayer(nnx.Module):
    """A network of one normalisation."""

    def __init__(self, norm, channels, rngs):
        self.layer = norm(channels, rngs=rngs)

    def __call__(self, x, mask=None):
        y = self.layer(x) if mask is None else self.layer(x, mask=mask)
        return Outputs(y, y)


def one_layer(norm, channels):
    return as_model(lambda rngs: OneLayer(norm, channels, rngs))


def test_running_statistics_by_hand():
    model = one_layer(BatchNorm, 1)
    x = np.array([1.0, 3.0, 100.0], np.float32).reshape(3, 1, 1, 1)
    outputs = model.train({'layer': {'scale': np.ones(1), 'bias': np.zeros(1)}}, x, model.stats,
                          np.array([True, True, False]))  # fmt: skip
    np.testing.assert_allclose(outputs.stats['layer']['mean'], [0.9 * 0 + 0.1 * 2], rtol=1e-6)
    np.testing.assert_allclose(outputs.stats['layer']['var'], [0.9 * 1 + 0.1 * 1], rtol=1e-6)
    np.testing.assert_allclose(outputs.logits[:2].ravel(), [-1, 1], rtol=1e-4)
    assert BatchNorm(1, rngs=nnx.Rngs(0)).momentum == 0.9


@pytest.mark.parametrize('shape', [(5, 32, 32, 3), (5, 3, 2, 3)])
def test_batch_normalisation_and_its_derivatives_are_those_of_its_equation(shape):
    rng = np.random.default_rng(3)
    x, to_y = (rng.standard_normal(shape, np.float32) + shift for shift in (2.0, 0.0))
    scale, bias, to_mean, to_var = rng.standard_normal((4, 3), np.float32)

    def layer(x, scale, bias):
        model = one_layer(BatchNorm, 3)
        outputs = model.train({'layer': {'scale': scale, 'bias': bias}}, x, model.stats, MASK)
        return outputs.logits, outputs.stats['layer']['mean'], outputs.stats['layer']['var']

    def equation(x, scale, bias):
        valid = x[np.flatnonzero(MASK)]
        mean, var = valid.mean((0, 1, 2)), valid.var((0, 1, 2))
        y = (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias
        return y, 0.1 * mean, 0.9 + 0.1 * var

    def value_and_gradients(function):
        def scalar(*arguments):
            values = function(*arguments)
            weights = (to_y / np.sqrt(to_y.size), to_mean, to_var)
            return sum(jnp.vdot(jnp.sin(v), w) for v, w in zip(values, weights)), values

        first = jax.grad(scalar, (0, 1, 2), has_aux=True)
        second = jax.grad(lambda *a: sum(jnp.sum(g**2) for g in first(*a)[0]), (0, 1, 2))
        mapped = jax.vmap(lambda s: first(x, s, bias)[0])(np.stack([scale, 2 * scale]))
        return first(x, scale, bias), second(x, scale, bias), mapped

    got, want = (jax.jit(lambda f=f: value_and_gradients(f))() for f in (layer, equation))
    chex.assert_trees_all_close(got, want, rtol=2e-3, atol=2e-4)


def test_group_normalisation_sees_one_example_at_a_time():
    model = one_layer(group_norm, 4)
    assert model.stats == ()
    params = {'layer': {'scale': np.ones(4, np.float32), 'bias': np.zeros(4, np.float32)}}
    x = images(3, (5, 2, 4))
    got = model.apply(params, x).logits
    groups = x.reshape(3, 5, 2, 2, 2)
    want = (groups - groups.mean((1, 2, 4), keepdims=True)) / np.sqrt(
        groups.var((1, 2, 4), keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.apply(params, x[1:2]).logits, got[1:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
def test_recomputing_changes_neither_values_nor_gradients(platform):
    def block(weights, x, shift):
        hidden = jnp.tanh(x @ weights['a'])
        return jnp.tanh(hidden @ weights['b']) + shift, hidden.mean(0)

    rng = np.random.default_rng(0)
    weights = {'a': rng.standard_normal((4, 6)), 'b': rng.standard_normal((6, 4))}
    x, shift = rng.standard_normal((3, 4)), np.arange(4)

    def loss(function, weights, x):
        y, mean = function(weights, x, shift)
        return jnp.sum(y**2) + jnp.sum(mean)

    with compiling_for(platform):
        again = recomputed(block)
    got = jax.jit(jax.value_and_grad(lambda w, x: loss(again, w, x), (0, 1)))(weights, x)
    want = jax.value_and_grad(lambda w, x: loss(block, w, x), (0, 1))(weights, x)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)
    mapped = jax.vmap(jax.grad(lambda w, x: loss(again, w, x)), (None, 0))(weights, x[:, None])
    alone = jax.grad(lambda w: loss(block, w, x[2:]))(weights)
    chex.assert_trees_all_close(
        jax.tree.map(lambda leaf: leaf[2], mapped), alone, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize('name', DEEP)
def test_remat_changes_memory_only(name):
    params, stats = draw(make(name), scale=0.3)
    x = images()

    def program(remat):
        model = make(name, remat=remat)

        def loss(params, stats):
            outputs = model.train(params, x, stats, MASK)
            return jnp.sum(jnp.where(MASK[:, None], outputs.logits, 0.0) ** 2), outputs.stats

        return jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params, stats).compile()

    kept, again = program(False), program(True)
    chex.assert_trees_all_close(again(params, stats), kept(params, stats), rtol=1e-4, atol=1e-4)
    taken = [p.memory_analysis().temp_size_in_bytes for p in (again, kept)]
    assert taken[0] < 0.8 * taken[1]


def test_bfloat16_reaches_every_convolution_and_statistics_stay_float32():
    model = with_precision(make('resnet8', convolution=convolution('grouped')), 'bfloat16')
    params, stats = draw(model, scale=0.3)
    jaxpr = str(jax.make_jaxpr(model.train)(params, images(), stats, MASK))
    kinds = re.findall(r':(\w+)\[[\d,]*\] = conv_general_dilated', jaxpr)
    assert kinds == ['bf16'] * 9
    outputs = jax.jit(model.train)(params, images(), stats, MASK)
    exact = jax.jit(make('resnet8').train)(params, images(), stats, MASK)
    for leaf in jax.tree.leaves(outputs):
        assert leaf.dtype == jnp.float32
    error = jnp.abs(outputs.logits - exact.logits)[MASK].max() / jnp.abs(exact.logits)[MASK].max()
    assert 1e-5 < error < 0.1


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('cnn', {'norm': 'group'}, r'--norm=group is not an option of --model=cnn.*resnet8'),
        ('mlp', {'remat': True}, r'--remat=True is not an option of --model=mlp'),
        ('resnet8', {'norm': 'layer'}, r'--norm must be one of batch, group, none'),
        ('resnet8', {'stem': 'large'}, r'--stem must be one of cifar, imagenet'),
        ('mobilenet', {'width': 0.0}, r'--width must be above 0 and at most 8, got 0.0'),
        ('mobilenet', {'width': 'wide'}, r"--width must be a number, got 'wide'"),
        ('resnet8', {'depth': 3}, r'--depth=3 is not an option of --model=resnet8\.'),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, input_shape=(32, 32, 3), num_classes=10, **options)


def test_statistics_must_be_given():
    model = make('resnet8')
    params, _ = draw(model, scale=0.3)
    with pytest.raises(ValueError, match=r'apply\(params, x, stats\)'):
        model.apply(params, images())


@pytest.mark.parametrize('name', ['resnet8', 'mobilenet', 'vgg11'])
def test_without_normalisation_there_are_biases_and_no_statistics(name):
    shape = (32, 32, 3)
    model = make_model(name, input_shape=shape, num_classes=4, norm='none')
    assert model.stats == ()
    params = jax.eval_shape(model.init, jax.random.key(0))
    kernels = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    names = [str(path[-1].key) for path in kernels]
    assert names.count('kernel') == names.count('bias')
    assert set(names) == {'kernel', 'bias'}
