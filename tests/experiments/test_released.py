"""The partition and schedule of the released code of FedNTD."""

import numpy as np
import pytest

import jaxfed
from experiments import released
from experiments.released import released_partition, released_schedule
from jaxfed.engine.cohorts import SAMPLINGS
from jaxfed.partition import PARTITIONS

# Drawn with alpha 0.3 by a transcript of the code with NumPy's global generator.
FIRST = [258, 6, 133, 5, 204, 0, 0, 0, 0, 0]
LAST = [34, 14, 2, 1, 161, 1, 23, 76, 35, 346]
SMALLEST_MEDIAN_LARGEST = [34, 505, 1317]


def test_partition_holds_the_released_counts():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    parts = released_partition(labels, num_clients=100, seed=5, alpha=0.3)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(50000))
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    np.testing.assert_array_equal(counts[[0, 99]], [FIRST, LAST])
    np.testing.assert_array_equal(np.sort(counts.sum(axis=1))[[0, 50, 99]], SMALLEST_MEDIAN_LARGEST)


def test_schedule_is_that_of_the_released_code():
    np.random.seed(7)
    want = np.random.choice(100, 10, replace=False)
    got = released_schedule(8, np.ones(100, int), number=10, seed=3)
    np.testing.assert_array_equal(got, want)


def test_a_run_with_the_released_partition_and_schedule(monkeypatch, cheap_runs, tmp_path):
    monkeypatch.setitem(PARTITIONS, 'released', released_partition)
    monkeypatch.setitem(SAMPLINGS, 'released', released_schedule)
    config = jaxfed.Config(
        model='mlp',
        rounds=2,
        partition='released',
        alpha=0.5,
        sampling='released',
        measure='cohort_labels',
        workdir=str(tmp_path / 'run'),
    )
    metrics = jaxfed.simulate(config).metrics
    want = [sorted(released_schedule(r, np.ones(20), number=5, seed=0)) for r in (1, 2)]
    assert [entry['cohort'] for entry in metrics] == want
    monkeypatch.setattr(released, 'DRAWS', 5)
    with pytest.raises(ValueError, match=r'--min_size=72: --alpha=0\.05 left .*; lower it'):
        released_partition(np.arange(1440) % 10, num_clients=20, seed=0, alpha=0.05, min_size=72)
