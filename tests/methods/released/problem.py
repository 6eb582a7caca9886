"""The small problem on which released code is recorded and jaxfed compared with it.

No random number is drawn: examples, initial parameters and their order are formulas, so that the
recorder and the test agree on them for ever.
"""

from typing import Any, NamedTuple

import numpy as np

INPUTS, FEATURES, CLASSES = 4, 5, 3
EPOCHS, MOMENTUM, WEIGHT_DECAY, CLIENTS = 2, 0.9, 0.01, 4
RATE, DECAY = 0.1, 0.9


class Job(NamedTuple):
    """What is trained: a few clients in each of a few rounds."""

    reference: str  # a recording's name
    method: str  # of jaxfed
    settings: dict[str, Any]  # of jaxfed's method
    algorithm: str  # of the reference
    parameters: dict[str, Any]  # of the reference's algorithm
    sizes: tuple[int, ...] = (7, 12, 4, 9)
    batch: int = 4
    cohorts: tuple[tuple[int, ...], ...] = ((0, 1, 2), (2, 3, 1), (1, 0, 3))
    plain: bool = False  # SGD without momentum and weight decay, at a constant rate

    def rate(self, number: int) -> float:
        """The learning rate of a round, from 0."""
        return RATE if self.plain else RATE * DECAY**number


JOBS = {
    'fedavg': Job('fedntd', 'fedavg', {}, 'fedavg', {}),
    'fedprox': Job('fedntd', 'fedprox', {'mu': 1.0}, 'fedprox', {'mu': 1.0}),
    'fedntd': Job(
        'fedntd', 'fedntd', {'tau': 2.0, 'beta': 0.7}, 'fedntd', {'tau': 2.0, 'beta': 0.7}
    ),
    'scaffold': Job('fedntd', 'scaffold', {}, 'scaffold', {'adaptive_divison': True}),
    'moon': Job('fedntd', 'moon', {'mu': 2.0, 'tau': 0.5}, 'moon', {'mu': 2.0, 'tau': 0.5}),
    'fedavgm': Job('fedntd', 'fedavgm', {'beta': 0.7}, 'fedavgm', {'avgm_beta': 0.7}),
    'fednova': Job('fedntd', 'fednova', {}, 'fednova', {'nova_ccvr': False}),
    # As configured there, it also subtracts each client's last normalised update.
    'fednova_ccvr': Job('fedntd', 'fednova', {}, 'fednova', {'nova_ccvr': True}),
    # It weighs clients by size, the paper equally.
    'feddyn': Job(
        'fedntd', 'feddyn', {'alpha': 0.1}, 'feddyn', {'dyn_alpha': 0.1}, sizes=(8, 8, 8, 8)
    ),
    # It squares mean gradients of batches, which are those of examples with batches of one; and it
    # sums over all clients that ever took part, which are those of the last round in round 2.
    'fedcurv': Job(
        'fedntd',
        'fedcurv',
        {'lam': 0.5},
        'fedcurv',
        {'size': 500, 'lam': 0.5},
        batch=1,
        cohorts=((0, 1), (2, 3), (1, 0)),
    ),
    # It takes at least five steps.
    'fedrs': Job(
        'fedrs',
        'fedrs',
        {'alpha': 0.3, 'continuous': True},
        'fedrs',
        {'alpha': 0.3},
        sizes=(9, 12, 11, 10),
    ),
    'fedgkd': Job(
        'fedgkd',
        'fedgkd',
        {'beta': 0.8, 'tau': 2.0, 'models': 2},
        'fedgkd',
        {'distillation_coefficient': 0.8, 'temperature': 2.0, 'buffer_length': 2},
        cohorts=((0, 1, 2), (2, 3, 1), (1, 0, 3), (3, 2, 0)),
    ),
    'fedlmd': Job(
        'fedlmd', 'fedlmd', {'tau': 2.0, 'beta': 0.7}, 'fedlmd', {'tau': 2.0, 'beta': 0.7}
    ),
    'fedper': Job('pfllib', 'fedper', {}, 'FedPer', {}, plain=True),
    # It counts the epochs of the classifier apart.
    'fedrep': Job(
        'pfllib',
        'fedrep',
        {'body_epochs': 1},
        'FedRep',
        {'local_epochs': 1, 'plocal_epochs': 1},
        plain=True,
    ),
    # Its rule of APFL, as a method of the experiments, with a share that does not change.
    'apfl_overwritten': Job(
        'pfllib',
        'apfl_overwritten',
        {'alpha': 0.4},
        'APFL',
        {'alpha': 0.4, 'fixed_alpha': True},
        plain=True,
    ),
    'ditto': Job('pfllib', 'ditto', {'lam': 0.7}, 'Ditto', {'mu': 0.7}, plain=True),
}


def examples(sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's x [n, INPUTS] float32 and y [n] int32; classes are skewed."""
    result, first = [], 0
    for client, size in enumerate(sizes):
        i = np.arange(first, first + size)
        y = np.where(i % 3 < 2, client, i) % CLASSES
        x = np.sin(1 + 7.3 * i[:, None] + 3.1 * np.arange(INPUTS)) + np.eye(CLASSES, INPUTS)[y]
        result.append((x.astype(np.float32), y.astype(np.int32)))
        first += size
    return result


def initial() -> dict[str, np.ndarray]:
    """The parameters of softmax regression on linear features."""
    place = np.arange(INPUTS * FEATURES, dtype=np.float64)
    return {
        'hidden': (0.5 * np.sin(2 + 5.7 * place)).reshape(INPUTS, FEATURES).astype(np.float32),
        'kernel': np.cos(3 + 2.9 * place[: FEATURES * CLASSES])
        .reshape(FEATURES, CLASSES)
        .astype(np.float32),
        'bias': np.cos(place[:CLASSES]).astype(np.float32) / 2,
    }


def flat(parameters: dict[str, np.ndarray]) -> list[float]:
    """Parameters as one list: hidden, kernel, bias."""
    return [
        round(float(v), 8)
        for name in ('hidden', 'kernel', 'bias')
        for v in np.ravel(parameters[name])
    ]
