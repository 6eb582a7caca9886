"""Networks: PyTorch's parameter counts and initialisation, pure apply, any input size."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxfed.internal.backend import compiling_for
from jaxfed.models import MODELS, layers, make_model, with_precision
from jaxfed.models.blocks import ConvNorm
from jaxfed.models.ops import LOWERINGS, convolution
from jaxfed.types import Outputs
from tests.marks import only_fast
from tests.models.weights import draw


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# Counted with the same layers in PyTorch.
COUNTS = [
    ('cnn', (32, 32, 3), 10, 2_156_490),
    ('cnn', (32, 32, 3), 100, 2_202_660),
    ('cnn', (28, 28, 1), 10, 1_663_370),
    ('cnn', (8, 8, 1), 10, 188_810),
    ('cnn', (28, 20, 1), 10, 1_204_618),
    ('lenet', (32, 32, 3), 10, 62_006),
    ('lenet', (28, 28, 1), 10, 44_426),
    ('cnn_dropout', (28, 28, 1), 62, 1_206_590),
    ('cnn_dropout', (32, 32, 3), 10, 1_626_442),
    ('mlp', (28, 28, 1), 10, 199_210),
    ('mlp', (8, 8, 1), 10, 55_210),
    # Published: of the networks for CIFAR in their common PyTorch forms, and of torchvision's and
    # Keras's for ImageNet.
    ('resnet8', (32, 32, 3), 10, 78_042),
    ('resnet18', (32, 32, 3), 10, 11_173_962),
    ('resnet50', (32, 32, 3), 10, 23_520_842),
    ('mobilenet', (32, 32, 3), 10, 3_217_226),
    ('vgg11', (32, 32, 3), 10, 9_231_114),
    ('resnet18 imagenet', (224, 224, 3), 1000, 11_689_512),
    ('resnet50 imagenet', (224, 224, 3), 1000, 25_557_032),
    ('mobilenet imagenet', (224, 224, 3), 1000, 4_231_976),
    ('resnet50 imagenet', (64, 64, 3), 200, 23_917_832),
]


@pytest.mark.parametrize(('name', 'input_shape', 'num_classes', 'expected'), COUNTS)
def test_parameter_counts(name, input_shape, num_classes, expected):
    name, _, stem = name.partition(' ')
    model = make_model(name, input_shape=input_shape, num_classes=num_classes, stem=stem or None)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert count(params) == expected


@pytest.mark.parametrize(
    ('width', 'expected'),
    # Keras's trainable parameters with 1000 classes.
    [(0.75, 2_585_560), (0.5, 1_331_592), (0.25, 470_072)],
)
def test_width_of_mobilenet(width, expected):
    model = make_model(
        'mobilenet', input_shape=(224, 224, 3), num_classes=1000, width=width, stem='imagenet'
    )
    assert count(jax.eval_shape(model.init, jax.random.key(0))) == expected


# Inputs that one unit sums over, layer by layer.
FAN_IN = [
    ('cnn', (32, 32, 3), {'conv1': 75, 'conv2': 800, 'hidden': 4096, 'classifier': 512}),
    (
        'lenet',
        (32, 32, 3),
        {'conv1': 75, 'conv2': 150, 'hidden1': 400, 'hidden2': 120, 'classifier': 84},
    ),
    ('mlp', (28, 28, 1), {'hidden1': 784, 'hidden2': 200, 'classifier': 200}),
]


@pytest.mark.parametrize('shape', [(), (7,), (256,), (3, 3, 32, 64), (5, 60_000), (2048, 2049)])
def test_initial_numbers_do_not_depend_on_the_length_of_the_draw(shape):
    drawn = layers.uniform_fan_in(25)(jax.random.key(3), shape, jnp.float32)
    plain = jax.random.uniform(jax.random.key(3), shape, jnp.float32, -0.2, 0.2)
    np.testing.assert_array_equal(drawn, plain)


@pytest.mark.parametrize(('name', 'input_shape', 'fan_in'), FAN_IN)
def test_initialisation_is_uniform_within_one_over_the_root_of_fan_in(name, input_shape, fan_in):
    model = make_model(name, input_shape=input_shape, num_classes=10)
    params = jax.jit(model.init)(jax.random.key(3))
    assert params.keys() == fan_in.keys()
    for layer, inputs in fan_in.items():
        bound = inputs**-0.5
        for array in params[layer].values():
            assert array.dtype == jnp.float32
            assert np.abs(array).max() <= bound
            # The largest of n uniform values reaches the bound up to a few parts in n.
            assert np.abs(array).max() > bound * (1 - 20 / array.size)
        kernel = np.asarray(params[layer]['kernel'])
        assert abs(kernel.mean()) < 5 * bound / np.sqrt(3 * kernel.size)
        np.testing.assert_allclose(kernel.std(), bound / np.sqrt(3), rtol=0.1)


def test_initialisation_depends_on_the_key_only():
    model = make_model('mlp', input_shape=(2, 2, 1), num_classes=10)
    init = jax.jit(model.init)
    one, same, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert not np.array_equal(a, b)


def test_parameters_are_a_plain_nested_dict():
    params = make_model('mlp', input_shape=(4, 4, 1), num_classes=3).init(jax.random.key(0))
    assert type(params) is dict
    assert {type(layer) for layer in params.values()} == {dict}
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))


CASES = [
    ('cnn', (16, 12, 1), 512),
    ('lenet', (17, 19, 3), 84),
    ('mlp', (5, 3, 1), 200),
]


@pytest.mark.parametrize(('name', 'input_shape', 'width'), CASES)
def test_mapped_over_clients_equals_one_client_at_a_time(name, input_shape, width):
    model = make_model(name, input_shape=input_shape, num_classes=7)
    params, _ = draw(model, 2)
    x = np.random.default_rng(0).standard_normal((2, 3, *input_shape), np.float32)

    def loss(params, x):
        outputs = model.apply(params, x)
        return jnp.sum(outputs.logits**2), outputs

    gradient = jax.grad(loss, has_aux=True)
    grads, outputs = jax.jit(jax.vmap(gradient))(params, x)
    assert isinstance(outputs, Outputs)
    assert outputs.logits.shape == (2, 3, 7)
    assert outputs.features.shape == (2, 3, width)
    alone = jax.jit(gradient)
    for i in range(2):
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-3, rtol=1e-4),
            (grads, outputs),
            alone(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i]),
        )
    # Every parameter takes part.
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize('name', sorted({*MODELS} - {'resnet18', 'resnet50', 'text'}))
def test_features_are_the_input_of_the_last_layer(name):
    shape = {'vgg11': (32, 32, 3), 'cnn1d': (1, 16, 3)}.get(name, (16, 16, 3))
    model = make_model(name, input_shape=shape, num_classes=5)
    params, _ = draw(model)
    x = np.random.default_rng(1).standard_normal((4, *shape), np.float32)
    logits, features, _ = jax.jit(model.evaluate)(params, x, model.stats)
    last = params['classifier']
    np.testing.assert_allclose(features @ last['kernel'] + last['bias'], logits, atol=1e-5)
    assert features.min() >= 0  # after a ReLU, or the mean of a ReLU over pixels
    assert features.max() > 0


def convolved(x, layer, padding):
    dimensions = ('NHWC', 'HWIO', 'NHWC')
    y = lax.conv_general_dilated(x, layer['kernel'], (1, 1), padding, dimension_numbers=dimensions)
    return y + layer['bias']


def relu_then_pool(x):
    return lax.reduce_window(
        jnp.maximum(x, 0), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID'
    )


@pytest.mark.parametrize(('name', 'padding'), [('cnn', 'SAME'), ('lenet', 'VALID')])
def test_convolutional_networks_are_conv_bias_relu_pool(name, padding):
    model = make_model(name, input_shape=(18, 17, 2), num_classes=4)
    params, _ = draw(model)
    inputs = np.random.default_rng(1).standard_normal((3, 18, 17, 2), np.float32)

    @jax.jit
    def features(params, x):
        for layer in ('conv1', 'conv2'):
            x = relu_then_pool(convolved(x, params[layer], padding))
        x = x.reshape(3, -1)
        for layer in sorted(set(params) - {'conv1', 'conv2', 'classifier'}):
            x = jnp.maximum(x @ params[layer]['kernel'] + params[layer]['bias'], 0)
        return x

    outputs = jax.jit(model.apply)(params, inputs)
    np.testing.assert_allclose(outputs.features, features(params, inputs), rtol=1e-5, atol=1e-5)


def test_cnn_dropout_is_its_layers_in_evaluation():
    model = make_model('cnn_dropout', input_shape=(12, 11, 2), num_classes=4)
    params, _ = draw(model)
    images = np.random.default_rng(1).standard_normal((3, 12, 11, 2), np.float32)

    @jax.jit
    def features(params, x):
        x = jnp.maximum(convolved(x, params['conv1'], 'VALID'), 0)
        x = relu_then_pool(convolved(x, params['conv2'], 'VALID')).reshape(3, -1)
        return jnp.maximum(x @ params['hidden']['kernel'] + params['hidden']['bias'], 0)

    outputs = jax.jit(model.evaluate)(params, images, model.stats)
    np.testing.assert_allclose(outputs.features, features(params, images), rtol=1e-5, atol=1e-5)


def test_cnn_dropout_drops_a_quarter_then_half_in_training():
    model = make_model('cnn_dropout', input_shape=(32, 32, 3), num_classes=4)
    params, _ = draw(model, scale=0)
    params['conv2']['bias'] += 1  # so that the pooled image is 1 everywhere
    params['hidden']['kernel'] += 1
    x, mask = np.zeros((8, 32, 32, 3), np.float32), np.ones(8, bool)
    features = jax.jit(model.apply)(params, x, (), mask, jax.random.key(3)).features
    pixels = 14 * 14 * 64
    # Every unit is 0 or twice the sum of the kept pixels, each 4 / 3, which all units share.
    kept = features.max(axis=1) / 2 / (4 / 3)
    np.testing.assert_allclose(kept, np.round(kept), atol=0.1)
    np.testing.assert_allclose(kept / pixels, 0.75, atol=0.03)  # 8 deviations
    assert len(np.unique(kept)) > 1
    whole = features == features.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(whole | (features == 0), True)
    assert 0.4 < whole.mean() < 0.6  # 6 deviations


def test_cnn_dropout_starts_as_of_glorot():
    model = make_model('cnn_dropout', input_shape=(28, 28, 1), num_classes=62)
    params = jax.jit(model.init)(jax.random.key(0))
    fans = {'conv1': 9 * 33, 'conv2': 9 * 96, 'hidden': 9216 + 128, 'classifier': 128 + 62}
    for name, fans_in_and_out in fans.items():
        bound = (6 / fans_in_and_out) ** 0.5
        largest = np.abs(params[name]['kernel']).max()
        assert 0.95 * bound < largest <= bound
        np.testing.assert_array_equal(params[name]['bias'], 0)


def test_bfloat16_parameters_give_bfloat16_outputs():
    model = make_model('cnn', input_shape=(8, 8, 3), num_classes=4)
    params = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16),
        jax.eval_shape(model.init, jax.random.key(0)),
    )
    x = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.bfloat16)
    outputs = jax.eval_shape(model.apply, params, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype('bfloat16')}


def test_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match=r"'vgg'.*cnn, cnn1d, cnn_dropout, lenet, mlp"):
        make_model('vgg', input_shape=(32, 32, 3), num_classes=10)


@pytest.mark.parametrize(
    ('name', 'input_shape', 'num_classes', 'message'),
    [
        ('lenet', (8, 8, 1), 10, r'--model=lenet.*16x16.*8, 8.*--model=cnn'),
        ('lenet', (32, 15, 1), 10, r'--model=lenet'),
        ('cnn', (3, 8, 1), 10, r'--model=cnn.*4x4.*3, 8.*--model=mlp'),
        ('cnn_dropout', (8, 5, 1), 10, r'--model=cnn_dropout.*6x6.*8, 5.*--model=cnn'),
        ('mlp', (0, 8, 1), 10, r'input_shape must be .*, got \(0, 8, 1\)'),
        ('mlp', (8, 8), 10, r'input_shape must be .*, got \(8, 8\)'),
        ('mlp', (8, 8, 1), 0, r'num_classes must be 1 or more, got 0'),
        ('vgg11', (28, 28, 1), 10, r'--model=vgg11.*32x32.*28, 28.*--model=resnet18'),
    ],
)
def test_bad_sizes_are_refused(name, input_shape, num_classes, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, input_shape=input_shape, num_classes=num_classes)


def test_smallest_images_that_fit():
    for name, side in (('lenet', 16), ('cnn_dropout', 6), ('cnn', 4), ('mlp', 1)):
        model = make_model(name, input_shape=(side, side, 1), num_classes=2)
        params = jax.eval_shape(model.init, jax.random.key(0))
        outputs = jax.eval_shape(
            model.apply, params, jax.ShapeDtypeStruct((1, side, side, 1), 'f4')
        )
        assert outputs.logits.shape == (1, 2)


@pytest.mark.slow
def test_precision_rounds_products_and_keeps_parameters_float32():
    model = make_model('mlp', input_shape=(8, 8, 1), num_classes=10)
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 8, 8, 1))

    def logits_and_gradient(precision):
        apply = with_precision(model, precision).apply
        gradient = jax.grad(lambda params: jnp.sum(apply(params, x).logits ** 2))(params)
        return apply(params, x).logits, gradient

    exact, coarse = logits_and_gradient('float32'), logits_and_gradient('bfloat16')
    for leaf in jax.tree.leaves((exact, coarse)):
        assert leaf.dtype == jnp.float32
    np.testing.assert_array_equal(exact[0], model.apply(params, x).logits)
    error = jnp.abs(coarse[0] - exact[0]).max() / jnp.abs(exact[0]).max()
    assert 1e-4 < error < 2e-2  # bfloat16 has 8 bits

    def precisions(precision):
        jaxpr = jax.make_jaxpr(with_precision(model, precision).apply)(params, x)
        return {str(e.params['precision']) for e in jaxpr.jaxpr.eqns if 'dot' in e.primitive.name}

    assert 'HIGHEST' in str(precisions('float32'))
    assert 'HIGHEST' not in str(precisions('tf32'))


@pytest.mark.parametrize('use', LOWERINGS)
@pytest.mark.parametrize('name', only_fast(['lenet', 'resnet8'], 'lenet'))
def test_gradients_have_the_precision_of_the_network(name, use):
    network = make_model(name, input_shape=(32, 32, 3), num_classes=4, convolution=convolution(use))
    model = with_precision(network, 'float32')
    params = jax.eval_shape(jax.vmap(model.init), jax.random.split(jax.random.key(0), 2))
    x = jax.ShapeDtypeStruct((2, 3, 32, 32, 3), jnp.float32)

    def loss(params, x):
        return jnp.sum(model.train(params, x, model.stats, jnp.ones(3, bool)).logits ** 2)

    with compiling_for('gpu'):
        program = jax.jit(jax.vmap(jax.grad(loss))).lower(params, x).as_text()
    assert 'HIGHEST' in program and 'DEFAULT' not in program


@pytest.mark.parametrize('use', ['grouped', 'unrolled', 'patches', 'fourier', None])
def test_convolution_layer_computes_with_the_operations_it_is_given(use):
    layer = ConvNorm(
        3, 4, strides=2, norm='none', convolution=convolution(use), rngs=nnx.Rngs(0)
    ).conv
    bound = 1 / np.sqrt(3 * 9)
    assert 0.9 * bound < jnp.abs(layer.kernel[...]).max() <= bound
    x = jax.random.normal(jax.random.key(0), (2, 7, 8, 3))
    plain = nnx.Conv(3, 4, (3, 3), 2, padding=((1, 1), (1, 1)), rngs=nnx.Rngs(1))
    plain.kernel[...], plain.bias[...] = layer.kernel[...], layer.bias[...]
    np.testing.assert_allclose(layer(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'lenet'])
def test_networks_are_the_same_however_convolutions_are_computed(name):
    shape = {'input_shape': (18, 16, 3), 'num_classes': 5}
    plain, *others = (
        make_model(name, **shape, convolution=convolution(use))
        for use in ('grouped', 'unrolled', 'patches', 'fourier', 'blocks', None)
    )
    params = plain.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 18, 16, 3))
    for other in others:
        chex.assert_trees_all_equal(other.init(jax.random.key(0)), params)
        chex.assert_trees_all_close(other.apply(params, x), plain.apply(params, x), atol=1e-5)
