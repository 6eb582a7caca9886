"""The losses against an independent reference: NumPy, float64, one example and class at a time."""

import numpy as np
import pytest

from jaxfed import losses


def softmax(z, classes, tau):
    """The softmax of the sub-vector of `classes`, as a dict by class."""
    largest = max(z[c] for c in classes)
    powers = {c: np.exp((z[c] - largest) / tau) for c in classes}
    total = sum(powers.values())
    return {c: power / total for c, power in powers.items()}


def kl(teacher, student):
    return sum(p * (np.log(p) - np.log(student[c])) for c, p in teacher.items() if p > 0)


def divergence(z, teacher_of, student_classes, tau):
    return tau**2 * kl(teacher_of, softmax(z, student_classes, tau)) if teacher_of else 0.0


def cross_entropy(case):
    return [-np.log(softmax(z, case.all, 1.0)[y]) for z, y in zip(case.z, case.y)]


def smoothed_cross_entropy(case):
    result = []
    for z, y in zip(case.z, case.y):
        p = softmax(z, case.all, 1.0)
        uniform = np.mean([-np.log(p[c]) for c in case.all])
        result.append(-0.9 * np.log(p[y]) + 0.1 * uniform)
    return result


def calibrated_cross_entropy(case):
    """Over the classes that are not in the majority, with the weights as margins."""
    result = []
    for z, y in zip(case.z, case.y):
        classes = [c for c in case.all if not case.majority[c]]
        p = softmax(z - case.a, classes, 1.0) if classes else {}
        result.append(-np.log(p[y]) if y in p else 0.0)
    return result


def decorrelation(case):
    """By NumPy's correlations."""
    of_pairs = np.corrcoef(case.z, rowvar=False)[~np.eye(len(case.all), dtype=bool)]
    return np.mean(of_pairs**2)


def kl_distillation(case):
    return [
        divergence(z, softmax(zg, case.all, case.tau), case.all, case.tau)
        for z, zg in zip(case.z, case.zg)
    ]


def soft_cross_entropy(case):
    result = []
    for z, zg in zip(case.z, case.zg):
        pg, p = softmax(zg, case.all, case.tau), softmax(z, case.all, case.tau)
        result.append(-sum(pg[c] * np.log(p[c]) for c in case.all))
    return result


def class_weighted_distillation(case):
    return [case.a[y] * loss for y, loss in zip(case.y, soft_cross_entropy(case))]


def not_true_distillation(case):
    result = []
    for z, zg, y in zip(case.z, case.zg, case.y):
        others = [c for c in case.all if c != y]
        result.append(divergence(z, softmax(zg, others, case.tau), others, case.tau))
    return result


def label_masking(case, teacher_logits):
    result = []
    for z, zg, y in zip(case.z, teacher_logits, case.y):
        others = [c for c in case.all if c != y]
        minority = [c for c in others if not case.majority[c]]
        teacher = softmax(zg, minority, case.tau) if minority else {}
        result.append(divergence(z, teacher, others, case.tau))
    return result


def masked_mse_distillation(case):
    return [
        sum((m[c] * (zg[c] - z[c])) ** 2 for c in case.all)
        for z, zg, m in zip(case.z, case.zg, case.m)
    ]


def class_credibility(case):
    result = []
    for c in case.all:
        phis = []
        for zg, y in zip(case.zg, case.y):
            if y == c:
                pg = softmax(zg, case.all, case.tau)
                phis.append(pg[c] - sum(pg[k] for k in case.all if k != c))
        result.append((0.7 - 0.2) / 2 * (np.mean(phis) if phis else 0) + (0.7 + 0.2) / 2)
    return result


def credibility_matrix(case):
    matrix = np.zeros((len(case.all), len(case.all)))
    for zg, y in zip(case.zg, case.y):
        matrix[y, list(zg).index(max(zg))] += 1 / list(case.y).count(y)
    return matrix


def credibility_weights(case):
    matrix, result = credibility_matrix(case), []
    for zg, y in zip(case.zg, case.y):
        pg = softmax(zg, case.all, 1.0)
        # 1 - pg_y as written loses its digits in float64 too, far below the tolerance
        sample = 1 - np.sqrt(1 - pg[y])
        row = []
        for k in case.all:
            mistaken = max(matrix[j, k] for j in case.all if j != k)
            row.append(0.5 * max(0, matrix[k, k] * (1 - mistaken) * sample - 0.1))
        result.append(row)
    return result


class Case:
    """Random inputs in float64; `majority`, `a` and `m` are a client's."""

    def __init__(self, seed, classes, tau, scale):
        rng = np.random.default_rng(seed)
        # float32 numbers, so that the rounding of the inputs does not add to the difference
        self.z, self.zg = (
            np.float64(np.float32(rng.normal(size=(12, classes)) * scale)) for _ in range(2)
        )
        self.y = rng.integers(classes, size=12)
        # a teacher who is often right, so that credible classes occur
        self.zg[np.arange(12), self.y] += np.float32(scale)
        self.zg = np.float64(np.float32(self.zg))
        self.majority = rng.random(classes) < 0.5
        self.a, self.m = rng.random(classes), rng.random((12, classes))
        self.tau, self.all = tau, range(classes)
        self.z32, self.zg32 = np.float32(self.z), np.float32(self.zg)


PAIRS = {
    'cross_entropy': (cross_entropy, lambda c: losses.cross_entropy(c.z32, c.y)),
    'smoothed_cross_entropy': (
        smoothed_cross_entropy,
        lambda c: losses.smoothed_cross_entropy(c.z32, c.y, smoothing=0.1),
    ),
    'calibrated_cross_entropy': (
        calibrated_cross_entropy,
        lambda c: losses.calibrated_cross_entropy(
            c.z32, c.y, np.where(c.majority, np.inf, c.a).astype(np.float32)
        ),
    ),
    'decorrelation': (decorrelation, lambda c: losses.decorrelation(c.z32)),
    'kl_distillation': (
        kl_distillation,
        lambda c: losses.kl_distillation(c.z32, c.zg32, temperature=c.tau),
    ),
    'soft_cross_entropy': (
        soft_cross_entropy,
        lambda c: losses.soft_cross_entropy(c.z32, c.zg32, temperature=c.tau),
    ),
    'class_weighted_distillation': (
        class_weighted_distillation,
        lambda c: losses.class_weighted_distillation(c.z32, c.zg32, c.y, c.a, temperature=c.tau),
    ),
    'not_true_distillation': (
        not_true_distillation,
        lambda c: losses.not_true_distillation(c.z32, c.zg32, c.y, temperature=c.tau),
    ),
    'label_masking_distillation': (
        lambda c: label_masking(c, c.zg),
        lambda c: losses.label_masking_distillation(
            c.z32, c.zg32, c.y, c.majority, temperature=c.tau
        ),
    ),
    'label_masking_teacher_free': (
        lambda c: label_masking(c, np.zeros_like(c.zg)),
        lambda c: losses.label_masking_teacher_free(c.z32, c.y, c.majority, temperature=c.tau),
    ),
    'masked_mse_distillation': (
        masked_mse_distillation,
        lambda c: losses.masked_mse_distillation(c.z32, c.zg32, c.m),
    ),
    'class_credibility': (
        class_credibility,
        lambda c: losses.class_credibility(c.zg32, c.y, beta=0.2, gamma=0.7, temperature=c.tau),
    ),
    'credibility_matrix': (
        credibility_matrix,
        lambda c: losses.credibility_matrix(c.zg32, c.y),
    ),
    'credibility_weights': (
        credibility_weights,
        lambda c: losses.credibility_weights(
            c.zg32, c.y, losses.credibility_matrix(c.zg32, c.y), max_weight=0.5
        ),
    ),
}


@pytest.mark.parametrize('scale', [1.0, 10.0])
@pytest.mark.parametrize(('classes', 'tau'), [(2, 1.0), (3, 0.5), (10, 1.0), (10, 3.0)])
@pytest.mark.parametrize(('reference', 'loss'), PAIRS.values(), ids=PAIRS.keys())
def test_agrees_with_the_reference(reference, loss, classes, tau, scale):
    for seed in range(3):
        case = Case(seed, classes, tau, scale)
        np.testing.assert_allclose(loss(case), reference(case), rtol=1e-5, atol=1e-5)
