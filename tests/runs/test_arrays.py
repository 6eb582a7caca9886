"""Datasets that a Python program passes as arrays."""

import dataclasses
import json

import numpy as np
import pytest

import jaxfed
from jaxfed.data import load_dataset
from jaxfed.runs.arrays import checked_arrays
from jaxfed.runs.experiment import make_experiment, set_up
from jaxfed.runs.notices import missing_classes

pytestmark = pytest.mark.usefixtures('cheap_runs')
TINY = {
    'model': 'mlp', 'num_clients': 3, 'clients_per_round': 2, 'rounds': 2, 'local_epochs': 1,
    'partition': 'iid',
}  # fmt: skip


def features(**changes):
    """40 vectors whose class is the sign of the first feature."""
    x = np.random.default_rng(0).normal(size=(40, 5))
    y = (x[:, 0] > 0).astype(int)
    users = np.repeat(['b', 'c', 'a'], (10, 10, 20))
    return jaxfed.Dataset('mine', x, y, x[:9], y[:9], 2, users)._replace(**changes)


@pytest.mark.slow
def test_arrays_are_trained_and_recorded(tmp_path):
    config = jaxfed.Config(**{**TINY, 'partition': 'natural'}, workdir=str(tmp_path / 'run'))
    result = jaxfed.simulate(config, dataset=features())
    assert len(result.metrics) == 2
    recorded = json.loads((tmp_path / 'run' / 'config.json').read_text())
    name = checked_arrays(features()).name
    assert name.startswith('arrays/mine-')
    assert recorded['dataset'] == result.summary['dataset'] == name
    counts = json.loads((tmp_path / 'run' / 'partition.json').read_text())['label_counts']
    assert sorted(map(sum, counts)) == [10, 10, 20]
    loaded = jaxfed.load(tmp_path / 'run')
    logits = loaded.apply(features().x_test.astype(np.float32))
    assert logits.shape == (9, 2)
    np.testing.assert_allclose(
        logits, loaded.apply(features().x_test.astype(np.float32)[:, None, None]), rtol=1e-6
    )
    with pytest.raises(ValueError, match=f'--dataset={name} is in the memory of a Python program'):
        load_dataset(name)


def test_a_run_continues_with_the_same_arrays_only(tmp_path):
    config = jaxfed.Config(**TINY, workdir=str(tmp_path / 'run'))
    set_up(config, dataset=features())
    set_up(config, dataset=features())
    changed = features().x_train.copy()
    changed[3, 2] += 1
    with pytest.raises(ValueError, match=r'other settings \(--dataset=arrays/mine-\w+ there, arr'):
        set_up(config, dataset=features(x_train=changed))


def test_arrays_have_no_columns(tmp_path):
    config = jaxfed.Config(**TINY, workdir=str(tmp_path / 'run'), label_column='y')
    with pytest.raises(ValueError, match=r'label_column and .* or of splits .*; omit them'):
        set_up(config, dataset=features())


@pytest.mark.slow
def test_all_experiments_use_the_arrays(tmp_path):
    configs = {f'{seed}': jaxfed.Config(**TINY, seed=seed) for seed in (0, 1)}
    first = jaxfed.simulate_all(configs, tmp_path, dataset=features())
    again = jaxfed.simulate_all(configs, tmp_path, dataset=features())
    for name in configs:
        assert first[name].summary['dataset'].startswith('arrays/mine-')
        assert first[name].metrics == again[name].metrics
    with pytest.raises(ValueError, match='holds a run with other settings'):
        jaxfed.simulate_all(configs, tmp_path, dataset=features(name='other'))


def test_arrays_give_the_results_of_a_file(tmp_path):
    arrays = features()._asdict()
    for field in ('name', 'num_classes'):
        del arrays[field]
    np.savez(tmp_path / 'mine.npz', **arrays)
    config = jaxfed.Config(**TINY)
    of_file = make_experiment(
        dataclasses.replace(config, dataset='npz', npz=str(tmp_path / 'mine.npz'))
    ).dealt
    of_arrays = make_experiment(config, None, checked_arrays(features())).dealt
    for a, b in zip(of_file.dataset[1:], of_arrays.dataset[1:], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(of_file.partition, of_arrays.partition, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    'changes, settings, message',
    [
        ({'name': 'a/b'}, {}, "dataset='a/b' must have a name of letters"),
        ({'name': 3}, {}, 'dataset=3 must have a name of letters'),
        ({'x_test': None}, {}, r"dataset='mine' has shape \(\) in x_test"),
        ({'x_test': np.arange(6)}, {}, r"dataset='mine' has shape \(6,\) in x_test"),
        ({'num_classes': 0}, {}, "dataset='mine' must have num_classes from 1 to 1000001, got 0"),
        ({'num_classes': 10**7}, {}, 'must have num_classes from 1 to 1000001, got 10000000'),
        (
            {'y_train': np.ma.masked_equal(np.arange(40) % 2, 1)},
            {},
            "dataset='mine' has a masked array in y_train: leave out or fill",
        ),
        ({'num_classes': 1}, {}, 'label 1 with num_classes=1: labels must be from 0 to 0'),
        ({'y_train': np.zeros(39, int)}, {}, "dataset='mine' has 40 examples in x_train but 39"),
        ({}, {'dataset': 'cifar10'}, '--dataset=cifar10 and arrays from Python exclude each other'),
        ({}, {'npz': 'x.npz'}, '--npz=x.npz needs --dataset=npz'),
        ({}, {'augment': 'flip'}, '--augment must be none for vectors, signals and text, got flip'),
    ],
)
def test_refused_arrays_leave_nothing(tmp_path, changes, settings, message):
    config = jaxfed.Config(**TINY, **settings, workdir=str(tmp_path / 'run'))
    with pytest.raises(ValueError, match=message):
        jaxfed.simulate(config, dataset=features(**changes))
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_classes_without_examples_are_a_warning(tmp_path, capsys):
    x, y, *_ = features()[1:]
    data = jaxfed.Dataset('gaps', x, 2 * y, x[:8], 3 * y[:8], 6)
    config = jaxfed.Config(**TINY, workdir=str(tmp_path / 'run'))
    jaxfed.simulate(config, dataset=data, quiet=False)
    shown = ' '.join(capsys.readouterr().err.split())
    assert 'warning: classes that no client has cannot be learned: 1, 3, 4, 5.' in shown
    assert 'a test example have class accuracy 0 in the records: 1, 2, 4, 5.' in shown
    # Examples that no client trains on do not count.
    config = dataclasses.replace(config, workdir=str(tmp_path / 'other'))
    dealt = set_up(config, dataset=data).dealt
    counts = dealt.label_counts * (np.arange(6) != 0)
    assert missing_classes(dealt._replace(label_counts=counts))[0].endswith(': 0, 1, 3, 4, 5.')


@pytest.mark.parametrize(
    'y_train, y_test, message',
    [
        (
            [1, 2, 1],
            [2, 1],
            'labels from 1 to 2: number the classes from 0, as in y - 1, or pass num_classes',
        ),
        ([0, 1, 900], [0, 1], 'largest label 900, but only 3 different .* or pass num_classes'),
        ([0, 1, 0], [0, 2], 'label 2 in y_test but .* not trained, or pass num_classes'),
        (['a', 'b', 'a'], [0, 1], r'^y_train must have integers from 0, .* got <U1 of shape \[3\]'),
        ([0, 1, 0], [], r'^y_test must have integers from 0, .* got float64 of shape \[0\]'),
        ([], [0, 1], r'^y_train must have integers from 0, .* got float64 of shape \[0\]'),
        ([-1, 1, 0], [0, 1], '^y_train must have integers from 0, one for each example, got -1'),
    ],
)
def test_classes_are_numbered_from_zero(y_train, y_test, message):
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        jaxfed.Dataset.from_arrays(x, y_train, x[:2], y_test)
    assert jaxfed.Dataset.from_arrays(x, [1, 2, 1], x[:2], [2, 1], num_classes=3).num_classes == 3
    assert jaxfed.Dataset.from_arrays(x, [1, 0, 1], x[:2], [1, 1]).num_classes == 2


def test_other_values_than_a_dataset_are_refused():
    x, y, *_ = features()[1:]
    with pytest.raises(ValueError, match=r'dataset must be a jaxfed\.Dataset, .*, got tuple\.'):
        jaxfed.simulate(jaxfed.Config(**TINY), dataset=(x, y))
