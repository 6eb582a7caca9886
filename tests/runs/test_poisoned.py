"""What no client trains on cannot change the trained parameters by a bit."""

import json

import chex
import numpy as np
import pytest

import jaxfed
from jaxfed.runs.experiment import set_up
from jaxfed.runs.seeds import sample_cohort
from jaxfed.runs.simulate import train
from tests import extremes, plain
from tests.marks import slow


@pytest.fixture(autouse=True)
def networks(shared_programs):
    with plain.cheap_runs():
        yield


OF_TRAINING = (  # fields of metrics.jsonl that neither test data nor held-out examples change
    'train_loss', 'cohort_labels', 'update_norms', 'update_cosines', 'update_diversity',
    'weight_divergence', 'gradient_diversity',
)  # fmt: skip


def floats(**changes):
    """Images of floats, 4 classes."""
    x = {name: lambda x: x.astype(np.float32) for name in ('x_train', 'x_test')}
    return extremes.dataset(40, classes=4, **(x | changes))


def set_up_in(folder, method, **changes):
    settings = {
        **extremes.settings_of(method, 'two classes', folder), 'num_clients': 3,
        'workdir': str(folder), **changes,
    }  # fmt: skip
    return set_up(jaxfed.Config(**settings), None, floats())


def check_unchanged(tmp_path, method, poison, **changes):
    """Runs twice, the second time with examples that `poison` changes."""
    clean = train(set_up_in(tmp_path / 'clean', method, **changes), quiet=True)
    experiment = set_up_in(tmp_path / 'poisoned', method, **changes)
    x, y = experiment.dealt.dataset.x_train.copy(), experiment.dealt.dataset.y_train.copy()
    rows = poison(experiment)
    assert len(rows)
    x[rows], y[rows] = np.nan, 3 - y[rows]
    dataset = experiment.dealt.dataset._replace(x_train=x, y_train=y)
    dealt = experiment.dealt._replace(dataset=dataset)
    poisoned = train(experiment._replace(dealt=dealt), quiet=True)
    check_same_training(clean, poisoned)


def check_same_training(clean, poisoned):
    results = [
        (run.params, run.stats, [{name: e.get(name) for name in OF_TRAINING} for e in run.metrics])
        for run in (clean, poisoned)
    ]
    chex.assert_trees_all_equal(*results)
    assert np.isfinite([entry['train_loss'] for entry in clean.metrics]).all()


def untrained(experiment):
    """The examples that neither a client nor the server trains on."""
    dealt = experiment.dealt
    used = np.concatenate([*dealt.partition, dealt.auxiliary])
    return np.setdiff1d(np.arange(len(dealt.dataset.y_train)), used)


HELD_OUT = {'personal_test': 0.3, 'validation': 0.2, 'local_eval_every': 1}


@pytest.mark.parametrize(
    'method, changes',
    [
        ('fedcad', {}),
        slow('fedbn', {'lanes': 1, 'measure': 'all'}),
        slow('ditto', {'stream': 'on'}),
        slow('moon', {'batch_size': 50}),
        slow('median', {'label_noise': 0.5}),
    ],
)
def test_held_out_examples_do_not_enter_training(method, changes, tmp_path):
    check_unchanged(tmp_path, method, untrained, **HELD_OUT, **changes)


@pytest.mark.slow
@pytest.mark.parametrize('method', ['fedlmd', 'fedcurv', 'fedbn'])
def test_clients_that_are_not_sampled_do_not_enter_training(method, tmp_path):
    # The examples of client 1 follow those of client 0, and pad its last batch.
    path = tmp_path / 'partition.json'
    path.write_text(json.dumps([[*range(12)], [*range(12, 15)], [*range(15, 40)]]))
    changes = {'rounds': 1, 'clients_per_round': 2, 'batch_size': 10, 'local_epochs': 3}
    changes |= {'partition': 'file', 'partition_file': str(path)}
    size = np.array([12, 3, 25])
    seed = next(
        seed
        for seed in range(100)
        if sample_cohort(jaxfed.Config(seed=seed, **changes), size, 1).clients.tolist() == [0, 2]
    )
    check_unchanged(tmp_path, method, lambda e: e.dealt.partition[1], seed=seed, **changes)


@pytest.mark.parametrize(
    'method, measure',
    [('fedavg', 'none'), slow('fedbn', 'all'), slow('fedssd', 'none'), slow('apfl', 'none')],
)
def test_test_data_does_not_enter_training(method, measure, tmp_path):
    """The datasets differ in the test data, so this holds for everything that precedes training."""
    changes = {'x_test': lambda x: 1e6 - x.astype(np.float32), 'y_test': lambda y: 3 - y}
    settings = extremes.settings_of(method, 'two classes', tmp_path)
    settings |= {'local_eval_every': 1, 'measure': measure}
    clean, poisoned = (
        jaxfed.simulate(
            jaxfed.Config(**settings, workdir=str(tmp_path / data.name)),
            dataset=data, quiet=True, compilation_cache=False,
        )
        for data in (floats(), floats(**changes)._replace(name='poisoned'))
    )  # fmt: skip
    assert clean.metrics[-1]['test_loss'] != poisoned.metrics[-1]['test_loss']
    check_same_training(clean, poisoned)
