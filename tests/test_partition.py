"""Partitions: nothing is lost or dealt twice, and each deals as it is defined."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxfed import Config, simulation
from jaxfed.partition import (
    PARTITIONS,
    dirichlet,
    draw_heatmap,
    iid,
    label_counts,
    label_quantity,
    make_partition,
    print_heatmap,
    sharding,
)
from jaxfed.partition.__main__ import training_counts

# The package exports the function under the module's name.
dirichlet_module = sys.modules['jaxfed.partition.dirichlet']

labels_of_classes = st.lists(st.integers(20, 60), min_size=2, max_size=6).map(
    lambda sizes: np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
)
few = settings(max_examples=30, deadline=None)


def check_exact(parts, labels, num_clients):
    assert len(parts) == num_clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@few
@given(labels_of_classes, st.integers(1, 10), st.integers(0, 2**32))
def test_iid(labels, num_clients, seed):
    parts = iid(labels, num_clients=num_clients, seed=seed)
    check_exact(parts, labels, num_clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@few
@given(
    labels_of_classes,
    st.integers(1, 6),
    st.floats(0.2, 100),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_dirichlet(labels, num_clients, alpha, min_size, balanced, seed):
    parts = dirichlet(
        labels, num_clients=num_clients, alpha=alpha, seed=seed, min_size=min_size,
        balanced=balanced,
    )  # fmt: skip
    check_exact(parts, labels, num_clients)
    assert min(len(part) for part in parts) >= min_size


@few
@given(labels_of_classes, st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_sharding(labels, num_clients, shards, seed):
    if num_clients * shards < len(np.unique(labels)):
        with pytest.raises(ValueError, match='raise --shards_per_client'):
            sharding(labels, num_clients=num_clients, shards_per_client=shards, seed=seed)
        return
    parts = sharding(labels, num_clients=num_clients, shards_per_client=shards, seed=seed)
    check_exact(parts, labels, num_clients)
    assert max(len(np.unique(labels[part])) for part in parts) <= shards


@few
@given(labels_of_classes, st.integers(1, 10), st.integers(1, 6), st.integers(0, 2**32))
def test_label_quantity(labels, num_clients, k, seed):
    classes = len(np.unique(labels))
    arguments = {'num_clients': num_clients, 'labels_per_client': k, 'seed': seed}
    if k > classes or num_clients * k < classes:
        with pytest.raises(ValueError, match='labels_per_client'):
            label_quantity(labels, **arguments)
        return
    parts = label_quantity(labels, **arguments)
    check_exact(parts, labels, num_clients)
    assert {len(np.unique(labels[part])) for part in parts} == {k}


def ten_classes(each=100):
    return np.repeat(np.arange(10), each)


def test_sharding_gives_equal_clients_where_it_can():
    parts = sharding(ten_classes(), num_clients=20, shards_per_client=2, seed=0)
    assert {len(part) for part in parts} == {50}


def test_label_quantity_splits_a_class_evenly_among_its_holders():
    labels = ten_classes()
    parts = label_quantity(labels, num_clients=12, labels_per_client=3, seed=1)
    counts = label_counts(labels, parts, 10)
    assert counts.sum() == 1000
    for column in counts.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


def test_balanced_dirichlet_gives_no_more_to_a_full_client():
    labels = ten_classes()
    for seed in range(5):
        parts = dirichlet(labels, num_clients=10, alpha=0.1, seed=seed, min_size=1, balanced=True)
        counts = label_counts(labels, parts, 10)
        held = np.cumsum(counts, axis=1)
        # A client that held n / N = 100 examples before a class got none of that class.
        full_before = np.concatenate([np.zeros((10, 1), bool), held[:, :-1] >= 100], axis=1)
        assert not counts[full_before].any()
        assert full_before.any()


def test_dirichlet_marginal(monkeypatch):
    monkeypatch.setattr(dirichlet_module, '_DRAWS_AT_ONCE', 5)
    # A client's share of a class is Beta(alpha, (N - 1) alpha): mean 1 / N, and variance
    # (1 / N) (1 - 1 / N) / (N alpha + 1) = 0.16 / 6 for N = 5 and alpha = 1.
    labels = np.repeat(np.arange(2), 1000)
    share = [
        len(part) / 1000
        for seed in range(300)
        for part in dirichlet(labels[:1000], num_clients=5, alpha=1.0, seed=seed, min_size=1)
    ]
    assert np.isclose(np.mean(share), 0.2)
    assert np.isclose(np.var(share), 0.16 / 6, rtol=0.15)


def test_small_alpha_is_more_skewed():
    def classes_held(alpha):
        parts = dirichlet(ten_classes(), num_clients=10, alpha=alpha, seed=0, min_size=5)
        return np.mean([len(np.unique(ten_classes()[part])) for part in parts])

    assert classes_held(0.05) < classes_held(0.5) < classes_held(10) == 10


def test_the_most_skewed_setting_in_use_is_reached():
    parts = dirichlet(ten_classes(5000), num_clients=100, alpha=0.05, seed=0, min_size=10)
    assert min(len(part) for part in parts) >= 10


@pytest.mark.parametrize('name', PARTITIONS)
def test_seed_decides(name):
    def make(seed):
        return make_partition(
            name, ten_classes(), num_clients=8, seed=seed, alpha=0.5, min_size=2, balanced=False,
            shards_per_client=2, labels_per_client=3,
        )  # fmt: skip

    first, again, other = make(0), make(0), make(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    'function, arguments, message',
    [
        (iid, {'num_clients': 0}, 'num_clients=0'),
        (iid, {'num_clients': 1001}, 'num_clients=1001 is more than the 1000'),
        (iid, {'num_clients': 2, 'seed': -1}, 'seed=-1'),
        (dirichlet, {'num_clients': 2, 'alpha': 0.0}, 'alpha=0.0'),
        (dirichlet, {'num_clients': 2, 'alpha': float('nan')}, 'alpha=nan'),
        (dirichlet, {'num_clients': 2, 'alpha': float('inf')}, 'alpha=inf'),
        (dirichlet, {'num_clients': 10, 'alpha': 1.0, 'min_size': 101}, 'min_size=101'),
        (sharding, {'num_clients': 10, 'shards_per_client': 0}, 'shards_per_client=0'),
        (sharding, {'num_clients': 600, 'shards_per_client': 2}, '1200 shards for 1000'),
        (label_quantity, {'num_clients': 5, 'labels_per_client': 11}, 'labels_per_client=11'),
        (label_quantity, {'num_clients': 4, 'labels_per_client': 2}, 'cannot hold all 10'),
        (label_quantity, {'num_clients': 900, 'labels_per_client': 10}, 'class 0 has 100'),
    ],
)
def test_refuses(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(ten_classes(), **{'seed': 0, **arguments})


def test_unreachable_minimum_is_told(monkeypatch):
    monkeypatch.setattr(dirichlet_module, '_MAX_WORK', 10_000)
    monkeypatch.setattr(dirichlet_module, '_DRAWS_AT_ONCE', 1_000)
    with pytest.raises(ValueError, match=r'alpha=0.01 .* min_size=99'):
        dirichlet(ten_classes(), num_clients=10, alpha=0.01, seed=0, min_size=99)


def test_short_steps_count_as_work(monkeypatch):
    # An attempt ends with its first or second client: the time goes into steps, not numbers.
    def work(step_work):
        monkeypatch.setattr(dirichlet_module, '_STEP_WORK', step_work)
        rng = np.random.default_rng(0)
        return dirichlet_module._draw(rng, np.full(10, 5000), 5000, 0.05, 10, attempts=20)[1]

    assert work(0) <= 20 * 10 * 2
    assert (work(300) - work(0)) / 300 in (1, 2, 3, 4)


def test_counts_are_shown_as_they_are_trained(tmp_path):
    settings = Config(method='fedcad', workdir=str(tmp_path / 'out'))
    counts = training_counts(settings)
    assert np.array_equal(counts, simulation.set_up(settings).dealt.label_counts)
    assert counts.sum() < training_counts(Config()).sum()
    assert len(training_counts(Config(num_clients=4, alpha=1.0))) == 4
    with pytest.raises(ValueError, match="unknown method 'fedlmb'"):
        training_counts(Config(method='fedlmb'))
    with pytest.raises(ValueError, match=r'--mu=1\.0: --method=fedavg takes no such'):
        training_counts(Config(hyperparameters={'mu': 1.0}))


def test_label_counts_by_hand():
    counts = label_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]


@pytest.mark.parametrize('clients, classes', [(4, 3), (30, 10), (100, 62)])
def test_heatmaps(clients, classes, tmp_path):
    counts = np.random.default_rng(0).integers(0, 500, (clients, classes))
    path = tmp_path / 'map.png'
    draw_heatmap(counts, path, title='title')
    assert path.read_bytes().startswith(b'\x89PNG')
    console = Console(width=80, record=True, file=open('/dev/null', 'w'))  # noqa: SIM115
    print_heatmap(counts, console)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert str(counts[3].sum()) in shown
    assert ('more clients' in shown) == (clients > 20)
