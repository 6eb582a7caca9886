"""Data and settings at the limits of what is valid, for every method."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import jaxfed
from jaxfed import methods
from tests import plain

COMMON = {
    'num_clients': 4, 'clients_per_round': 3, 'rounds': 2, 'local_epochs': 2, 'batch_size': 4,
    'partition': 'iid', 'learning_rate': 0.05, 'momentum': 0.9, 'weight_decay': 1e-3,
    'devices': '1', 'lanes': 2, 'checkpoint_every': 0,
}  # fmt: skip


class Case(NamedTuple):
    """Data and settings, the changes of the common ones."""

    outcomes: tuple[str, ...]  # the kinds of `plain.Outcome` that any method may have
    settings: Mapping[str, Any] = MappingProxyType({})
    data: Mapping[str, Any] = MappingProxyType({})
    text: str = ''  # in the error of a run that every method refuses


def dataset(n=24, shape=(4, 4, 1), classes=3, dtype=np.uint8, **changes):
    """Random images with labels in turn."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n + 8, *shape)).astype(dtype)
    y = np.arange(n + 8) % classes
    made = jaxfed.Dataset('extreme', x[:n], y[:n], x[n:], y[n:], classes)
    changes = {
        name: change(getattr(made, name)) if callable(change) else change
        for name, change in changes.items()
    }
    return made._replace(**changes)


def with_value(value, dtype=np.float32):
    """A function that sets a pixel of images."""

    def change(x):
        x = x.astype(dtype)
        x[3, 1, 2, 0] = value
        return x

    return change


def both(name, change):
    """The same change of the training and the test data."""
    return {f'{name}_train': change, f'{name}_test': change}


def scaled(factor):
    """A function that makes floats of both signs of images."""
    return lambda x: ((x.astype(np.float64) - 127.5) / 127.5 * factor).astype(np.float32)


ANY = ('equal', 'amplified', 'refused')  # a method may need more clients or examples of a class
CASES = {
    'one example per client': Case(ANY, data={'n': 4}),
    'one class': Case(ANY, data={'classes': 1}),
    'one class of three': Case(ANY, data={'y_train': np.zeros_like}),
    'two classes': Case(ANY, data={'classes': 2}),
    'a client without examples': Case(ANY, {'partition': 'file', 'clients_per_round': 4}),
    'a client without examples and equal weights': Case(
        ANY, {'partition': 'file', 'clients_per_round': 4, 'aggregation': 'uniform'}
    ),
    'one client': Case(ANY, {'num_clients': 1, 'clients_per_round': 1, 'lanes': 1}),
    'every client in each round': Case(ANY, {'clients_per_round': 4}),
    'batch larger than the data': Case(ANY, {'batch_size': 10_000}),
    'learning rate 0': Case(
        ('refused',), {'learning_rate': 0.0}, text='--learning_rate must be positive, got 0.0.'
    ),
    'learning rate 1e30': Case((*ANY, 'diverged'), {'learning_rate': 1e30}),
    'momentum 0.999999': Case(ANY, {'momentum': 0.999999}),
    'NaN pixel': Case(
        ('refused',), data=both('x', with_value(np.nan)),
        text="dataset='extreme' has 1 values in x_train that are NaN, infinite or beyond float32",
    ),
    'infinite pixel': Case(
        ('refused',), data={'x_train': scaled(1.0), 'x_test': with_value(-np.inf)},
        text="dataset='extreme' has 1 values in x_test that are NaN, infinite or beyond float32",
    ),
    'pixel beyond float32': Case(
        ('refused',), data=both('x', with_value(1e39, np.float64)),
        text="dataset='extreme' has 1 values in x_train that are NaN, infinite or beyond float32",
    ),
    'huge pixels': Case(ANY, data=both('x', scaled(3e38))),
    'denormal pixels': Case(ANY, data=both('x', scaled(1e-41))),
    'constant images': Case(ANY, data=both('x', lambda x: np.full_like(x, 7))),
    '1x1 images': Case(ANY, data={'shape': (1, 1, 1)}),
    '1000 classes': Case(
        ANY, data={'classes': 1000, 'y_train': lambda y: y * 41, 'y_test': lambda y: y * 31}
    ),
    'dropout 0.9': Case(ANY, {'dropout': 0.9, 'rounds': 6, 'clients_per_round': 4}),
    'labels int64': Case(ANY, data=both('y', lambda y: y.astype(np.int64))),
    'labels to 255 in uint8': Case(
        ANY,
        data={'n': 40, 'classes': 256, 'y_train': lambda y: (y[::-1] + 216).astype(np.uint8)},
    ),
    'float labels': Case(
        ('refused',), data=both('y', lambda y: y.astype(np.float64)),
        text='labels must be [n] integers, one per example, as y_train.astype(int).',
    ),
}  # fmt: skip
NEEDED = {  # what a method needs besides `COMMON`
    'fedbn': {'model': 'tiny_normal'},
    'trimmed_mean': {'hyperparameters': {'trim': 0.4}},
}


def check(method, case, folder):
    """Runs a case with a method, see `plain.try_run`; AssertionError if it must not end so."""
    expected, text = CASES[case].outcomes, CASES[case].text
    outcome = plain.try_run(settings_of(method, case, folder), dataset(**CASES[case].data))
    assert outcome.kind in expected, f'{outcome.kind}, not {" or ".join(expected)}: {outcome.line}'
    assert text in outcome.line
    return outcome


def settings_of(method, case, folder):
    """The settings of a case, with files in a folder."""
    auxiliary = methods.build(methods.resolve(method, {})).auxiliary
    settings = {'method': method, 'model': 'tiny', **COMMON, **CASES[case].settings}
    if auxiliary:
        settings['auxiliary_per_class'] = 1
    settings |= NEEDED.get(method, {})
    if settings['partition'] == 'file':
        path = Path(folder) / 'partition.json'
        path.write_text(json.dumps([[0, 3, 5], list(range(6, 20)), [], [20, 21]]))
        settings['partition_file'] = str(path)
    return settings
