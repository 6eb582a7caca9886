"""Networks for signals and for token ids: equal to their explicit layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.models import make_model
from tests.models.weights import draw

LENGTH, IDS = 7, 11
TOKENS = np.array([[3, 1, 2, 0, 0, 0, 0], [10, 4, 4, 1, 9, 2, 0], [0] * 7])[:, None, :, None]


def text(**options):
    return make_model('text', input_shape=(1, LENGTH, 1), num_classes=4, vocabulary=IDS, **options)


def dense(layer, x):
    return x @ layer['kernel'] + layer['bias']


def test_cnn1d_is_conv_bias_pool_relu():
    model = make_model('cnn1d', input_shape=(1, 13, 2), num_classes=3)
    params, _ = draw(model)
    x = np.random.default_rng(1).standard_normal((4, 1, 13, 2), np.float32)
    hidden = x[:, 0]
    for name in ('conv1', 'conv2'):
        kernel = params[name]['kernel'][0]  # [9, I, O]
        padded = np.pad(hidden, ((0, 0), (4, 4), (0, 0)))
        windows = np.stack([padded[:, i : i + hidden.shape[1]] for i in range(9)], axis=2)
        y = np.einsum('blki,kio->blo', windows, kernel) + params[name]['bias']
        pairs = y[:, : y.shape[1] // 2 * 2].reshape(4, -1, 2, y.shape[2])
        hidden = np.maximum(pairs.max(axis=2), 0)
    assert hidden.shape == (4, 3, 64)
    features = np.maximum(dense(params['hidden'], hidden.reshape(4, -1)), 0)
    outputs = jax.jit(model.apply)(params, x)
    np.testing.assert_allclose(outputs.features, features, rtol=1e-4, atol=1e-5)
    logits = dense(params['classifier'], features)
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)


def test_text_is_the_mean_of_the_embeddings_without_padding():
    model = text()
    params, _ = draw(model)
    outputs = jax.jit(model.apply)(params, jnp.asarray(TOKENS))
    table = params['embedding']['embedding']
    means = [table[[3, 1, 2]].mean(0), table[[10, 4, 4, 1, 9, 2]].mean(0), np.zeros(128)]
    np.testing.assert_allclose(outputs.features, np.stack(means), rtol=1e-5, atol=1e-6)
    logits = dense(params['classifier'], np.stack(means))
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)


def norm(layer, x):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return scaled * layer['scale'] + layer['bias']


def transformer(params, tokens):
    """The features of one example, without its padding; tokens [length]."""
    real = tokens[tokens > 0]
    x = params['embedding']['embedding'][real] + params['positions'][: len(real)]
    for block in params['blocks'].values():
        q, k, v = (
            dense(block[name], norm(block['norm1'], x)).reshape(len(real), 4, 32)
            for name in ('query', 'key', 'value')
        )
        scores = np.exp(np.einsum('qhd,khd->hqk', q, k) / np.sqrt(32))
        weights = scores / scores.sum(-1, keepdims=True)
        seen = np.einsum('hqk,khd->qhd', weights, v).reshape(len(real), 128)
        x = x + dense(block['output'], seen)
        hidden = np.asarray(jax.nn.gelu(dense(block['hidden'], norm(block['norm2'], x))))
        x = x + dense(block['project'], hidden)
    return norm(params['norm'], x).mean(0)


def test_the_transformer_equals_its_layers_without_padding():
    model = text(encoder='transformer')
    params = jax.device_get(draw(model)[0])
    outputs = jax.jit(model.apply)(params, jnp.asarray(TOKENS))
    for i in range(2):
        expected = transformer(params, TOKENS[i, 0, :, 0])
        np.testing.assert_allclose(outputs.features[i], expected, rtol=1e-4, atol=1e-4)
    assert not outputs.features[2].any()  # nothing but padding


@pytest.mark.parametrize('encoder', ['mean', 'transformer'])
def test_stacked_clients_equal_single_ones(encoder):
    model = text(encoder=encoder)
    params, _ = draw(model, 2)
    x = jnp.stack([jnp.asarray(TOKENS), jnp.asarray(TOKENS[::-1])])

    def loss(params, x):
        return jnp.sum(model.apply(params, x).logits ** 2)

    together = jax.jit(jax.vmap(jax.grad(loss)))(params, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(together))
    for i in range(2):
        one = jax.jit(jax.grad(loss))(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i])
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-4),
            together,
            one,
        )


@pytest.mark.parametrize(
    ('name', 'shape', 'vocabulary', 'message'),
    [
        ('cnn1d', (8, 8, 1), 0, r'requires signals \[n, 1, length, channels\].*x\[:, None\]'),
        ('cnn1d', (1, 3, 1), 0, 'of 4 samples or more'),
        ('text', (1, 7, 1), 0, 'requires token ids'),
        ('mlp', (1, 7, 1), 11, r"requires numbers.*--model=text, or \.astype\('float32'\)"),
        ('cnn1d', (1, 7, 1), 11, 'requires numbers'),
    ],
)
def test_other_inputs_are_refused(name, shape, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, input_shape=shape, num_classes=3, vocabulary=vocabulary)
