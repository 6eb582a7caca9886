"""The small problem on which released code is recorded and jaxfed compared with it.

No random number is drawn: examples, initial parameters and their order are formulas, so that the
recorder and the test agree on them for ever.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

INPUTS, FEATURES, CLASSES = 4, 5, 3
EPOCHS, MOMENTUM, WEIGHT_DECAY, CLIENTS = 2, 0.9, 0.01, 4
RATE, DECAY = 0.1, 0.9
PLAIN = {'momentum': 0.0, 'weight_decay': 0.0, 'decay': 1.0}  # SGD at a constant rate
# The recordings hold every 32nd output of MOON's projection, so that they are small. The gradients
# of the earlier layers depend on all outputs.
STRIDE = 32
NAMES = (
    'hidden', 'project1', 'bias1', 'project2', 'bias2', 'kernel', 'bias', 'scale', 'shift',
)  # fmt: skip
EVERYONE = ((0, 1, 2, 3),) * 3
ALL_FIRST = ((0, 1, 2, 3), (2, 3, 1), (1, 0, 3))
FIVE = {'sizes': (7, 12, 4, 9, 8), 'cohorts': ((0, 1, 2, 3, 4),) * 3}


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
    momentum: float = MOMENTUM
    weight_decay: float = WEIGHT_DECAY
    decay: float = DECAY  # of the learning rate, after every round
    width: int = 0  # of MOON's projection, 0 for none
    aggregation: str = 'size'
    normalised: bool = False  # whether the features pass a batch normalisation

    def rate(self, number: int) -> float:
        """The learning rate of a round, from 0."""
        return RATE * self.decay**number


# Its authors' code weighs clients equally.
FEDREP = Job(
    'fedrep',
    'fedrep',
    {'body_epochs': 1},
    'fedrep',
    {'local_rep_ep': 1, 'set_to_none': True},
    momentum=0.5,
    weight_decay=0.0,
    decay=1.0,
    aggregation='uniform',
)

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
    # Its authors' code has no momentum. It clips gradients; the recording does not.
    'feddyn_equal_sizes': Job(
        'feddyn',
        'feddyn',
        {'alpha': 0.1},
        'feddyn',
        {'alpha_coef': 0.1},
        sizes=(8, 8, 8, 8),
        cohorts=((0, 1, 2), (1, 2, 3), (0, 1, 3)),
        momentum=0.0,
    ),
    # It divides alpha by the client's size relative to the mean size.
    'feddyn_unequal_sizes': Job(
        'feddyn',
        'feddyn',
        {'alpha': 0.1},
        'feddyn',
        {'alpha_coef': 0.1},
        cohorts=((0, 1, 2), (1, 2, 3), (0, 1, 3)),
        momentum=0.0,
    ),
    # Its authors' code cannot train on a batch of one. Client 3 first takes part in round 3, which
    # client 2 misses.
    'moon_projection': Job(
        'moon',
        'moon',
        {'mu': 5.0, 'tau': 0.5, 'projection': True},
        'moon',
        {'mu': 5.0, 'temperature': 0.5},
        sizes=(7, 12, 4, 10),
        cohorts=((0, 1, 2), (2, 0, 1), (1, 3, 0), (3, 2, 1)),
        decay=1.0,
        width=256,
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
    'feddecorr': Job(
        'feddecorr',
        'feddecorr',
        {'beta': 0.03},
        'feddecorr',
        {'feddecorr': True, 'feddecorr_coef': 0.03},
        decay=1.0,
    ),
    'fedlc': Job('feddecorr', 'fedlc', {'tau': 1.5}, 'fedlc', {'calibration_temp': 1.5}, decay=1.0),
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
    'fedper': Job('pfllib', 'fedper', {}, 'FedPer', {}, **PLAIN),
    # It counts the epochs of the classifier apart.
    'fedrep': Job(
        'pfllib',
        'fedrep',
        {'body_epochs': 1},
        'FedRep',
        {'local_epochs': 1, 'plocal_epochs': 1},
        **PLAIN,
    ),
    # Its rule of APFL, as a method of the experiments, with a share that does not change.
    'apfl_overwritten': Job(
        'pfllib',
        'apfl_overwritten',
        {'alpha': 0.4},
        'APFL',
        {'alpha': 0.4, 'fixed_alpha': True},
        **PLAIN,
    ),
    'ditto': Job('pfllib', 'ditto', {'lam': 0.7}, 'Ditto', {'mu': 0.7}, **PLAIN),
    'fednova_authors': Job('fednova', 'fednova', {}, 'fednova', {}, cohorts=EVERYONE),
    'fedrep_authors': FEDREP._replace(cohorts=ALL_FIRST),
    # Where gradients are set to 0, the classifier goes on by its momentum while the features train.
    'fedrep_momentum': FEDREP._replace(
        parameters={'local_rep_ep': 1, 'set_to_none': False}, cohorts=ALL_FIRST
    ),
    # A client that first takes part later begins with the mean of the others' classifiers.
    'fedrep_late': FEDREP,
    'fedper_fedrep': FEDREP._replace(
        method='fedper', settings={}, algorithm='fedper', cohorts=ALL_FIRST
    ),
    # It mixes logits instead of parameters, of the common model after its step. It weighs clients
    # equally, and skips batches of one.
    'apfl_logits': Job(
        'fedtorch',
        'apfl',
        {'alpha': 0.4},
        'apfl',
        {'fed_personal_alpha': 0.4, 'fed_adaptive_alpha': False},
        sizes=(7, 12, 4, 10),
        aggregation='uniform',
        **PLAIN,
    ),
    # A batch of one has no variance. It weighs clients equally.
    'fedbn': Job(
        'fedbn',
        'fedbn',
        {},
        'fedbn',
        {},
        sizes=(6, 12, 4, 11),
        cohorts=EVERYONE,
        normalised=True,
        aggregation='uniform',
        **PLAIN,
    ),
    'median': Job('byzantine', 'median', {}, 'median', {}, **FIVE),
    'trimmed_mean': Job('byzantine', 'trimmed_mean', {'trim': 0.2}, 'trmean', {'f': 1}, **FIVE),
    'krum': Job('byzantine', 'krum', {'byzantine': 0.2}, 'krum', {'f': 1, 'm': 1}, **FIVE),
    'krum_two': Job(
        'byzantine', 'krum', {'byzantine': 0.2, 'selected': 2}, 'krum', {'f': 1, 'm': 2}, **FIVE
    ),
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


def initial(width: int = 0, number: int = 0) -> dict[str, np.ndarray]:
    """The parameters of softmax regression on linear features.

    Args:
      width: outputs of MOON's projection before the classifier, 0 for no projection.
      number: selects one of several networks with different parameters.
    """
    place = np.arange(max(FEATURES, CLASSES) * max(INPUTS, FEATURES, width), dtype=np.float64)
    place += number

    def take(wave: Callable, *shape: int) -> np.ndarray:
        return wave(place[: math.prod(shape)]).reshape(shape).astype(np.float32)

    result = {'hidden': take(lambda p: 0.5 * np.sin(2 + 5.7 * p), INPUTS, FEATURES)}
    if width:
        result |= {
            'project1': take(lambda p: np.sin(1 + 3.7 * p), FEATURES, FEATURES),
            'bias1': take(np.sin, FEATURES),
            'project2': take(lambda p: np.sin(4 + 2.3 * p) / 10, FEATURES, width),
            'bias2': take(lambda p: np.cos(5 + p) / 10, width),
        }
    scale = 2 / np.sqrt(width) if width else 1.0
    kernel = take(lambda p: scale * np.cos(3 + 2.9 * p), width or FEATURES, CLASSES)
    return {**result, 'kernel': kernel, 'bias': take(lambda p: np.cos(p) / 2, CLASSES)}


def flat(parameters: dict[str, np.ndarray]) -> list[float]:
    """Parameters as one list, in the order of NAMES."""
    if 'project2' in parameters:
        parameters = parameters | {
            'project2': parameters['project2'][:, ::STRIDE],
            'bias2': parameters['bias2'][::STRIDE],
            'kernel': parameters['kernel'][::STRIDE],
        }
    return [
        round(float(v), 8)
        for name in NAMES
        if name in parameters
        for v in np.ravel(parameters[name])
    ]
