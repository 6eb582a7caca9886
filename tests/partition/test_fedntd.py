"""The partitions and the schedule of the released code of FedNTD.

The expected counts were printed by its functions `sharding_partition` and `lda_partition` for these
labels, at commit be00ee5.
"""

import numpy as np
import pytest

import jaxfed
from jaxfed.engine.cohorts import fedntd as fedntd_schedule
from jaxfed.partition import fedntd, fedntd_dirichlet, fedntd_sharding


def counts_of(labels, parts):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


@pytest.fixture
def labels():
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def test_dirichlet_deals_the_released_counts(labels):
    parts = fedntd_dirichlet(labels, num_clients=100, seed=5, alpha=0.3)
    counts = counts_of(labels, parts)
    np.testing.assert_array_equal(counts[0], [258, 6, 133, 5, 204, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(counts[99], [34, 14, 2, 1, 161, 1, 23, 76, 35, 346])
    np.testing.assert_array_equal(np.sort(counts.sum(axis=1))[[0, 50, 99]], [34, 505, 1317])
    again = fedntd_dirichlet(labels, num_clients=100, seed=6, alpha=0.3)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


@pytest.mark.parametrize(
    'shards, first, last',
    [
        (2, [0, 250, 0, 0, 250, 0, 0, 0, 0, 0], [0, 0, 0, 0, 250, 250, 0, 0, 0, 0]),
        (3, [0, 0, 0, 0, 333, 0, 0, 0, 167, 0], [0, 0, 0, 0, 0, 167, 167, 0, 0, 166]),
        (10, [50, 50, 50, 0, 200, 0, 0, 100, 50, 0], [150, 50, 100, 0, 0, 0, 0, 50, 100, 50]),
    ],
)
def test_sharding_deals_the_released_counts(shards, first, last, labels):
    parts = fedntd_sharding(labels, num_clients=100, seed=5, shards_per_client=shards)
    np.testing.assert_array_equal(counts_of(labels, parts)[[0, 99]], [first, last])


def test_sharding_of_unequal_classes():
    labels = np.repeat(np.arange(10), np.arange(300, 400, 10))
    parts = fedntd_sharding(labels, num_clients=20, seed=0, shards_per_client=3)
    expected = [[0, 0, 0, 55, 0, 0, 0, 61, 0, 65], [0, 52, 0, 0, 0, 0, 0, 0, 127, 0]]
    np.testing.assert_array_equal(counts_of(labels, parts)[[0, 19]], expected)


def test_impossible_partitions_are_refused(monkeypatch):
    labels = np.arange(1440) % 10
    with pytest.raises(ValueError, match=r'makes 21 shards: they must be a multiple of the 10'):
        fedntd_sharding(labels, num_clients=7, seed=0, shards_per_client=3)
    with pytest.raises(ValueError, match=r'at most 144 of each; change --shards_per_client'):
        fedntd_sharding(labels, num_clients=20, seed=0, shards_per_client=80)
    monkeypatch.setattr(fedntd, 'DRAWS', 5)
    with pytest.raises(ValueError, match=r'--min_size=72: --alpha=0\.05 left .*; lower it'):
        fedntd_dirichlet(labels, num_clients=20, seed=0, alpha=0.05, min_size=72)


@pytest.mark.filterwarnings('error')
def test_an_alpha_so_small_that_a_draw_has_no_shares(monkeypatch):
    monkeypatch.setattr(fedntd, 'DRAWS', 300)
    labels = np.repeat(np.arange(10), 60)
    fedntd._accepted_state.cache_clear()
    parts = fedntd_dirichlet(labels, num_clients=3, seed=0, alpha=0.001, min_size=1)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    with pytest.raises(ValueError, match=r'--min_size=200: --alpha=0\.0001 left .*; lower it'):
        fedntd_dirichlet(labels, num_clients=3, seed=0, alpha=0.0001, min_size=200)


def test_schedule_is_that_of_the_released_code():
    np.random.seed(7)
    want = np.random.choice(100, 10, replace=False)
    got = fedntd_schedule(8, np.ones(100, int), number=10, seed=3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_a_run_with_the_released_partition_and_schedule(cheap_runs, tmp_path):
    config = jaxfed.Config(
        model='mlp',
        rounds=2,
        partition='fedntd_dirichlet',
        alpha=0.5,
        sampling='fedntd',
        measure='cohort_labels',
        workdir=str(tmp_path / 'run'),
    )
    metrics = jaxfed.simulate(config).metrics
    want = [sorted(fedntd_schedule(r, np.ones(20), number=5, seed=0)) for r in (1, 2)]
    assert [entry['cohort'] for entry in metrics] == want
