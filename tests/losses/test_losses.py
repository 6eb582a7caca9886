"""The losses: values and gradients computed by hand, identities, extremes, bad input."""

from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from jaxfed import losses

# Logits for which the softmaxes are simple fractions. At temperature 2
#   p = [1, 2, 1, 4] / 8 and pg = [4, 1, 2, 1] / 8,
# and at temperature 1, where the powers are squared, p = [1, 4, 1, 16] / 22.
Z = 2 * np.log([1.0, 2.0, 1.0, 4.0])
ZG = 2 * np.log([4.0, 1.0, 2.0, 1.0])
WEIGHTS = np.array([0.1, 0.3, 0.5, 0.7])
ONE_MAJOR = np.array([False, True, False, False])
TRUE_AND_ONE_MAJOR = np.array([True, True, False, False])
ALL_BUT_ONE_MAJOR = np.array([False, True, True, True])
ALL_MAJOR = np.ones(4, bool)


def label_masking(majority):
    return lambda z: losses.label_masking_distillation(
        z, ZG[None], np.array([0]), majority, temperature=2.0
    )


def teacher_free(majority):
    return lambda z: losses.label_masking_teacher_free(z, np.array([0]), majority, temperature=2.0)


BY_HAND = (
    # -log 4/22; p - e_1
    dict(
        testcase_name='cross_entropy',
        loss=lambda z: losses.cross_entropy(z, np.array([1])),
        value=1.7047481,
        gradient=[1 / 22, -18 / 22, 1 / 22, 16 / 22],
    ),
    # targets [.05, .85, .05, .05]: log 22 - .85 log 4 - .05 log 16 = log 22 - 1.9 log 2; p - t
    dict(
        testcase_name='smoothed_cross_entropy',
        loss=lambda z: losses.smoothed_cross_entropy(z, np.array([1]), smoothing=0.2),
        value=1.7740628,
        gradient=[1 / 22 - 0.05, 4 / 22 - 0.85, 1 / 22 - 0.05, 16 / 22 - 0.05],
    ),
    # z - m has the powers [1, 4/2, 1, 16/4]: p = [1, 2, 1, 4] / 8; -log 1/4; p - e_1
    dict(
        testcase_name='calibrated_cross_entropy',
        loss=lambda z: losses.calibrated_cross_entropy(
            z, np.array([1]), np.log([1.0, 2.0, 1.0, 4.0])
        ),
        value=1.3862944,
        gradient=[1 / 8, -6 / 8, 1 / 8, 4 / 8],
    ),
    # without the last class p = [1, 2, 1] / 4
    dict(
        testcase_name='calibrated_cross_entropy_of_three_classes',
        loss=lambda z: losses.calibrated_cross_entropy(
            z, np.array([1]), np.array([0.0, np.log(2.0), 0.0, np.inf])
        ),
        value=0.6931472,
        gradient=[1 / 4, -2 / 4, 1 / 4, 0],
    ),
    # 4 (1/2 log 4 + 1/8 log 1/2 + 1/4 log 2 + 1/8 log 1/4) = 3.5 log 2; 2 (p - pg)
    dict(
        testcase_name='kl_distillation',
        loss=lambda z: losses.kl_distillation(z, ZG[None], temperature=2.0),
        value=2.4260151,
        gradient=[-0.75, 0.25, -0.25, 0.75],
    ),
    # log 8 - 1/8 log 2 - 1/8 log 4 = 2.625 log 2; (p - pg) / 2
    dict(
        testcase_name='soft_cross_entropy',
        loss=lambda z: losses.soft_cross_entropy(z, ZG[None], temperature=2.0),
        value=1.8195113,
        gradient=[-0.1875, 0.0625, -0.0625, 0.1875],
    ),
    # a_1 = .3 times the soft cross-entropy
    dict(
        testcase_name='class_weighted_distillation',
        loss=lambda z: losses.class_weighted_distillation(
            z, ZG[None], np.array([1]), WEIGHTS, temperature=2.0
        ),
        value=0.5458534,
        gradient=[-0.05625, 0.01875, -0.01875, 0.05625],
    ),
    # p~ = [2, 1, 4] / 7, pg~ = [1, 2, 1] / 4 over the classes 1, 2, 3:
    # 4 (1/4 log 7/8 + 1/2 log 7/2 + 1/4 log 7/16) = 4 log 7 - 9 log 2; 2 (p~ - pg~)
    dict(
        testcase_name='not_true_distillation',
        loss=lambda z: losses.not_true_distillation(z, ZG[None], np.array([0]), temperature=2.0),
        value=1.5453160,
        gradient=[0, 1 / 14, -5 / 7, 9 / 14],
    ),
    # p' = [2, 1, 4] / 7 over 1, 2, 3 and pg' = [2, 1] / 3 over 2, 3:
    # 4 (2/3 log 14/3 + 1/3 log 7/12); 2 (p' - pg')
    dict(
        testcase_name='label_masking_distillation',
        loss=label_masking(ONE_MAJOR),
        value=3.3891891,
        gradient=[0, 4 / 7, -22 / 21, 10 / 21],
    ),
    # the same if the true class is in the majority
    dict(
        testcase_name='label_masking_distillation_true_class_in_majority',
        loss=label_masking(TRUE_AND_ONE_MAJOR),
        value=3.3891891,
        gradient=[0, 4 / 7, -22 / 21, 10 / 21],
    ),
    # pg' = 1 on class 2 only: 4 (-log 1/7); 2 (p' - pg')
    dict(
        testcase_name='label_masking_distillation_one_class_left',
        loss=label_masking(np.array([False, True, False, True])),
        value=7.7836406,
        gradient=[0, 4 / 7, -12 / 7, 8 / 7],
    ),
    # only the true class is not in the majority: the teacher has no class
    dict(
        testcase_name='label_masking_distillation_all_but_the_true_class_masked',
        loss=label_masking(ALL_BUT_ONE_MAJOR),
        value=0.0,
        gradient=[0, 0, 0, 0],
    ),
    dict(
        testcase_name='label_masking_distillation_everything_masked',
        loss=label_masking(ALL_MAJOR),
        value=0.0,
        gradient=[0, 0, 0, 0],
    ),
    # u' = 1/2 over 2, 3: 4 (1/2 log 7/2 + 1/2 log 7/8) = 4 log 7/4; 2 (p' - u')
    dict(
        testcase_name='label_masking_teacher_free',
        loss=teacher_free(ONE_MAJOR),
        value=2.2384632,
        gradient=[0, 4 / 7, -5 / 7, 1 / 7],
    ),
    dict(
        testcase_name='label_masking_teacher_free_everything_masked',
        loss=teacher_free(ALL_MAJOR),
        value=0.0,
        gradient=[0, 0, 0, 0],
    ),
    # z - zg = 2 log 2 [-2, 1, -1, 2], M = [1, .5, 2, 0]:
    # (2 log 2)^2 (4 + 1/4 + 4 + 0); 2 M^2 (z - zg) = 4 log 2 [-2, .25, -4, 0]
    dict(
        testcase_name='masked_mse_distillation',
        loss=lambda z: losses.masked_mse_distillation(
            z, ZG[None], np.array([[1.0, 0.5, 2.0, 0.0]])
        ),
        value=15.8549446,
        gradient=[-5.5451774, 0.6931472, -11.0903549, 0.0],
    ),
)


class ByHandTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(*BY_HAND)
    def test_value(self, loss, value, gradient):
        np.testing.assert_allclose(self.variant(loss)(jnp.asarray(Z[None])), [value], rtol=2e-6)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(*BY_HAND)
    def test_gradient(self, loss, value, gradient):
        found = self.variant(jax.grad(lambda z: jnp.sum(loss(z))))(jnp.asarray(Z[None]))
        np.testing.assert_allclose(found, [gradient], rtol=3e-6, atol=3e-7)

    @chex.variants(with_jit=True, without_jit=True)
    def test_proximal(self):
        params = {'a': jnp.array([1.0, 2.0]), 'b': {'c': jnp.array([[3.0]])}}
        global_params = {'a': jnp.array([0.0, 4.0]), 'b': {'c': jnp.array([[1.0]])}}
        # (1 + 4 + 4) / 2; w - w_g
        value, gradient = self.variant(jax.value_and_grad(losses.proximal))(params, global_params)
        self.assertEqual(value, 4.5)
        np.testing.assert_array_equal(gradient['a'], [1.0, -2.0])
        np.testing.assert_array_equal(gradient['b']['c'], [[2.0]])

    @chex.variants(with_jit=True, without_jit=True)
    def test_decorrelation(self):
        # Columns a and b with a b = 0, and c = a + b: correlations 0, 1/sqrt 2 and 1/sqrt 2, whose
        # squares are the six off-diagonal elements [0, 0, 1/2, 1/2, 1/2, 1/2].
        a, b = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
        features = np.stack([a, b, a + b], axis=1) * [1.0, 20.0, 3.0] + [5.0, 0.0, -2.0]
        found = self.variant(losses.decorrelation)(jnp.asarray(features, jnp.float32))
        np.testing.assert_allclose(found, 2 / 6, rtol=1e-5)
        # Examples that do not count change nothing.
        padded = jnp.asarray(np.concatenate([features, 1e4 * np.ones((2, 3))]), jnp.float32)
        where = jnp.array([True] * 4 + [False] * 2)
        found = self.variant(lambda f, w: losses.decorrelation(f, where=w))(padded, where)
        np.testing.assert_allclose(found, 2 / 6, rtol=1e-5)

    @chex.variants(with_jit=True, without_jit=True)
    def test_gradient_of_decorrelation(self):
        # Of two features f = (s, t) / sqrt(...) the value is r^2, r = s.t / (|s| |t|) with centred
        # s and t; dr/ds = (t / |t| - r s / |s|) / |s| for a centred change.
        s, t = np.array([1.0, -1.0, 0.0]), np.array([0.0, -1.0, 1.0])
        r = 1 / 2
        slope = 2 * r * (t - r * s) / 2
        found = self.variant(jax.grad(losses.decorrelation))(
            jnp.asarray(np.stack([s, t], axis=1), jnp.float32)
        )
        np.testing.assert_allclose(found[:, 0], slope, rtol=1e-5, atol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_decorrelation_of_dead_features_and_single_examples(self):
        for features in (np.zeros((4, 3)), np.ones((1, 3)), np.ones((4, 1))):
            value, gradient = self.variant(jax.value_and_grad(losses.decorrelation))(
                jnp.asarray(features, jnp.float32)
            )
            assert value == 0
            np.testing.assert_array_equal(gradient, 0)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(
        ([5, 3, 2], [True, False, False]),  # even share 10/3
        ([4, 4, 4], [False, False, False]),  # exactly the even share is not more than it
        ([4, 4, 5], [False, False, True]),  # 13/3 = 4.33
        ([5, 5, 3], [True, True, False]),
        ([0, 7], [False, True]),
        ([3, 2], [True, False]),  # 2.5
        ([0, 0, 0], [False, False, False]),  # a client without examples
        ([2_000_000_000, 1, 0, 0], [True, False, False, False]),  # C n_c is beyond int32
        ([333_333_334, 333_333_333, 333_333_333], [True, False, False]),  # beyond float32
    )
    def test_majority_labels(self, counts, expected):
        counts = jnp.asarray(counts, jnp.int32)
        np.testing.assert_array_equal(self.variant(losses.majority_labels)(counts), expected)

    @chex.variants(with_jit=True, without_jit=True)
    def test_class_credibility(self):
        # pg_y = 3/4, 1/4 for class 0, so E phi = (1/2 - 1/2) / 2 = 0; 7/8 for class 1, phi = 3/4;
        # no example of class 2. a = .1 phi + .4.
        logits = 2 * jnp.log(jnp.array([[6.0, 1, 1], [2.0, 5, 1], [0.5, 7, 0.5]]))
        found = self.variant(
            lambda z, y: losses.class_credibility(z, y, beta=0.3, gamma=0.5, temperature=2.0)
        )(logits, jnp.array([0, 0, 1]))
        np.testing.assert_allclose(found, [0.4, 0.475, 0.4], rtol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_credibility_matrix(self):
        # class 0 is found as 0, 0, 1, 2; class 1 as 1, 2; class 2 does not occur
        predicted = jnp.array([0, 0, 1, 2, 1, 2])
        labels = jnp.array([0, 0, 0, 0, 1, 1])
        found = self.variant(losses.credibility_matrix)(jax.nn.one_hot(predicted, 3), labels)
        np.testing.assert_array_equal(found, [[0.5, 0.25, 0.25], [0, 0.5, 0.5], [0, 0, 0]])

    @chex.variants(with_jit=True, without_jit=True)
    def test_credibility_weights(self):
        matrix = jnp.array([[0.8, 0.2, 0.0], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0]])
        # M_class = [.8 (1 - .1), .5 (1 - .2), 1 (1 - .4)] = [.72, .4, .6]
        # pg_y = 3/4 -> M_sample = .5: M = .01 [.26, .1, .2]
        # pg_y = 7/16 -> M_sample = .25: M = .01 [.08, 0, .05], the middle one exactly on the bound
        # pg_y = 0.0975 -> M_sample = .05: nothing
        probabilities = jnp.array([[0.75, 0.2, 0.05], [0.5, 0.4375, 0.0625], [0.9, 0.0025, 0.0975]])
        found = self.variant(lambda z, y, a: losses.credibility_weights(z, y, a, max_weight=0.01))(
            jnp.log(probabilities), jnp.array([0, 1, 2]), matrix
        )
        expected = [[0.0026, 0.001, 0.002], [0.0008, 0, 0.0005], [0, 0, 0]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


# Every loss as a function of logits, teacher logits, labels, majority [C] and weights [C].
LOSSES = {
    'cross_entropy': lambda z, zg, y, m, a, t: losses.cross_entropy(z, y),
    'smoothed_cross_entropy': lambda z, zg, y, m, a, t: losses.smoothed_cross_entropy(
        z, y, smoothing=0.1
    ),
    'calibrated_cross_entropy': lambda z, zg, y, m, a, t: losses.calibrated_cross_entropy(
        z, y, jnp.where(m, jnp.inf, a)
    ),
    'kl_distillation': lambda z, zg, y, m, a, t: losses.kl_distillation(z, zg, temperature=t),
    'soft_cross_entropy': lambda z, zg, y, m, a, t: losses.soft_cross_entropy(z, zg, temperature=t),
    'class_weighted_distillation': lambda z, zg, y, m, a, t: losses.class_weighted_distillation(
        z, zg, y, a, temperature=t
    ),
    'not_true_distillation': lambda z, zg, y, m, a, t: losses.not_true_distillation(
        z, zg, y, temperature=t
    ),
    'label_masking_distillation': lambda z, zg, y, m, a, t: losses.label_masking_distillation(
        z, zg, y, m, temperature=t
    ),
    'label_masking_teacher_free': lambda z, zg, y, m, a, t: losses.label_masking_teacher_free(
        z, y, m, temperature=t
    ),
    'masked_mse_distillation': lambda z, zg, y, m, a, t: losses.masked_mse_distillation(
        z, zg, jnp.broadcast_to(a, z.shape)
    ),
    'fedssd': lambda z, zg, y, m, a, t: losses.masked_mse_distillation(
        z, zg, losses.credibility_weights(zg, y, jnp.eye(z.shape[-1]), max_weight=0.1)
    ),
}
every_loss = pytest.mark.parametrize('loss', LOSSES.values(), ids=LOSSES.keys())


def test_every_public_loss_is_tested():
    text = ''.join(path.read_text() for path in Path(__file__).parent.glob('test_*.py'))
    assert not [name for name in losses.__all__ if f'losses.{name}(' not in text]


def inputs(seed, examples=6, classes=5):
    """Random logits, teacher logits, labels, majority and weights."""
    rng = np.random.default_rng(seed)
    return (
        jnp.asarray(rng.normal(size=(examples, classes)) * 3, jnp.float32),
        jnp.asarray(rng.normal(size=(examples, classes)) * 3, jnp.float32),
        jnp.asarray(rng.integers(classes, size=examples)),
        jnp.asarray(rng.random(classes) < 0.4),
        jnp.asarray(rng.random(classes), jnp.float32),
    )


def extreme_logits(classes):
    """Rows of +-1e4: alone, against all others, all equal, alternating, and next to small ones."""
    rows = [np.full(classes, v) for v in (1e4, -1e4, 0.0)]
    for c in range(classes):
        rows += [np.where(np.arange(classes) == c, v, w) for v, w in ((1e4, -1e4), (-1e4, 1e4))]
        rows += [np.where(np.arange(classes) == c, v, 0.3) for v in (1e4, -1e4)]
    return np.array([*rows, np.where(np.arange(classes) % 2, 1e4, -1e4)])


@every_loss
@pytest.mark.parametrize(
    ('classes', 'dtype'), [(2, jnp.float32), (4, jnp.float32), (4, jnp.bfloat16)]
)
def test_extremes_are_finite(loss, dtype, classes):
    rows = jnp.asarray(extreme_logits(classes), dtype)
    n = len(rows)
    # every student with every teacher and every label
    z = jnp.repeat(rows, n * classes, axis=0)
    zg = jnp.tile(jnp.repeat(rows, classes, axis=0), (n, 1))
    y = jnp.tile(jnp.arange(classes), n * n)
    one = np.eye(classes, dtype=bool)
    majorities = jnp.array([[False] * classes, [True] * classes, *one, *~one])

    def run(majority, temperature):
        weights = jnp.ones(classes)
        values, pullback = jax.vjp(lambda z: loss(z, zg, y, majority, weights, temperature), z)
        return values, *pullback(jnp.ones_like(values))

    run_all = jax.jit(jax.vmap(run, (0, None)))
    for temperature in (0.5, 3.0):
        values, gradient = run_all(majorities, temperature)
        assert values.dtype == jnp.float32
        assert gradient.dtype == dtype
        assert jnp.all(jnp.isfinite(values))
        assert jnp.all(jnp.isfinite(gradient))
        assert jnp.min(values) >= -1e-5


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_extreme_weights_are_finite(dtype):
    rows = jnp.asarray(extreme_logits(3), dtype)
    for label in range(3):
        labels = jnp.full(len(rows), label)
        credibility = losses.class_credibility(rows, labels, beta=0.2, gamma=0.6, temperature=0.5)
        assert jnp.all((credibility > 0.2 - 1e-6) & (credibility < 0.6 + 1e-6))
        matrix = losses.credibility_matrix(rows, labels)
        np.testing.assert_allclose(jnp.sum(matrix, axis=1)[label], 1.0, rtol=1e-6)
        weights = losses.credibility_weights(rows, labels, matrix, max_weight=1.0)
        assert jnp.all((weights >= 0) & (weights <= 0.9 + 1e-6))


@every_loss
@pytest.mark.parametrize('dtype', [jnp.float16, jnp.bfloat16])
def test_half_precision_is_computed_in_float32(loss, dtype):
    z, zg, y, m, a = inputs(0)
    z, zg = z.astype(dtype), zg.astype(dtype)
    expected = loss(z.astype(jnp.float32), zg.astype(jnp.float32), y, m, a, 2.0)
    found = loss(z, zg, y, m, a, 2.0)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@every_loss
def test_float64_is_kept(loss):
    with jax.enable_x64(True):
        z, zg, y, m, a = inputs(0)
        found = loss(z.astype(jnp.float64), zg.astype(jnp.float64), y, m, a, 2.0)
    assert found.dtype == jnp.float64


@every_loss
def test_one_value_an_example(loss):
    z, zg, y, m, a = inputs(1)
    found = loss(z, zg, y, m, a, 2.0)
    assert found.shape == (6,)
    for i in range(6):
        alone = loss(z[i : i + 1], zg[i : i + 1], y[i : i + 1], m, a, 2.0)
        np.testing.assert_allclose(found[i], alone[0], rtol=1e-6)


@every_loss
def test_the_teacher_gets_no_gradient(loss):
    z, zg, y, m, a = inputs(2)
    gradient = jax.grad(lambda zg: jnp.sum(loss(z, zg, y, m, a, 2.0)))(zg)
    np.testing.assert_array_equal(gradient, 0.0)


def test_the_channel_weights_get_no_gradient():
    z, zg, _, _, _ = inputs(2)
    gradient = jax.grad(lambda m: jnp.sum(losses.masked_mse_distillation(z, zg, m)))
    np.testing.assert_array_equal(gradient(jnp.ones_like(z)), 0.0)


def test_masking_everything_makes_no_nan_on_the_way():
    z, zg, y, _, a = inputs(2)
    majority = jnp.ones(5, bool)
    with jax.debug_nans(True), jax.disable_jit():
        for name in ('label_masking_distillation', 'label_masking_teacher_free'):
            gradient = jax.grad(lambda z, n=name: jnp.sum(LOSSES[n](z, zg, y, majority, a, 2.0)))(z)
            np.testing.assert_array_equal(gradient, 0.0)


@every_loss
def test_gradient_is_the_slope(loss):
    with jax.enable_x64(True):
        z, zg, y, m, a = inputs(3)
        z, zg = z.astype(jnp.float64), zg.astype(jnp.float64)
        chex.assert_numerical_grads(lambda z: loss(z, zg, y, m, a, 2.0), (z,), order=1, atol=1e-6)


@every_loss
def test_vmap_over_clients_is_a_loop(loss):
    clients = [inputs(seed) for seed in range(4)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    temperatures = jnp.array([0.5, 1.0, 2.0, 3.0])

    def value_and_gradient(z, zg, y, m, a, t):
        return jax.value_and_grad(lambda z: jnp.sum(loss(z, zg, y, m, a, t)))(z)

    found = jax.jit(jax.vmap(value_and_gradient))(*stacked, temperatures)
    # the loop gives its temperatures as Python numbers
    looped = [value_and_gradient(*c, float(t)) for c, t in zip(clients, temperatures, strict=True)]
    for i, expected in enumerate(looped):
        np.testing.assert_allclose(found[0][i], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found[1][i], expected[1], rtol=1e-5, atol=1e-6)


def test_helpers_are_mapped_over_clients():
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(inputs, range(3)))
    _, zg, y, _, _ = stacked
    counts = jax.vmap(lambda y: jnp.bincount(y, length=5))(y)
    matrices = jax.vmap(losses.credibility_matrix)(zg, y)
    majority = jax.vmap(losses.majority_labels)(counts)

    def credibility(zg, y, beta, gamma):
        return losses.class_credibility(zg, y, beta=beta, gamma=gamma, temperature=2.0)

    sweep = jnp.array([0.0, 0.1, 0.2]), jnp.array([0.3, 0.1, 1.0])
    swept = jax.vmap(credibility)(zg, y, *sweep)
    weights = jax.vmap(lambda *c: losses.credibility_weights(*c, max_weight=0.1))(zg, y, matrices)
    for i in range(3):
        np.testing.assert_array_equal(majority[i], losses.majority_labels(counts[i]))
        np.testing.assert_allclose(matrices[i], losses.credibility_matrix(zg[i], y[i]), rtol=1e-6)
        np.testing.assert_allclose(
            swept[i], credibility(zg[i], y[i], float(sweep[0][i]), float(sweep[1][i])), rtol=1e-6
        )
        np.testing.assert_allclose(
            weights[i],
            losses.credibility_weights(zg[i], y[i], matrices[i], max_weight=0.1),
            rtol=1e-5,
            atol=1e-8,
        )


def test_no_majority_is_not_true_distillation():
    z, zg, y, _, _ = inputs(4)
    masked = losses.label_masking_distillation(z, zg, y, jnp.zeros(5, bool), temperature=2.0)
    not_true = losses.not_true_distillation(z, zg, y, temperature=2.0)
    np.testing.assert_array_equal(masked, not_true)


def test_a_uniform_teacher_is_teacher_free():
    z, zg, y, m, _ = inputs(4)
    uniform = jnp.full_like(zg, 7.0)
    np.testing.assert_allclose(
        losses.label_masking_teacher_free(z, y, m, temperature=2.0),
        losses.label_masking_distillation(z, uniform, y, m, temperature=2.0),
        rtol=1e-6,
    )


def test_equation_8_of_fedlmd_scales_the_gradients_of_minority_classes():
    z, _, _, _, _ = inputs(4)
    y, minority = jnp.array([0, 1, 2, 3, 4, 1]), jnp.array([False, True, True, False, True])
    others = ~jax.nn.one_hot(y, 5, dtype=bool)

    def of_the_paper(z):  # 1 / m for each of the m minority classes, without the term of y
        student = jax.nn.log_softmax(jnp.where(others, z, -jnp.inf))
        return -jnp.sum(jnp.where(others & minority, student, 0.0) / 3)

    ours = jax.grad(
        lambda z: losses.label_masking_teacher_free(z, y, ~minority, temperature=1.0).sum()
    )(z)
    scale = jnp.where(minority[y], 2 / 3, 1.0)[:, None]
    np.testing.assert_allclose(jax.grad(of_the_paper)(z), scale * ours, rtol=1e-5, atol=1e-7)


def test_a_constant_class_weight_scales_the_soft_cross_entropy():
    z, zg, y, _, _ = inputs(5)
    np.testing.assert_allclose(
        losses.class_weighted_distillation(z, zg, y, jnp.full(5, 0.3), temperature=2.0),
        0.3 * losses.soft_cross_entropy(z, zg, temperature=2.0),
        rtol=1e-6,
    )


def test_without_smoothing_it_is_the_cross_entropy():
    z, _, y, _, _ = inputs(6)
    np.testing.assert_array_equal(
        losses.smoothed_cross_entropy(z, y, smoothing=0.0), losses.cross_entropy(z, y)
    )


def test_cross_entropy_is_exact_with_a_large_offset():
    z, _, y, _, _ = inputs(6)
    z = jnp.round(z * 64) / 64  # so that adding the offset is exact
    np.testing.assert_allclose(
        losses.cross_entropy(z + 2.0**13, y), losses.cross_entropy(z, y), rtol=1e-6
    )


@pytest.mark.parametrize(
    'name', ['not_true_distillation', 'label_masking_distillation', 'label_masking_teacher_free']
)
def test_the_true_logit_gets_no_gradient(name):
    z, zg, y, m, a = inputs(7)
    gradient = jax.grad(lambda z: jnp.sum(LOSSES[name](z, zg, y, m, a, 2.0)))(z)
    np.testing.assert_array_equal(jnp.take_along_axis(gradient, y[:, None], axis=1), 0.0)
    assert jnp.any(gradient != 0)


@pytest.mark.parametrize(
    'name', ['kl_distillation', 'not_true_distillation', 'masked_mse_distillation']
)
def test_equal_student_and_teacher_have_zero_gradient(name):
    z, _, y, m, a = inputs(8)
    value, gradient = jax.value_and_grad(
        lambda s: jnp.sum(LOSSES[name](s, z, y, m, a, 2.0)),
    )(z)
    np.testing.assert_allclose(value, 0.0, atol=1e-6)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


@pytest.mark.parametrize('name', ['not_true_distillation', 'label_masking_distillation'])
def test_two_classes_have_no_not_true_loss(name):
    z, zg, y, _, a = inputs(9, classes=2)
    for majority in jnp.array([[False, False], [True, False], [True, True]]):
        value, gradient = jax.value_and_grad(
            lambda z, m=majority: jnp.sum(LOSSES[name](z, zg, y, m, a, 2.0))
        )(z)
        assert value == 0
        np.testing.assert_array_equal(gradient, 0.0)


def test_credibility_over_batches_is_credibility_at_once():
    _, zg, y, _, _ = inputs(10, examples=12)
    padded = jnp.full((4, 5), jnp.nan)  # the values of padding must not matter
    phi, count = jnp.zeros(5), jnp.zeros(5)
    for begin in range(0, 12, 4):
        more = losses.class_credibility_sums(
            jnp.concatenate([zg[begin : begin + 4], padded]),
            jnp.concatenate([y[begin : begin + 4], jnp.zeros(4, int)]),
            temperature=2.0,
            where=jnp.arange(8) < 4,
        )
        phi, count = phi + more[0], count + more[1]
    np.testing.assert_array_equal(count, jnp.bincount(y, length=5))
    np.testing.assert_allclose(
        losses.class_credibility_from_sums(phi, count, beta=0.1, gamma=0.7),
        losses.class_credibility(zg, y, beta=0.1, gamma=0.7, temperature=2.0),
        rtol=1e-6,
    )


@pytest.mark.parametrize('constant', [0.0, 0.3, 1.0])
def test_equal_bounds_are_a_constant_credibility(constant):
    _, zg, y, _, _ = inputs(11)
    found = losses.class_credibility(zg, y, beta=constant, gamma=constant, temperature=2.0)
    np.testing.assert_array_equal(found, np.float32(constant))


def test_padding_is_not_in_the_credibility_matrix():
    _, zg, y, _, _ = inputs(12, examples=8)
    where = jnp.arange(8) < 5
    np.testing.assert_array_equal(
        losses.credibility_matrix(zg, y, where=where), losses.credibility_matrix(zg[:5], y[:5])
    )


def test_a_teacher_who_never_errs_gets_nine_tenths_of_the_weight():
    logits = 1e4 * jnp.eye(3)
    matrix = losses.credibility_matrix(logits, jnp.arange(3))
    weights = losses.credibility_weights(logits, jnp.arange(3), matrix, max_weight=0.5)
    np.testing.assert_allclose(weights, 0.45, rtol=1e-6)


def test_proximal_of_half_precision_is_float32_and_the_start_gets_no_gradient():
    params = {'w': jnp.full(3, 1.5, jnp.bfloat16)}
    start = {'w': jnp.full(3, 1.0, jnp.bfloat16)}
    assert losses.proximal(params, start).dtype == jnp.float32
    np.testing.assert_array_equal(jax.grad(losses.proximal, argnums=1)(params, start)['w'], 0)
    # at the start of a round the distance and its gradient are exact zeros
    value, gradient = jax.value_and_grad(losses.proximal)(start, start)
    assert value == 0
    np.testing.assert_array_equal(gradient['w'], 0)


X, Y, M = jnp.zeros((2, 3)), jnp.array([0, 2]), jnp.zeros(3, bool)


@pytest.mark.parametrize(
    ('message', 'call'),
    [
        ('temperature must be .*, got 0', lambda: losses.kl_distillation(X, X, temperature=0)),
        (
            'temperature must be .*, got -1.0',
            lambda: losses.not_true_distillation(X, X, Y, temperature=-1.0),
        ),
        (
            'temperature must be .*, got inf',
            lambda: losses.soft_cross_entropy(X, X, temperature=float('inf')),
        ),
        (
            'temperature must be .*, got nan',
            lambda: losses.label_masking_teacher_free(X, Y, M, temperature=float('nan')),
        ),
        (
            'temperature must be .*, got 0',
            lambda: losses.class_credibility_sums(X, Y, temperature=0),
        ),
        (
            'smoothing must be .*, got 1.5',
            lambda: losses.smoothed_cross_entropy(X, Y, smoothing=1.5),
        ),
        (
            'max_weight must be .*, got -1',
            lambda: losses.credibility_weights(X, Y, jnp.eye(3), max_weight=-1),
        ),
        (
            'beta=0.5, gamma=0.3',
            lambda: losses.class_credibility(X, Y, beta=0.5, gamma=0.3, temperature=1.0),
        ),
        (
            'beta=-0.1, gamma=0.3',
            lambda: losses.class_credibility_from_sums(X[0], X[0], beta=-0.1, gamma=0.3),
        ),
        (
            'beta=0, gamma=2',
            lambda: losses.class_credibility_from_sums(X[0], X[0], beta=0, gamma=2),
        ),
        ('count has shape', lambda: losses.class_credibility_from_sums(X[0], 1, beta=0, gamma=1)),
        ('logits is a scalar', lambda: losses.cross_entropy(1.0, 1)),
        ('labels has shape', lambda: losses.cross_entropy(X, Y[:, None])),
        ('labels is float32', lambda: losses.cross_entropy(X, jnp.array([0.0, 1.0]))),
        ('teacher_logits has shape', lambda: losses.kl_distillation(X, X[:1], temperature=1.0)),
        (
            'channel_weights has shape',
            lambda: losses.masked_mse_distillation(X, X, jnp.ones((2, 1))),
        ),
        (
            'majority has shape',
            lambda: losses.label_masking_distillation(X, X, Y, M[:2], temperature=1.0),
        ),
        (
            'majority is int32',
            lambda: losses.label_masking_distillation(
                X, X, Y, M.astype(jnp.int32), temperature=1.0
            ),
        ),
        (
            'class_weights has shape',
            lambda: losses.class_weighted_distillation(X, X, Y, jnp.ones(2), temperature=1.0),
        ),
        (
            'temperature must be',
            lambda: losses.model_contrastive(X, X, X, temperature=0.0),
        ),
        ('credibility has shape', lambda: losses.credibility_weights(X, Y, X, max_weight=1)),
        ('where has shape', lambda: losses.credibility_matrix(X, Y, where=M)),
        ('where is int32', lambda: losses.credibility_matrix(X, Y, where=Y.astype(jnp.int32))),
        (
            'class_margins has shape',
            lambda: losses.calibrated_cross_entropy(X, Y, jnp.zeros(2)),
        ),
        ('features has shape', lambda: losses.decorrelation(X[0])),
        ('where has shape', lambda: losses.decorrelation(X, where=M)),
        ('label_counts is float32', lambda: losses.majority_labels(jnp.ones(3))),
        ('global_params has', lambda: losses.proximal({'w': X}, {'w': X[:1]})),
    ],
)
def test_bad_input(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_traced_number_is_not_checked():
    chex.assert_tree_all_finite(
        jax.jit(lambda t: losses.kl_distillation(X, X, temperature=t))(jnp.float32(2))
    )


@pytest.mark.parametrize('temperature', [0.0, 9e-5, 1001.0, 1e300, float('nan')])
def test_temperatures_out_of_range_are_refused(temperature):
    with pytest.raises(ValueError, match='temperature must be above 0, from 1e-4 to 1e3'):
        losses.kl_distillation(jnp.ones((1, 2)), jnp.zeros((1, 2)), temperature=temperature)
