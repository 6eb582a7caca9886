"""Separate seeds: each changes only the draws of its streams."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxfed import Config, config
from jaxfed.runs import checks, config_flags, simulate
from jaxfed.runs.deal import deal
from jaxfed.runs.experiment import make_experiment
from jaxfed.runs.prepare import prepare
from jaxfed.runs.seeds import sample_cohort, seed_of, stream

BASE = Config(
    model='mlp', num_clients=6, clients_per_round=2, local_epochs=1, rounds=2, alpha=1.0,
    label_noise=0.1, dropout=0.2, validation=0.1, auxiliary_per_class=3, devices='1', lanes=1,
)  # fmt: skip
STREAMS = {
    'partition_seed': (
        'partition',
        'auxiliary',
        'label_noise',
        'hold_out',
        'validation',
        'imbalance',
    ),
    'cohort_seed': ('cohort', 'availability'),
    'init_seed': ('initialisation',),
    'batch_seed': ('batches',),
}
EVERY = [name for names in STREAMS.values() for name in names]


def test_all_streams_default_to_the_seed():
    # These numbers must not change, because records contain only the seed.
    assert [stream(5, name) for name in ('partition', 'cohort', 'initialisation', 'batches')] == [
        int(np.random.SeedSequence([5, number]).generate_state(1)[0]) for number in range(4)
    ]
    assert all(seed_of(Config(seed=5), name) == stream(5, name) for name in EVERY)
    assert len({stream(5, name) for name in EVERY}) == len(EVERY)


@pytest.mark.parametrize('flag', list(STREAMS))
def test_a_separate_seed_changes_only_its_streams(flag):
    assert {flag, *STREAMS, 'seed'} == set(config.SEEDS)
    other = config_flags.parse([f'--{flag}=7'])
    changed = [name for name in EVERY if seed_of(other, name) != seed_of(Config(), name)]
    assert set(changed) == set(STREAMS[flag])
    assert all(seed_of(other, name) == stream(7, name) for name in changed)
    # --seed does not change a stream with its own seed.
    again = dataclasses.replace(other, seed=1)
    assert all(seed_of(again, name) == seed_of(other, name) for name in changed)
    with pytest.raises(ValueError, match=f'--{flag} must be at least 0, got -1'):
        checks.check(Config(**{flag: -1}))


def data_of(settings):
    """Labels, auxiliary data and partition as one list of arrays."""
    dealt = deal(settings)
    return [dealt.dataset.y_train, dealt.dataset.y_test, dealt.auxiliary, *dealt.partition]


def cohorts_of(settings):
    size = np.arange(20, 26)
    return [np.concatenate(sample_cohort(settings, size, round_)) for round_ in range(1, 9)]


def params_of(settings):
    return jax.tree.leaves(prepare([make_experiment(settings)]).server.params)


def same(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@pytest.mark.parametrize('flag', ['partition_seed', 'cohort_seed'])
def test_data_and_cohorts(flag):
    other = dataclasses.replace(BASE, **{flag: 7})
    assert same(data_of(other), data_of(BASE)) == (flag != 'partition_seed')
    assert same(cohorts_of(other), cohorts_of(BASE)) == (flag != 'cohort_seed')


@pytest.mark.slow
def test_first_parameters_and_batches(cheap_runs, tmp_path):
    def losses(name, **changes):
        made = dataclasses.replace(BASE, workdir=str(tmp_path / name), **changes)
        return [entry['train_loss'] for entry in simulate.simulate(made).metrics]

    init, batch = (dataclasses.replace(BASE, **{flag: 7}) for flag in ('init_seed', 'batch_seed'))
    start = params_of(BASE)
    assert not same(params_of(init), start)
    assert same(params_of(batch), start)
    first = losses('base')
    assert losses('init', init_seed=7) != first
    assert losses('batch', batch_seed=7) != first
    assert losses('same', seed=3, **dict.fromkeys(STREAMS, 0)) == first


def test_a_seed_of_clients_that_the_sampling_ignores_is_refused():
    with pytest.raises(ValueError, match='--cohort_seed=7 has no effect with --sampling=fedntd'):
        checks.check(Config(sampling='fedntd', cohort_seed=7))
    checks.check(Config(sampling='fedntd', cohort_seed=7, dropout=0.1))
    checks.check(Config(sampling='fedntd', seed=7))
