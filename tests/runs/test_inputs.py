"""Runs on signals, token ids and shifted images, from arrays to the loaded model."""

import functools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxfed
from jaxfed.models import MODELS
from jaxfed.models.feedforward import FeedForward
from jaxfed.runs import client_images, experiment, feed
from jaxfed.runs.deal import deal

LABELS = np.arange(240) % 4
SETTINGS = {
    'partition': 'iid', 'num_clients': 4, 'clients_per_round': 3, 'rounds': 3,
    'local_epochs': 2, 'batch_size': 10, 'learning_rate': 0.1, 'devices': '1', 'lanes': 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Runs without --workdir write below it."""
    monkeypatch.chdir(tmp_path)


def tokens():
    """Texts of the words of a topic, 1 to 5 for class 0 and so on, of unequal length."""
    rng = np.random.default_rng(0)
    ids = 1 + 5 * LABELS[:, None] + rng.integers(0, 5, (240, 12))
    return np.where(np.arange(12) < rng.integers(4, 13, (240, 1)), ids, 0)


def signals():
    """Waves of two channels, whose frequency is the class."""
    rng, time = np.random.default_rng(0), np.linspace(0, 2 * np.pi, 32)
    waves = np.sin((1 + LABELS[:, None]) * time + rng.uniform(0, 6, (240, 1)))
    noisy = waves[..., None] + rng.normal(0, 0.1, (240, 32, 2))
    return noisy[:, None]


INPUTS = {
    'text': (tokens, {'model': 'text'}),
    'transformer': (tokens, {'model': 'text', 'encoder': 'transformer', 'learning_rate': 0.02}),
    'signals': (signals, {'model': 'cnn1d', 'learning_rate': 0.03}),
}


def dataset(make):
    x = make()
    return jaxfed.Dataset.from_arrays(x[:200], LABELS[:200], x[200:], LABELS[200:])


@pytest.mark.slow
@pytest.mark.parametrize('name', INPUTS)
@pytest.mark.parametrize('method', ['fedavg', 'fedlmd'])
def test_runs_learn_and_load(name, method, tmp_path, cheap_runs):
    make, settings = INPUTS[name]
    data = dataset(make)
    config = jaxfed.Config(**{**SETTINGS, **settings}, method=method, workdir=str(tmp_path / 'run'))
    result = jaxfed.simulate(config, dataset=data, quiet=True)
    assert result.summary['final_accuracy'] > 0.5
    model = jaxfed.load(tmp_path / 'run')
    logits = model.apply(data.x_test)
    accuracy = (np.argmax(logits, axis=1) == data.y_test).mean()
    assert accuracy == pytest.approx(result.summary['final_accuracy'], abs=1e-6)
    if settings['model'] == 'text':
        with pytest.raises(ValueError, match='from 0 to 20, got ids from -1 to 4'):
            model.apply(np.array([[-1, 4] * 6]))
        with pytest.raises(ValueError, match=r'x must be token ids \[m, 1, 12, 1\] of integers'):
            model.apply(np.zeros((1, 12)))


@pytest.mark.slow
def test_token_ids_keep_their_values_in_bfloat16(cheap_runs):
    ids = tokens()
    ids[ids > 0] += 300  # which bfloat16 would round
    data = jaxfed.Dataset.from_arrays(ids[:200], LABELS[:200], ids[200:], LABELS[200:])
    config = jaxfed.Config(**SETTINGS, model='text', precision='bfloat16')
    assert jaxfed.simulate(config, dataset=data, quiet=True).summary['final_accuracy'] > 0.8


@pytest.mark.parametrize(
    ('changes', 'vocabulary', 'message'),
    [
        (
            {'x': -np.ones((4, 3), int)},
            0,
            'token ids from -1 to -1 in x_train: they must',
        ),
        ({}, 3, 'token ids up to 20 with vocabulary=3'),
        ({'x': np.zeros((4, 3))}, 3, 'inputs of float32 with vocabulary=3'),
        ({'x': np.zeros((4, 3, 3, 1), int)}, 0, 'only token ids .n, length. are integers'),
        ({'model': 'mlp'}, 0, '--model=mlp requires numbers, but the inputs are token ids'),
        ({'augment': 'flip'}, 0, '--augment must be none for vectors, signals and text'),
        ({'feature_shift': 'rotation'}, 0, '--feature_shift=rotation changes images'),
    ],
)
def test_refused(changes, vocabulary, message):
    x = changes.pop('x', None)
    x = tokens() if x is None else np.repeat(x, 60, axis=0)
    data = jaxfed.Dataset.from_arrays(
        x[:200], LABELS[:200], x[200:], LABELS[200:], vocabulary=vocabulary
    )
    with pytest.raises(ValueError, match=message):
        jaxfed.simulate(jaxfed.Config(**{**SETTINGS, 'model': 'text', **changes}), dataset=data)


@pytest.mark.slow
def test_a_larger_vocabulary_has_more_embeddings(cheap_runs):
    data = dataset(tokens)._replace(vocabulary=50)
    config = jaxfed.Config(**SETTINGS | {'rounds': 1}, model='text')
    result = jaxfed.simulate(config, dataset=data, quiet=True)
    assert result.params['embedding']['embedding'].shape == (50, 128)


SHIFTED = {
    **SETTINGS, 'model': 'linear', 'local_eval_every': 1, 'personal_test': 0.2,
    'measure': 'gradient_diversity', 'method': 'fedcurv', 'rounds': 2,
}  # fmt: skip


class Linear(FeedForward):
    """No hidden unit, which rounding could move to the other side of 0."""

    name, units = 'linear', ()


def images():
    return np.random.default_rng(0).integers(0, 256, (240, 8, 8, 1)).astype(np.uint8)


def shift_beforehand(data, config):
    """The same data with every client's images shifted."""
    dealt = deal(config, data)
    x = data.x_train.astype(np.float32)
    shift = client_images.shift_of(config)
    for client, parts in enumerate(zip(dealt.partition, dealt.personal, strict=True)):
        rows = np.concatenate(parts)
        x[rows] = shift(data.x_train[rows], np.float32(client))
    return data._replace(x_train=x, x_test=data.x_test.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['rotation', 'brightness', 'blur'])
def test_a_shift_equals_data_that_was_shifted_before(kind, cheap_runs, monkeypatch):
    statistics = np.full(1, 127, np.float32), np.full(1, 70, np.float32)
    monkeypatch.setattr(experiment, 'channel_statistics', lambda x: statistics)
    monkeypatch.setitem(MODELS, 'linear', Linear)
    simulate = functools.partial(jaxfed.simulate, quiet=True, compilation_cache=False)
    config = jaxfed.Config(**SHIFTED, feature_shift=kind)
    data = dataset(images)
    result = simulate(config, dataset=data)
    plain = simulate(jaxfed.Config(**SHIFTED), dataset=shift_beforehand(data, config))

    def check_same(other):
        for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(other.params), strict=True):
            assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for name in ('personal_accuracy', 'gradient_diversity', 'train_loss'):
            for a, b in zip(result.metrics, other.metrics, strict=True):
                assert a[name] == pytest.approx(b[name], rel=1e-3)

    check_same(plain)
    if kind != 'rotation':
        return
    check_same(simulate(jaxfed.Config(**SHIFTED | {'lanes': 3}, feature_shift=kind), dataset=data))
    monkeypatch.setattr(feed, 'memory', lambda mesh: 1.0)
    waves = jaxfed.Config(**SHIFTED, feature_shift=kind, stream='on')
    check_same(simulate(waves, dataset=data))
