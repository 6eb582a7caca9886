"""The loop over rounds, and settings that are parsed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxfed
from jaxfed.methods import METHODS, Method, chain
from jaxfed.models import MODELS
from jaxfed.runs import experiment as experiments
from jaxfed.runs.experiment import client_steps, cohort_of, make_experiment, total_steps
from jaxfed.runs.prepare import prepare
from jaxfed.runs.rounds import no_recorder, train_rounds
from jaxfed.runs.state import first_state

QUICK = {
    'model': 'mlp',
    'devices': '1',
    'lanes': 1,
    'rounds': 3,
    'local_epochs': 2,
    'clients_per_round': 2,
    'dropout': 0.3,
    'stragglers': 0.5,
    'measure': 'forgetting,confusion',
    'augment': 'crop',
}


@pytest.mark.slow
def test_training_without_records_gives_the_same_parameters(cheap_runs, tmp_path):
    recorded = jaxfed.simulate(jaxfed.Config(**QUICK, workdir=str(tmp_path / 'run')))
    experiment = make_experiment(jaxfed.Config(**QUICK, workdir=str(tmp_path / 'other')))
    prepared = prepare([experiment])
    state = first_state([experiment], prepared)
    state, failures = train_rounds([experiment], prepared, 0, state, no_recorder(), lambda: None)
    assert not failures
    assert not (tmp_path / 'other').exists()
    jax.tree.map(np.testing.assert_array_equal, recorded.params, state.servers[0].params)
    assert recorded.summary['client_steps'] == total_steps(experiment, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    'method, model',
    [('median', 'mlp'), ('dp', 'mlp'), ('fedavg', 'mlp'), ('median', 'normal')],
)
def test_a_client_that_diverges_ends_training_only_if_it_reaches_the_model(
    method, model, cheap_runs, tmp_path, monkeypatch
):
    class Normal(nnx.Module):  # with batch statistics, which are averaged as they are
        def __init__(self, num_classes, *, rngs):
            self.norm = nnx.BatchNorm(64, rngs=rngs)
            self.classifier = nnx.Linear(64, num_classes, rngs=rngs)

        def __call__(self, x):
            return self.classifier(self.norm(x.reshape(x.shape[0], -1)))

    def penalty(view):
        weight = jnp.where(view.info.id == 1, jnp.nan, 0.0)
        return weight * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(view.params))

    monkeypatch.setitem(MODELS, 'normal', Normal)

    changes = {'dropout': 0.0, 'clients_per_round': 20, 'rounds': 2, 'model': model}
    settings = jaxfed.Config(**QUICK | changes, workdir=str(tmp_path / 'run'))
    broken = chain(Method(penalty=penalty), METHODS[method]())
    if method == 'fedavg' or model == 'normal':
        with pytest.raises(jaxfed.Diverged, match='train_loss is not finite'):
            jaxfed.simulate(settings, method=broken)
        return
    result = jaxfed.simulate(settings, method=broken)
    assert np.isfinite([entry['train_loss'] for entry in result.metrics]).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training_without_records(cheap_runs, tmp_path):
    settings = {**QUICK, 'dropout': 0.0, 'learning_rate': 1e20}
    experiment = make_experiment(jaxfed.Config(**settings, workdir=str(tmp_path / 'run')))
    prepared = prepare([experiment])
    state = first_state([experiment], prepared)
    state, failures = train_rounds([experiment], prepared, 0, state, no_recorder(), lambda: None)
    assert list(failures) == [0] and failures[0] in ('train_loss', 'test_loss')
    assert state.diverged.tolist() == [True]
    assert 0 <= state.recorded[0] < 3


def test_client_steps_of_cohorts_and_of_all_clients():
    experiment = make_experiment(jaxfed.Config(**QUICK))
    size, batch = experiment.dealt.size, experiment.config.batch_size
    np.testing.assert_array_equal(client_steps(experiment), 2 * np.ceil(size / batch))
    total = 0
    for round_ in range(1, 4):
        cohort = cohort_of(experiment, round_)
        steps = client_steps(experiment, cohort)
        wanted = cohort.epochs * np.ceil(size[cohort.clients] / batch)
        np.testing.assert_array_equal(steps, wanted)
        total += steps.sum()
    assert total_steps(experiment, 3) == total


@pytest.mark.slow
@pytest.mark.parametrize('name', ['parse_measures', 'parse_augment', 'channel_statistics'])
def test_settings_are_parsed_once(name, cheap_runs, tmp_path, monkeypatch):
    inner, calls = getattr(experiments, name), []

    def count(*arguments):
        calls.append(arguments)
        return inner(*arguments)

    monkeypatch.setattr(experiments, name, count)
    jaxfed.simulate(jaxfed.Config(**{**QUICK, 'rounds': 1}, workdir=str(tmp_path / 'run')))
    assert len(calls) == 1
