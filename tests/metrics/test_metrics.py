"""The measures: values by hand, properties, and whole runs next to plain NumPy."""

import functools
import json
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxfed
from jaxfed import Config, metrics
from jaxfed.data.statistics import channel_statistics
from jaxfed.engine import evaluation, local_evaluation
from jaxfed.engine.devices import make_mesh
from jaxfed.engine.stacking import row
from jaxfed.metrics import selection
from jaxfed.metrics.accuracy import Evaluation
from jaxfed.metrics.history import empty_history
from jaxfed.metrics.measures import MEASURES, Measure, RoundData
from jaxfed.metrics.selection import parse_clients, parse_measures
from jaxfed.runs import checks, feed, prepare, simulate
from jaxfed.runs.experiment import set_up
from jaxfed.types import Model, Outputs
from tests.marks import slow

HISTORY = np.array([[0.5, 0.2, 0.0], [0.1, 0.8, 0.0], [0.3, 0.9, 0.0]])
COUNTS = np.array([[6, 2, 0], [1, 1, 2]])
# Parameters of three models and of the one they started from. Their updates are (3, 0; 4),
# (0, 0; 0) and (0, 6; 8), whose mean is (1, 2; 4).
MODELS = {'a': np.array([[4.0, 1], [1, 1], [1, 7]]), 'b': np.array([[[6.0]], [[2]], [[10]]])}
START = {'a': np.array([1.0, 1.0]), 'b': np.array([[2.0]])}
# Neuron 0 is most active on class 0 (4 of 4, 2), neuron 1 on class 2 (1, 3), neuron 2 never is.
ACTIVATIONS = np.array([[4.0, 1, 0], [4.0, 1, 0], [2, 3, 0]])
THIRDS = np.log([[1.0, 1.0], [1.0, 3.0]])

BY_HAND = (
    # after (.1, .8): best (.5, .8), now (.3, .9)
    ('class_forgetting', metrics.class_forgetting, (HISTORY,), [0.2, -0.1, 0]),
    ('forgetting', metrics.forgetting, (HISTORY,), 0.1 / 3),
    ('first_forgetting', metrics.class_forgetting, (HISTORY[:1],), [0, 0, 0]),
    # (.05 + .16) / (sqrt .29 sqrt .65)
    ('consistency', metrics.class_consistency, (HISTORY[0], HISTORY[1]), 0.21 / 0.1885**0.5),
    ('consistent', metrics.class_consistency, (HISTORY[0], HISTORY[0] / 2), 1),
    ('consistent_zeros', metrics.class_consistency, (np.zeros(3), np.zeros(3)), 1),
    ('consistency_with_zeros', metrics.class_consistency, (np.zeros(3), HISTORY[0]), 0),
    (
        'same_predictions',
        metrics.same_predictions,
        (np.array([0, 1, 2, 2]), np.array([0, 2, 2, 2])),
        0.75,
    ),
    (
        'confusion',
        functools.partial(metrics.confusion_matrix, num_classes=3),
        (np.array([0, 0, 0, 2]), np.array([0, 1, 1, 2])),
        [[1, 2, 0], [0, 0, 0], [0, 0, 1]],
    ),
    (
        'prediction_share',
        functools.partial(metrics.prediction_share, num_classes=3),
        (np.array([0, 2, 2, 2]),),
        [0.25, 0, 0.75],
    ),
    ('label_shares', metrics.label_shares, (COUNTS,), [[0.75, 0.25, 0], [0.25, 0.25, 0.5]]),
    ('no_labels', metrics.label_shares, (np.zeros(4, int),), [0.25] * 4),
    ('out_local', metrics.out_local, (np.array([0.75, 0.25, 0]),), [0.125, 0.375, 0.5]),
    # .75 x .5 + .25 x .2; .125 x .5 + .375 x .2, and .25 x .5 + .25 x .2; .375 x .5 + .375 x .2
    (
        'in_out',
        metrics.in_out_accuracy,
        (HISTORY[0], COUNTS),
        ([0.425, 0.175], [0.1375, 0.2625]),
    ),
    (
        'class_preference',
        functools.partial(metrics.class_preference, num_classes=4),
        (ACTIVATIONS, np.array([0, 0, 2])),
        [0, 2, 0],
    ),
    # Class 0 has no examples, so no neuron prefers it.
    (
        'class_preference_without_examples',
        functools.partial(metrics.class_preference, num_classes=3),
        (-ACTIVATIONS, np.array([1, 1, 2])),
        [2, 1, 1],
    ),
    ('alignment', metrics.alignment, (np.array([0, 2, 1, 1]), np.array([0, 1, 1, 2])), 0.5),
    ('weight_distances', metrics.weight_distances, (MODELS, START), [5, 0, 10]),
    # pg = (5/7, 2/7, 0)
    (
        'distribution_divergence',
        metrics.distribution_divergence,
        (np.array([[0.75, 0.25, 0], [0, 0, 1]]), HISTORY[0]),
        [1 / 14, 2],
    ),
    (
        'divergence_from_nothing',
        metrics.distribution_divergence,
        (np.array([[1, 0, 0, 0]]), np.zeros(4)),
        [1.5],
    ),
    # <(3, 0; 4), (1, 2; 4)> = 19, <(0, 6; 8), (1, 2; 4)> = 44, ||(1, 2; 4)||^2 = 21
    (
        'drift',
        metrics.drift,
        (MODELS, START),
        ([5, 0, 10], [19 / 5 / 21**0.5, 0, 44 / 10 / 21**0.5], 125 / 3 / 21),
    ),
    ('no_drift', metrics.drift, ({'a': np.ones((2, 3))}, {'a': np.ones(3)}), ([0, 0], [0, 0], 1)),
    (
        'drift_apart',
        metrics.drift,
        ({'a': np.array([[1.0], [-1.0]])}, {'a': np.zeros(1)}),
        ([1, 1], [0, 0], np.inf),
    ),
    ('diversity', metrics.diversity, (np.array([1.0, 3.0]), 0.5), 4),
    # A uniform teacher: log 1/2 - (log 1/4 + log 3/4) / 2, the same for both examples.
    (
        'teacher_kl',
        metrics.teacher_kl,
        (THIRDS[:1], THIRDS[1:]),
        np.log(0.5) - (np.log(0.25) + np.log(0.75)) / 2,
    ),
    ('kl_of_itself', metrics.teacher_kl, (THIRDS, THIRDS), 0),
)


class ByHandTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters(*BY_HAND)
    def test_value(self, function, arguments, right):
        found = self.variant(function)(*arguments)
        if not isinstance(right, tuple):
            found, right = (found,), (right,)
        assert len(found) == len(right)
        for value, expected in zip(found, right, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_gradient_sum(self):
        # Logits w x of examples 1, 2 and 5, the last one not counted, classes 0, 1 and 0.
        @self.variant
        def gradient(w, x, y, mask):
            return evaluation.gradient_sum(lambda w, x: Outputs(x * w, x), w, x, y, mask)

        x, mask = np.array([[1.0], [2.0], [5.0]]), np.array([True, True, False])
        found = gradient(np.zeros(2), x, np.array([0, 1, 0]), mask)
        np.testing.assert_allclose(found, [-0.5 + 1, 0.5 - 1], rtol=1e-6)


def test_local_models_next_to_their_teacher():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    y = rng.integers(0, 3, 7).astype(np.int32)
    weights = rng.standard_normal((2, 2, 4, 3)).astype(np.float32)

    def linear(w, x):
        return Outputs(x @ w, jax.nn.relu(x @ w))

    test_teacher = jax.jit(functools.partial(evaluation.evaluate_teacher, linear))
    _, teacher = test_teacher(weights[0, 1], x, y)
    run = functools.partial(local_evaluation.evaluate_locals, linear, mesh=make_mesh(2), lanes=2)
    count = np.array([2, 1], np.int32)
    evaluations, agreement = jax.jit(run)(weights, count, x, y, teacher)
    logits = np.einsum('mf,dlfc->dlmc', x, weights)
    np.testing.assert_array_equal(evaluations.predicted[0], logits[0].argmax(-1))
    np.testing.assert_allclose(evaluations.accuracy[1, 0], (logits[1, 0].argmax(-1) == y).mean())
    assert agreement.alignment[0, 1] == 1
    np.testing.assert_allclose(agreement.kl[0, 1], 0, atol=1e-6)
    assert agreement.kl[0, 0] > 0.01
    # The last place has no client.
    assert not any(np.any(leaf[1, 1]) for leaf in jax.tree.leaves((evaluations, agreement)))


vectors = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(st.integers(-9, 9), min_size=n, max_size=n), min_size=1, max_size=5)
)


@settings(max_examples=50)
@given(vectors)
def test_diversity_is_at_least_one_and_cosines_are_cosines(rows):
    models = np.array(rows, float)
    found = metrics.drift([models], [np.zeros(models.shape[1])])
    assert found.diversity >= 1 - 1e-5
    assert np.all(np.abs(found.cosines) <= 1 + 1e-5)
    assert np.all((found.norms == 0) <= (found.cosines == 0))


@settings(max_examples=50)
@given(vectors, st.integers(0, 99))
def test_shares_and_counts(rows, seed):
    counts = np.abs(rows) @ np.ones((len(rows[0]), 3), int) + np.abs(rows)[:, :1] * [0, 1, 5]
    shares = metrics.label_shares(counts)
    rng = np.random.default_rng(seed)
    accuracy = rng.random(3) * rng.integers(0, 2, 3)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(metrics.out_local(shares).sum(-1), 1, rtol=1e-5)
    divergence = metrics.distribution_divergence(shares, accuracy)
    assert np.all((divergence >= 0) & (divergence <= 2 + 1e-5))
    y, predicted = rng.integers(0, 3, (2, 20))
    matrix = metrics.confusion_matrix(y, predicted, 3)
    np.testing.assert_array_equal(matrix.sum(axis=1), np.bincount(y, minlength=3))
    share = metrics.prediction_share(predicted, 3)
    np.testing.assert_allclose(matrix.sum(axis=0) / 20, share, rtol=1e-6)
    preference = metrics.class_preference(rng.random((20, 6)), y, 3)
    assert metrics.alignment(preference, preference) == 1


@pytest.mark.parametrize(
    'values, expected',
    [([], (None, None)), ([None], (None, None)), ([3], (3, None)), ([1, None, 2], (1.5, 0.5**0.5))],
)
def test_mean_and_deviation_leave_out_none(values, expected):
    assert metrics.mean_and_deviation(values) == pytest.approx(expected)


def test_moving_average():
    # 0.6 * 10 + 0.4 * 20 = 14, 0.6 * 14 + 0.4 * 40 = 24.4; rounds without evaluation do not count.
    np.testing.assert_allclose(metrics.moving_average([10, None, 20, 40]), [10, 14, 24.4])
    assert metrics.moving_average([3, 5], past=0) == [3, 5]
    assert metrics.moving_average([None]) == []


def test_mean_of_last():
    # Rounds 2 to 4 of 4 are the last three, of which 3 was not evaluated: (20 + 40) / 2.
    curve = [1, 2, 3, 4], [10, 20, None, 40]
    assert metrics.mean_of_last(curve, 3) == 30
    assert metrics.mean_of_last(curve) == pytest.approx(70 / 3)
    assert metrics.mean_of_last((range(1, 12), [100, *[50] * 10])) == 50
    assert metrics.mean_of_last(([1, 2], [10, None]), 1) is None
    assert metrics.mean_of_last(([], [])) is None


def test_rounds_to_target_and_speed_up():
    slow, fast = ([2, 4, 6, 8], [0.1, None, 0.5, 0.4]), ([1, 2, 3], [0.3, 0.5, 0.4])
    assert metrics.rounds_to_target(slow, 0.5) == 6
    assert metrics.rounds_to_target(slow, 0.6) is None
    assert metrics.rounds_to_target(([], []), 0.1) is None
    assert metrics.speed_up(slow, fast) == 3
    assert metrics.speed_up(slow, slow) == 1
    assert metrics.speed_up(fast, slow, target=0.2) == pytest.approx(1 / 6)
    assert metrics.speed_up(slow, fast, target=0.6) is None
    assert metrics.speed_up(([1], [None]), fast) is None


# Plain NumPy, one client and one example after another where it matters.


def mlp(params, _, x):
    hidden = x.reshape(len(x), -1)
    for name in ('hidden1', 'hidden2'):
        hidden = np.maximum(hidden @ params[name]['kernel'] + params[name]['bias'], 0)
    return hidden, hidden @ params['classifier']['kernel'] + params['classifier']['bias']


def mlp_gradient(params, _, x, y):
    layers = [params[name] for name in ('hidden1', 'hidden2', 'classifier')]
    inputs = [x.reshape(len(x), -1)]
    for layer in layers[:2]:
        inputs.append(np.maximum(inputs[-1] @ layer['kernel'] + layer['bias'], 0))
    back = softmax(inputs[-1] @ layers[2]['kernel'] + layers[2]['bias'])
    back[np.arange(len(y)), y] -= 1
    found = []
    for layer, given_ in zip(reversed(layers), reversed(inputs)):
        found += [(given_.T @ back).ravel(), back.sum(0)]
        back = back @ layer['kernel'].T * (given_ > 0)
    return np.concatenate(found) / len(y)


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def adapt_to_statistics(model):
    """Logits w (x - mean), where the mean is a statistic that moves in training."""

    def init(key):
        return {'w': 0.1 * jax.random.normal(key, (64, 10))}

    def apply(params, x, stats, mask=None):
        x = x.reshape(x.shape[0], -1)
        logits = (x - stats['mean']) @ params['w']
        moved = {'mean': 0.9 * stats['mean'] + 0.1 * x.mean(0)} if mask is not None else ()
        return Outputs(logits, logits, moved)

    return Model(init, apply, {'mean': jnp.zeros(64)})


def centered(params, stats, x):
    logits = (x.reshape(len(x), -1) - stats['mean']) @ params['w']
    return logits, logits


def centered_gradient(params, stats, x, y):
    back = softmax(centered(params, stats, x)[1])
    back[np.arange(len(y)), y] -= 1
    return ((x.reshape(len(x), -1) - stats['mean']).T @ back).ravel() / len(y)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def right_values(experiment, before, after, models, cohort, forward, gradient, chosen):
    """The expected measures of local models; `models` by client."""
    dataset, counts = experiment.dealt.dataset, experiment.dealt.label_counts
    mean, std = (np.asarray(a, np.float64) for a in channel_statistics(dataset.x_train))
    y, classes = dataset.y_test, dataset.num_classes

    def evaluate(weights):
        features, z = forward(*weights, (dataset.x_test - mean) / std)
        right = z.argmax(-1) == y
        by_class = np.array([right[y == c].mean() if (y == c).any() else 0 for c in range(classes)])
        means = np.array([features[y == c].mean(0) for c in range(classes)])
        return by_class, softmax(z), means.argmax(0), z.argmax(-1)

    def wide(weights):
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)

    before, after = wide(before), wide(after)
    seen_before, seen_after = evaluate(before), evaluate(after)
    updates = [flat(models[c][0]) - flat(before[0]) for c in cohort]
    mean_update = sum(updates) / len(updates)
    norms = [np.linalg.norm(u) for u in updates]
    cosines = [u @ mean_update / n / np.linalg.norm(mean_update) for u, n in zip(updates, norms)]
    gradients = []
    for c in cohort:
        examples = experiment.dealt.partition[c]
        x = (dataset.x_train[examples] - mean) / std
        gradients.append(gradient(*before, x, dataset.y_train[examples]))
    names = ('in', 'out', 'in_b', 'out_b', 'in_a', 'out_a', 'kl', 'al', 'd', 'acc', 'own', 'own_a')
    right = {name: [] for name in names}
    confusions = {}
    for c in cohort:
        p = counts[c] / counts[c].sum()
        out = (1 - p) / (classes - 1)
        accuracy, probability, preference, predicted = evaluate(wide(models[c]))
        for end, a in (('', accuracy), ('_b', seen_before[0]), ('_a', seen_after[0])):
            right[f'in{end}'].append(p @ a)
            right[f'out{end}'].append(out @ a)
        divergence = seen_before[1] * np.log(seen_before[1] / probability)
        right['acc'].append((predicted == y).mean())
        held = experiment.dealt.personal[c]
        x, labels = (dataset.x_train[held] - mean) / std, dataset.y_train[held]
        for name, weights in (('own', wide(models[c])), ('own_a', after)):
            right[name].append(
                (forward(*weights, x)[1].argmax(-1) == labels).mean() if len(held) else None
            )
        right['kl'].append(divergence.sum(-1).mean())
        right['al'].append((preference == seen_before[2]).mean())
        right['d'].append(np.abs(p - seen_before[0] / seen_before[0].sum()).sum())
        if c in chosen:
            matrix = np.zeros((classes, classes), int)
            np.add.at(matrix, (y, predicted), 1)
            confusions[str(c)] = matrix.tolist()
    return {
        'cohort': cohort,
        'cohort_labels': counts[cohort].sum(0),
        'local_accuracies': right['acc'],
        'personal_accuracies': right['own'],
        'personal_global_accuracies': right['own_a'],
        'in_local_accuracy': np.mean(right['in']),
        'out_local_accuracy': np.mean(right['out']),
        'in_local_accuracy_before': np.mean(right['in_b']),
        'out_local_accuracy_before': np.mean(right['out_b']),
        'in_local_accuracy_after': np.mean(right['in_a']),
        'out_local_accuracy_after': np.mean(right['out_a']),
        'update_norm': np.mean(norms),
        'update_cosine': np.mean(cosines),
        'update_diversity': np.mean(np.square(norms)) / (mean_update @ mean_update),
        'update_norms': norms,
        'update_cosines': cosines,
        'weight_divergence': np.mean(
            [np.linalg.norm(flat(models[c][0]) - flat(before[0])) for c in cohort]
        ),
        'distribution_divergence': np.mean(right['d']),
        'weight_alignment': np.mean(right['al']),
        'gradient_diversity': np.mean([g @ g for g in gradients])
        / np.sum(np.mean(gradients, 0) ** 2),
        'teacher_kl': np.mean(right['kl']),
        'local_confusion': confusions,
    }, seen_after


MEASURED = {
    'model': 'mlp',
    'rounds': 3,
    'num_clients': 8,
    'alpha': 0.3,
    'devices': '2',
    'lanes': 2,
    'local_epochs': 1,
    'label_noise': 0.1,
    'eval_every': 2,
    'local_eval_every': 2,
    'personal_test': 0.02,  # the smallest clients keep none
}
LOOK = {'measure': 'all', 'confusion_clients': '0,3,5'}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """Runs an experiment; returns it, its records and the models before and after each round."""

    @functools.cache
    def go(waves, statistics, looks):
        workdir = str(tmp_path_factory.mktemp('runs') / 'run')
        method = jaxfed.Method(adapt=adapt_to_statistics) if statistics else None
        chosen = Config(
            **MEASURED, **(LOOK if looks else {}), workdir=workdir, stream='on' if waves else 'off'
        )
        recorded = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feed, 'memory', lambda mesh: 1.0)  # one large client fits at most
            inner = prepare.run_waves

            def run_waves(*arguments, **keywords):
                start = row(arguments[2], 0)
                before = jax.device_get((start.params, start.stats))
                server, metrics_, kept = inner(*arguments, **keywords)
                cohort = arguments[4].clients[0]
                models = {}
                for plan, stack in kept:
                    for i, slot in enumerate(plan.slot[plan.used]):
                        models[int(cohort[slot])] = jax.tree.map(lambda leaf, i=i: leaf[i], stack)
                end = row(server, 0)
                taken = jax.device_get((end.params, end.stats))
                recorded.append((before, taken, models, cohort, len(kept)))
                return server, metrics_, kept

            patch.setattr(prepare, 'run_waves', run_waves)
            experiment = set_up(chosen, method)
            result = simulate.train(experiment, quiet=True)
        return experiment, result, recorded

    return go


@pytest.mark.slow
@pytest.mark.parametrize(
    'waves, statistics', [(False, False), (True, False), (True, True)], ids=str
)
def test_measures_are_those_of_plain_numpy(run, waves, statistics):
    experiment, result, rounds = run(waves, statistics, True)
    assert max(waves_ for *_, waves_ in rounds) > 1 or not waves
    functions = (centered, centered_gradient) if statistics else (mlp, mlp_gradient)
    history, last = [], None
    for entry, (before, after, models, cohort, _) in zip(result.metrics, rounds):
        if entry['round'] == 1:  # nothing is evaluated
            names = selection.fields(tuple(MEASURES))
            named = {name for name in names if entry[name] is not None}
            assert named == {'cohort', 'cohort_labels'}
            continue
        right, seen = right_values(
            experiment, before, after, models, cohort, *functions, chosen=(0, 3, 5)
        )
        accuracy, _, _, predicted = seen
        y = experiment.dealt.dataset.y_test
        history.append(accuracy)
        gap = np.max(history[:-1], axis=0) - accuracy if len(history) > 1 else 0 * accuracy
        right |= {
            'class_forgetting': gap,
            'forgetting': gap.mean(),
            'prediction_share': np.bincount(predicted, minlength=10) / len(y),
            'confusion': [
                [((y == a) & (predicted == b)).sum() for b in range(10)] for a in range(10)
            ],
        }
        if last is None:
            assert entry['class_consistency'] is None
            assert entry['same_predictions'] is None
        else:
            lengths = np.linalg.norm(history[-2]) * np.linalg.norm(accuracy)
            right['class_consistency'] = history[-2] @ accuracy / lengths
            right['same_predictions'] = (last == predicted).mean()
        last = predicted
        assert entry['local_confusion'] == right.pop('local_confusion')
        for name, value in right.items():
            found, right_ = (np.array(v, float) for v in (entry[name], value))  # NaN for None
            np.testing.assert_allclose(
                found, right_, rtol=2e-4, atol=2e-6, err_msg=f'{name} of {entry["round"]}'
            )
        assert entry['gradient_diversity'] >= 1
    scalars = [name for measure in MEASURES.values() for name in measure.scalars]
    assert {name: result.summary[name] for name in scalars} == {
        name: result.metrics[-1][name] for name in scalars
    }


@pytest.mark.slow
def test_measuring_changes_nothing_else(run):
    _, plain, _ = run(False, False, False)
    _, measured, _ = run(False, False, True)
    jax.tree.map(np.testing.assert_array_equal, plain.params, measured.params)
    added = set(selection.fields(tuple(MEASURES)))
    assert len(added) == len(selection.fields(tuple(MEASURES)))
    for a, b in zip(plain.metrics, measured.metrics):
        assert set(b) - set(a) == added
        assert all(a[name] == b[name] for name in a if 'seconds' not in name)
    assert not added & set(plain.summary)


@pytest.mark.slow
def test_waves_give_the_same_measures(run):
    whole, waves = run(False, False, True)[1], run(True, False, True)[1]
    for a, b in zip(whole.metrics, waves.metrics):
        for name in selection.fields(tuple(MEASURES)):
            if name == 'local_confusion' or a[name] is None:
                assert a[name] == b[name], name
            else:
                found, right = (np.array(v, float) for v in (a[name], b[name]))  # NaN for None
                np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-5, err_msg=name)


def test_forgetting_leaves_out_classes_without_test_examples():
    data = SimpleNamespace(
        y=np.array([0, 2, 2]),
        num_classes=3,
        history=SimpleNamespace(rounds=1, best=np.array([0.5, 0.0, 1.0])),
    )
    now = SimpleNamespace(class_accuracy=np.array([0.25, 0.0, 0.5]))
    found = MEASURES['forgetting'].of_global(data, now)
    assert found['forgetting'] == pytest.approx((0.25 + 0.5) / 2)
    np.testing.assert_allclose(found['class_forgetting'], [0.25, 0, 0.5])


@pytest.mark.slow
def test_a_diverged_run_has_no_values(cheap_runs, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 3, 1)).astype(np.uint8)
    y = np.arange(60) % 3
    np.savez(tmp_path / 'tiny.npz', x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    result = jaxfed.simulate(
        Config(
            dataset='npz', npz=str(tmp_path / 'tiny.npz'), model='mlp', num_clients=3,
            clients_per_round=2, devices='1', alpha=1.0, learning_rate=1e12, rounds=4,
            on_divergence='record', measure='all', confusion_clients='1', local_eval_every=1,
            workdir=str(tmp_path / 'out'),
        )
    )  # fmt: skip
    assert result.summary['failed']
    last = json.loads((tmp_path / 'out' / 'metrics.jsonl').read_text().splitlines()[-1])
    assert all(last[name] is None for name in selection.fields(tuple(MEASURES)))
    json.dumps(result.summary, allow_nan=False)


@pytest.mark.slow
def test_values_that_are_not_finite_become_null(cheap_runs, tmp_path, monkeypatch):
    def broken(seen, *_):
        return {'one': np.nan, 'some': jnp.array([1.0, jnp.inf]), 'two': np.int32(3)}

    mine = Measure('Mine.', 'nothing', ('one', 'two'), ('some',), of_round=broken)
    monkeypatch.setitem(MEASURES, 'mine', mine)
    result = jaxfed.simulate(
        Config(model='mlp', rounds=1, devices='1', lanes=1, local_epochs=1, measure='mine',
               workdir=str(tmp_path / 'out'))
    )  # fmt: skip
    (entry,) = result.metrics
    assert (entry['one'], entry['two'], entry['some']) == (None, 3, [1.0, None])
    assert result.summary['one'] is None
    assert result.summary['two'] == 3


@pytest.mark.parametrize(
    'mine, message',
    [
        (
            Measure('Mine.', scalars=('test_accuracy',)),
            "'test_accuracy', as jaxfed does; rename",
        ),
        (Measure('Mine.', scalars=('rounds',)), "records 'rounds', as jaxfed does"),
        (Measure('Mine.', arrays=('forgetting',)), "'forgetting', as --measure=forgetting does"),
        (Measure('Mine.', needs=('model',)), "must name 'agreement' or 'models' or .* got 'model'"),
        (Measure('Mine.', scalars='one'), r"scalars must be a tuple of names, as \('name',\)"),
        (Measure('Mine.', by_class='one'), 'by_class must be a tuple of names'),
        (
            Measure('Mine.', arrays=('one',), by_class=('two',)),
            "by_class must name fields of its arrays, got 'two'",
        ),
        (
            Measure('Mine.', arrays=('one',), titles={'one': ('One', False)}),
            "titles must name its scalars, got 'one'",
        ),
        (len, 'must be a Measure, got <built-in function len>'),
    ],
)
def test_registered_measures_are_checked(mine, message, monkeypatch):
    monkeypatch.setitem(MEASURES, 'mine', mine)
    with pytest.raises(ValueError, match=message):
        checks.check(Config(measure='forgetting,mine'))


@pytest.mark.parametrize(
    'returned, message',
    [
        ({'two': 2}, "returns 'two', but its scalars and arrays do not list it; add it"),
        ({'one': [1, 2]}, r"must return a number as its scalar 'one', got the shape \[2\]"),
        ({'one': 'high'}, "must return a number as its scalar 'one', got 'high'"),
        (0.5, r"MEASURES\['mine'\]\.of_round must return a dictionary of fields, .* got float\."),
        ({'all': ['high', 'low']}, "must return numbers, .* as 'all', got \\['high', 'low'\\]"),
        ({'all': {'a': [[1], [2, 3]]}}, "must return numbers, .* as 'all', got {'a': "),
    ],
)
def test_a_measure_returns_the_fields_that_it_lists(returned, message, monkeypatch):
    mine = Measure('Mine.', scalars=('one',), arrays=('all',), of_round=lambda data: returned)
    monkeypatch.setitem(MEASURES, 'mine', mine)
    with pytest.raises(ValueError, match=message):
        selection.measure_round(('mine',), None, None, None)


def test_classes_without_test_examples_are_left_out():
    counts, y = np.array([[2, 6, 2], [0, 0, 9]]), np.array([0, 1, 1])
    class_accuracy = np.array([[0.5, 1.0, 0.0], [0.25, 0.75, 0.0]])
    data = RoundData(np.array([0, 1]), counts, y, empty_history(3, 3), ())
    each = SimpleNamespace(class_accuracy=class_accuracy)
    own = SimpleNamespace(class_accuracy=class_accuracy[0])
    local = SimpleNamespace(each=each, before=own, after=own)
    fields = MEASURES['in_out'].of_locals(data, local)
    # Of the tested classes client 0 has a quarter and three quarters, client 1 none: uniform.
    np.testing.assert_allclose(fields['in_local_accuracy'], (0.25 * 0.5 + 0.75 + 0.5) / 2)
    np.testing.assert_allclose(fields['out_local_accuracy'], (0.75 * 0.5 + 0.25 + 0.5) / 2)


def test_a_measure_may_return_numbers_by_name(monkeypatch):
    returned = {'all': {'a': np.float32([0.5]), 'b': {'c': True, 'd': None, 'e': jnp.ones(2)}}}
    mine = Measure('Mine.', arrays=('all',), of_round=lambda data: returned)
    monkeypatch.setitem(MEASURES, 'mine', mine)
    assert selection.measure_round(('mine',), None, None, None) == returned


def test_an_error_in_a_measure_names_its_line(monkeypatch):
    mine = Measure('Mine.', scalars=('one',), of_round=lambda data: {'one': 1 / data})
    monkeypatch.setitem(MEASURES, 'mine', mine)
    message = r"MEASURES\['mine'\]\.of_round \(test_metrics\.py, line \d+\): ZeroDivisionError: "
    with pytest.raises(ValueError, match=message):
        selection.measure_round(('mine',), 0, None, None)


def test_an_error_in_a_measure_names_the_input_that_it_did_not_ask_for(monkeypatch):
    def sharpness(data, now):
        return {'sharpness': now.logits.max()}

    mine = Measure('Mine.', scalars=('sharpness',), of_global=sharpness)
    monkeypatch.setitem(MEASURES, 'mine', mine)
    now = Evaluation(*np.zeros(len(Evaluation._fields) - 1))
    advice = r"no attribute 'max'; it reads logits, so add needs=\('logits',\) to the measure\.$"
    with pytest.raises(ValueError, match=advice):
        selection.measure_round(('mine',), None, now, None)
    monkeypatch.setitem(MEASURES, 'mine', mine._replace(needs=('logits',)))
    with pytest.raises(ValueError, match=r"no attribute 'max'\.$"):
        selection.measure_round(('mine',), None, now, None)
    divides = Measure('Mine.', scalars=('one',), of_global=lambda data, now: now.logits or 1 / 0)
    monkeypatch.setitem(MEASURES, 'mine', divides)
    with pytest.raises(ValueError, match=r'division by zero\.$'):
        selection.measure_round(('mine',), None, now, None)


@pytest.mark.parametrize('devices, measure', [slow('1', 'mine'), ('2', 'mine,teacher_kl')])
def test_a_measure_reads_the_logits(devices, measure, cheap_runs, tmp_path, monkeypatch):
    seen = []

    def confidence(data, now):
        seen.append(now)
        p = jax.nn.softmax(now.logits)
        return {'confidence': p.max(axis=1).mean()}

    mine = Measure('Mine.', scalars=('confidence',), of_global=confidence, needs=('logits',))
    monkeypatch.setitem(MEASURES, 'mine', mine)
    local = 1 if 'kl' in measure else 0
    (entry,) = jaxfed.simulate(
        Config(model='mlp', rounds=1, devices=devices, local_epochs=1, measure=measure,
               local_eval_every=local, workdir=str(tmp_path / 'out'))
    ).metrics  # fmt: skip
    assert 0.1 < entry['confidence'] <= 1
    assert seen[0].logits.shape == (len(seen[0].predicted), 10)
    np.testing.assert_array_equal(np.argmax(seen[0].logits, axis=1), seen[0].predicted)


@pytest.mark.slow
def test_a_measure_of_both_models_has_all_its_fields(cheap_runs, tmp_path, monkeypatch):
    mine = Measure(
        'Mine.',
        scalars=('of_global', 'of_local'),
        of_global=lambda data, now: {'of_global': now.accuracy},
        of_locals=lambda data, local: {'of_local': local.each.accuracy.mean()},
    )
    monkeypatch.setitem(MEASURES, 'mine', mine)
    (entry,) = jaxfed.simulate(
        Config(model='mlp', rounds=1, devices='1', lanes=1, local_epochs=1, measure='mine',
               local_eval_every=1, workdir=str(tmp_path / 'out'))
    ).metrics  # fmt: skip
    assert entry['of_local'] == pytest.approx(entry['local_accuracy'])
    assert entry['of_global'] == pytest.approx(entry['test_accuracy'])
    assert selection.need_local_models(['confusion'], [3])
    assert not selection.need_local_models(['confusion', 'forgetting'], [])


def test_parsing_of_names():
    assert parse_measures('none') == ()
    assert parse_measures('all') == tuple(MEASURES)
    assert parse_measures('drift, forgetting') == ('drift', 'forgetting')
    assert parse_clients(None) == ()
    assert parse_clients('3, 0') == (3, 0)
    checks.check(Config(measure='forgetting,confusion'))
    checks.check(Config(measure='all', local_eval_every=5, confusion_clients='0,19'))


@pytest.mark.parametrize(
    'settings_, message',
    [
        ({'measure': 'drfit'}, r"--measure=drfit names 'drfit': choose from forgetting, .*teacher"),
        ({'measure': ''}, r"--measure= names '': choose from"),
        ({'measure': 'none,drift'}, "names 'none'"),
        ({'measure': 'confusion,confusion'}, "names 'confusion' twice"),
        (
            {'measure': 'forgetting,drift'},
            'forgetting,drift evaluates local models, but --local_eval_every=0; set it',
        ),
        ({'measure': 'all'}, '--measure=all evaluates local models, but --local_eval_every=0'),
        ({'confusion_clients': '0'}, 'needs --measure=confusion, got --measure=none'),
        ({'confusion_clients': '0', 'measure': 'confusion'}, '--local_eval_every=0; set it'),
        ({'confusion_clients': '0,x'}, '--confusion_clients must be client ids.* got 0,x'),
        ({'confusion_clients': '-1'}, '--confusion_clients must be client ids.* got -1'),
        ({'confusion_clients': ''}, '--confusion_clients must be client ids'),
        ({'confusion_clients': '1,1'}, '--confusion_clients=1,1 names a client twice'),
        ({'confusion_clients': '20'}, '--confusion_clients must be from 0 to 19, got 20'),
        ({'stragglers': 0.5, 'local_epochs': 1}, '--stragglers must be 0 with --local_epochs=1'),
    ],
)
def test_invalid_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        checks.check(Config(**settings_))
