"""Partitions: every example is dealt once, and the defining property holds."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from jaxfed import Config
from jaxfed.config import partition_values
from jaxfed.partition import (
    PARTITIONS,
    client_dirichlet,
    dirichlet,
    extended_dirichlet,
    hold_out,
    iid,
    label_counts,
    label_noise,
    label_quantity,
    label_skew,
    long_tail,
    make_partition,
    natural,
    one_class_share,
    partition_settings,
    proportions,
    quantity,
    sharding,
)
from jaxfed.recording.entries import title_of
from jaxfed.recording.heatmap import draw_heatmap, print_heatmap
from jaxfed.runs import checks, config_flags, deal, experiment
from jaxfed.runs import partition_map as show
from jaxfed.runs.partition_map import deal_examples
from jaxfed.runs.seeds import stream

labels_of_classes = st.lists(st.integers(20, 60), min_size=2, max_size=6).map(
    lambda sizes: np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
)
few = settings(max_examples=30)


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


@few
@given(
    labels_of_classes,
    st.integers(1, 6),
    st.floats(0.2, 100),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_quantity(labels, num_clients, size_alpha, min_size, seed):
    parts = quantity(
        labels, num_clients=num_clients, size_alpha=size_alpha, seed=seed, min_size=min_size
    )
    check_exact(parts, labels, num_clients)
    assert min(len(part) for part in parts) >= min_size


@few
@given(
    labels_of_classes,
    st.integers(1, 8),
    st.integers(1, 6),
    st.floats(0.05, 100),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_extended_dirichlet(labels, num_clients, k, alpha, min_size, seed):
    classes = len(np.unique(labels))
    arguments = {'num_clients': num_clients, 'labels_per_client': k, 'alpha': alpha, 'seed': seed}
    if k > classes or num_clients * k < classes:
        with pytest.raises(ValueError, match='labels_per_client'):
            extended_dirichlet(labels, **arguments)
        return
    parts = extended_dirichlet(labels, **arguments, min_size=min(min_size, k + 1))
    check_exact(parts, labels, num_clients)
    counts = label_counts(labels, parts, classes)
    assert ((counts > 0).sum(axis=1) == k).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    assert counts.sum(axis=1).min() >= min(min_size, k + 1)


@few
@given(labels_of_classes, st.integers(1, 30), st.floats(0.001, 100), st.integers(0, 2**32))
def test_client_dirichlet(labels, num_clients, alpha, seed):
    parts = client_dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed)
    check_exact(parts, labels, num_clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@few
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 12),
    st.integers(1, 9),
    st.integers(0, 2**32),
)
def test_natural(user_sizes, num_clients, num_users, least, seed):
    # Ids need not be consecutive: user 3 * i made user_sizes[i] examples.
    users = np.random.default_rng(seed).permutation(
        np.repeat(3 * np.arange(len(user_sizes)), user_sizes)
    )
    arguments = {'num_clients': num_clients, 'num_users': num_users, 'min_user_size': least}
    able = [3 * i for i, size in enumerate(user_sizes) if size >= least]
    if num_clients > (num_users or len(able)) or num_users > len(able):
        with pytest.raises(ValueError, match=r'num_clients=|num_users='):
            natural(np.zeros_like(users), users=users, seed=seed, **arguments)
        return
    parts = natural(np.zeros_like(users), users=users, seed=seed, **arguments)
    held = [np.unique(users[part]) for part in parts]
    together = np.concatenate(held)
    assert len(np.unique(together)) == len(together) == (num_users or len(able))
    assert set(together) <= set(able)
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.flatnonzero(np.isin(users, together)))
    assert all((np.diff(part) > 0).all() for part in parts)


@few
@given(labels_of_classes, st.integers(1, 30), st.floats(0, 0.999), st.integers(0, 2**32))
def test_hold_out(labels, num_clients, share, seed):
    parts = client_dirichlet(labels, num_clients=num_clients, alpha=1.0, seed=seed)
    train, test = hold_out(parts, labels, share=share, seed=seed)
    for part, train_part, kept in zip(parts, train, test):
        assert np.array_equal(np.sort(np.concatenate([train_part, kept])), part)
        assert len(kept) == min(round(share * len(part)), len(part) - 1)
        fair = np.bincount(labels[part]) * len(kept) / len(part)
        stray = np.bincount(labels[kept], minlength=fair.size) - fair
        assert np.abs(stray).max() < 1
    # A client's choice does not depend on the others.
    alone = hold_out(parts[:1], labels, share=share, seed=seed)
    assert np.array_equal(alone[0][0], train[0])
    assert np.array_equal(alone[1][0], test[0])


@few
@given(
    labels_of_classes,
    st.floats(0, 1),
    st.sampled_from(['equal', 'uniform']),
    st.integers(0, 2**32),
)
def test_label_noise(labels, rate, form, seed):
    before = labels.copy()
    classes = labels.max() + 1
    parts = np.array_split(np.arange(5, labels.size), 3)

    def noise(rate, parts=parts):
        return label_noise(labels, parts, num_classes=classes, rate=rate, form=form, seed=seed)

    noisy = noise(rate)
    assert np.array_equal(labels, before)
    assert np.array_equal(noisy, noise(rate))
    assert np.array_equal(noisy[:5], labels[:5])  # of no client
    assert noisy.min() >= 0 and noisy.max() < classes
    wrong = noisy != labels
    more = noise((rate + 1) / 2)
    assert np.array_equal(more[wrong], noisy[wrong])
    assert np.array_equal(noise(rate, parts[:1])[parts[0]], noisy[parts[0]])


def ten_classes(per_class=100):
    return np.repeat(np.arange(10), per_class)


def test_sharding_gives_equal_clients_if_possible():
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


def test_quantity_skews_sizes_only(monkeypatch):
    monkeypatch.setattr(proportions, '_DRAWS_AT_ONCE', 100)
    labels = ten_classes(1000)
    parts = quantity(labels, num_clients=10, size_alpha=0.5, seed=0)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 5 * sizes.min()
    counts = label_counts(labels, parts, 10)
    large = counts[sizes > 500]
    # A class's share has a standard deviation of at most sqrt(.09 / 500) = .0134.
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.1).max() < 5 * 0.0134
    # A share is Beta(beta, (N - 1) beta): as in `test_dirichlet_marginal`.
    share = [
        len(part) / 1000
        for seed in range(300)
        for part in quantity(labels[:1000], num_clients=5, size_alpha=1.0, seed=seed, min_size=1)
    ]
    assert np.isclose(np.mean(share), 0.2)
    assert np.isclose(np.var(share), 0.16 / 6, rtol=0.15)


def test_extended_dirichlet_marginal(monkeypatch):
    monkeypatch.setattr(proportions, '_DRAWS_AT_ONCE', 100)
    # 4 clients hold 2 of 4 classes each, so 2 clients a class: but for its first example, a
    # holder's share is Beta(alpha, alpha), of mean 1 / 2 and variance 1 / (4 (2 alpha + 1)).
    labels = np.repeat(np.arange(4), 1000)
    share = []
    for seed in range(300):
        parts = extended_dirichlet(
            labels, num_clients=4, labels_per_client=2, alpha=1.0, seed=seed, min_size=1
        )
        counts = label_counts(labels, parts, 4)
        share += [(count - 1) / 998 for count in counts[counts > 0]]
    assert np.isclose(np.mean(share), 0.5)
    assert np.isclose(np.var(share), 1 / 12, rtol=0.15)


def test_extended_dirichlet_favours_no_client_by_its_number():
    # Five clients with three of ten classes each: five of the classes have a second holder.
    sizes = [
        list(map(len, extended_dirichlet(
            np.repeat(np.arange(10), 100), num_clients=5, labels_per_client=3, alpha=1e6, seed=seed
        ))) for seed in range(60)
    ]  # fmt: skip
    np.testing.assert_allclose(np.mean(sizes, axis=0), 200, atol=22)  # deviation of a mean: 6


def test_extended_dirichlet_reaches_its_minimum(monkeypatch):
    monkeypatch.setattr(proportions, '_DRAWS_AT_ONCE', 10_000)

    def smallest(min_size):
        arguments = {'num_clients': 10, 'labels_per_client': 2, 'alpha': 0.3, 'min_size': min_size}
        return [
            min(map(len, extended_dirichlet(ten_classes(), **arguments, seed=s))) for s in range(9)
        ]

    assert min(smallest(1)) == 2  # one example of each class in any case
    assert min(smallest(12)) in (12, 13)


def test_client_dirichlet_marginal():
    # Where no class runs out a client's mix is its own draw from Dir(alpha): a class's share has
    # mean 1 / C and variance (1 / C) (1 - 1 / C) / (C alpha + 1).
    labels = np.repeat(np.arange(5), 2000)
    counts = np.stack([
        label_counts(labels, client_dirichlet(labels, num_clients=50, alpha=a, seed=0), 5)
        for a in (0.01, 1.0, 100.0)
    ])  # fmt: skip
    share = counts / 200
    assert np.isclose(share[1].var(), 0.16 / 6, rtol=0.25)
    assert share[2].std() < 0.05
    assert np.median(share[0].max(axis=1)) > 0.9


def test_natural_by_hand():
    users = np.array([0, 1, 0, 4, 1, 1])
    labels = np.zeros(6, int)
    parts = natural(labels, num_clients=3, users=users, seed=0)
    assert sorted(map(list, parts)) == [[0, 2], [1, 4, 5], [3]]
    parts = natural(labels, num_clients=2, users=users, seed=0, min_user_size=2)
    assert sorted(map(list, parts)) == [[0, 2], [1, 4, 5]]
    (part,) = natural(labels, num_clients=1, users=users, seed=0, min_user_size=3)
    assert part.tolist() == [1, 4, 5]


def test_label_noise_rates():
    labels = np.repeat(np.arange(10), 3000)
    parts = np.array_split(np.random.default_rng(0).permutation(30000), 30)
    for form, mean, std in (('equal', 0.4, 0.0155), ('uniform', 0.2, 0.4 / np.sqrt(12))):
        noisy = label_noise(labels, parts, num_classes=10, rate=0.4, form=form, seed=3)
        rates = np.array([np.mean(noisy[part] != labels[part]) for part in parts])
        assert abs(rates.mean() - mean) < 4 * std / np.sqrt(30)
        assert 0.6 * std < rates.std() < 1.5 * std
        # All other classes are equally likely: 1 / 9 of the wrong labels, about 12000 or 6000.
        shifts = np.bincount((noisy - labels) % 10, minlength=10)[1:]
        assert np.abs(shifts / shifts.sum() - 1 / 9).max() < 5 * np.sqrt(0.099 / shifts.sum())
    assert (label_noise(labels, parts, num_classes=10, rate=1.0, seed=0) != labels).all()
    assert (label_noise(labels, parts, num_classes=10, rate=0.0, seed=0) == labels).all()


def test_long_tail_of_cifar10():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = {
        rho: long_tail(labels, num_classes=10, imbalance=rho, seed=3) for rho in (1, 10, 50, 100)
    }
    # The sizes of CIFAR-10-LT in the code of Cao et al.
    of_class = np.bincount(labels[kept[100]])
    assert of_class.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert kept[1].tolist() == list(range(50000))
    for fewer, more in ((100, 50), (50, 10), (10, 1)):
        assert (np.diff(kept[fewer]) > 0).all()
        assert set(kept[fewer]) < set(kept[more])
    other = long_tail(labels, num_classes=10, imbalance=100, seed=4)
    assert (np.bincount(labels[other]) == of_class).all() and set(other) != set(kept[100])


def test_long_tail_is_exact_for_classes_of_different_sizes():
    labels = np.repeat([0, 1, 2], [50, 8, 9])
    # 8 = 16 / sqrt(4) limits the first class to 16, and the last one to 4.
    kept = long_tail(labels, num_classes=3, imbalance=4, seed=0)
    assert np.bincount(labels[kept]).tolist() == [16, 8, 4]


@pytest.mark.parametrize(
    'arguments, message',
    [
        ({'imbalance': 0.5}, r'--imbalance must be finite and at least 1 \(none\), got 0\.5'),
        ({'imbalance': np.inf}, 'got inf'),
        ({'imbalance': np.nan}, 'got nan'),
        ({'imbalance': 2.0, 'num_classes': 1}, 'num_classes=1, got 2.0: there is no other class'),
        ({'imbalance': 10.0}, '--imbalance=10 leaves class 1 without training examples; lower'),
        ({'imbalance': 2.0, 'num_classes': 3}, 'every class, but class 2 has none'),
        ({'labels': [0, 2], 'imbalance': 2.0}, 'from 0 to 2: they must be from 0 to 1'),
    ],
)
def test_long_tail_refuses(arguments, message):
    labels = np.repeat([0] if arguments.get('num_classes') == 1 else [0, 1], 9)
    with pytest.raises(ValueError, match=message):
        long_tail(**{'labels': labels, 'num_classes': 2, 'seed': 0, **arguments})


def test_a_long_tail_leaves_the_other_examples_alone():
    settings = Config(partition='iid', validation=0.2, auxiliary_per_class=20, personal_test=0.25)
    plain, dealt = (deal.deal(dataclasses.replace(settings, imbalance=rho)) for rho in (1.0, 20.0))
    np.testing.assert_array_equal(dealt.auxiliary, plain.auxiliary)
    np.testing.assert_array_equal(dealt.dataset.y_test, plain.dataset.y_test)
    examples = np.concatenate([*dealt.partition, *dealt.personal])
    assert set(examples) < set(np.concatenate([*plain.partition, *plain.personal]))
    sizes = np.bincount(dealt.dataset.y_train[examples])
    assert np.abs(sizes - sizes[0] * 20.0 ** (-np.arange(10) / 9)).max() <= 1  # rounded down
    left = np.setdiff1d(np.arange(len(plain.dataset.y_train)), plain.auxiliary)
    left = np.intersect1d(left, np.concatenate([*plain.partition, *plain.personal]))
    chosen = long_tail(
        plain.dataset.y_train[left], num_classes=10, imbalance=20, seed=stream(0, 'imbalance')
    )
    assert set(examples) == set(left[chosen])
    left = r'; \d+ of \d+ training examples are left after --validation, the examples of the server'
    with pytest.raises(ValueError, match=f'min_size.*{left}'):
        deal.deal(dataclasses.replace(settings, partition='dirichlet', imbalance=20.0, min_size=50))
    with pytest.raises(ValueError, match=f'--num_clients=20 is more than the 14 .*{left}'):
        deal.deal(Config(validation=0.99))
    with pytest.raises(ValueError, match=r'another --partition\.$'):
        deal.deal(Config(partition='natural', validation=0.1))


def test_label_noise_does_not_change_a_read_only_array():
    labels = np.zeros(50, np.int32)
    labels.flags.writeable = False
    noisy = label_noise(labels, [np.arange(50)], num_classes=2, rate=1.0, seed=0)
    assert noisy.dtype == np.int32
    assert noisy.tolist() == [1] * 50


def test_small_clients_keep_an_example_to_train_on():
    labels = np.array([0, 0, 1])
    train, test = hold_out([np.array([1]), np.array([0, 2])], labels, share=0.9, seed=0)
    assert [len(part) for part in train] == [1, 1]
    assert [len(part) for part in test] == [0, 1]
    train, test = hold_out([np.array([], int), np.array([0, 2])], labels, share=0.0, seed=0)
    assert [part.tolist() for part in train] == [[], [0, 2]]
    assert [part.tolist() for part in test] == [[], []]


def test_dirichlet_marginal(monkeypatch):
    monkeypatch.setattr(proportions, '_DRAWS_AT_ONCE', 5)
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


@pytest.mark.parametrize('name', sorted({*PARTITIONS} - {'file'}))
def test_the_seed_determines_the_partition(name):
    values = {'alpha': 0.5, 'min_size': 2, 'shards_per_client': 2, 'labels_per_client': 3}
    chosen = {key: values[key] for key in partition_settings(name) if key in values}

    def make(seed):
        users = np.arange(1000) % 70
        return make_partition(name, ten_classes(), num_clients=10, seed=seed, users=users, **chosen)

    first, again, other = make(0), make(0), make(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert same == name.startswith('fedntd_')  # one partition, as in the released code


@pytest.mark.parametrize(
    'function, arguments, message',
    [
        (iid, {'num_clients': 0}, '--num_clients must be at least 1, got 0'),
        (iid, {'num_clients': 1001}, 'num_clients=1001 is more than the 1000'),
        (iid, {'num_clients': 2, 'seed': -1}, '--seed must be at least 0, got -1'),
        (dirichlet, {'num_clients': 2, 'alpha': 0.0}, 'alpha=0.0'),
        (dirichlet, {'num_clients': 2, 'alpha': float('nan')}, 'alpha=nan'),
        (dirichlet, {'num_clients': 2, 'alpha': float('inf')}, 'alpha=inf'),
        (dirichlet, {'num_clients': 10, 'alpha': 1.0, 'min_size': 101}, 'min_size=101'),
        (sharding, {'num_clients': 10, 'shards_per_client': 0}, 'shards_per_client must be at'),
        (sharding, {'num_clients': 600, 'shards_per_client': 2}, '1200 shards for 1000'),
        (label_quantity, {'num_clients': 5, 'labels_per_client': 11}, 'labels_per_client=11'),
        (label_quantity, {'num_clients': 4, 'labels_per_client': 2}, 'cannot hold all 10'),
        (label_quantity, {'num_clients': 900, 'labels_per_client': 10}, 'class 0 has 100'),
        (quantity, {'num_clients': 10, 'size_alpha': 0.0}, 'size_alpha=0.0 .* --size_alpha'),
        (quantity, {'num_clients': 10, 'min_size': 101}, 'min_size=101'),
        (quantity, {'num_clients': 10, 'min_size': 0}, 'min_size must be at least 1'),
        (client_dirichlet, {'num_clients': 2, 'alpha': -1.0}, 'alpha=-1.0'),
        (client_dirichlet, {'num_clients': 1001, 'alpha': 1.0}, 'num_clients=1001'),
        (
            extended_dirichlet,
            {'num_clients': 5, 'labels_per_client': 11, 'alpha': 1.0},
            'labels_per_client=11',
        ),
        (
            extended_dirichlet,
            {'num_clients': 4, 'labels_per_client': 2, 'alpha': 1.0},
            'cannot hold all 10',
        ),
        (
            extended_dirichlet,
            {'num_clients': 500, 'labels_per_client': 3, 'alpha': 1.0, 'min_size': 1},
            'class 0 has 100 examples for the 150 .* --labels_per_client=3',
        ),
        (natural, {'num_clients': 2, 'users': None}, 'has no users: name their column by'),
        (natural, {'num_clients': 2, 'users': np.zeros(3, int)}, r'users has shape \(3,\)'),
        (natural, {'num_clients': 2, 'users': np.zeros(1000)}, 'dtype float64'),
        (
            natural,
            {'num_clients': 11, 'users': ten_classes()},
            'num_clients=11 .* 10 users that take part',
        ),
        (
            natural,
            {'num_clients': 5, 'users': ten_classes(), 'num_users': 4},
            'num_clients=5 is more than the 4 users that take part',
        ),
        (natural, {'num_clients': 1, 'users': ten_classes(), 'num_users': 11}, 'num_users=11'),
        (
            natural,
            {'num_clients': 1, 'users': ten_classes(), 'num_users': -1},
            'num_users must be at least 0',
        ),
        (
            natural,
            {'num_clients': 1, 'users': ten_classes(), 'num_users': 1, 'min_user_size': 101},
            'the 0 of 10 users with at least --min_user_size=101',
        ),
        (
            natural,
            {'num_clients': 1, 'users': ten_classes(), 'min_user_size': 101},
            'num_clients=1 is more than the 0 users that take part',
        ),
        (
            natural,
            {'num_clients': 1, 'users': ten_classes(), 'min_user_size': 0},
            'min_user_size must be at least 1, got 0',
        ),
    ],
)
def test_invalid_settings_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(ten_classes(), **{'seed': 0, **arguments})


@pytest.mark.parametrize(
    'arguments, message',
    [
        ({'rate': 1.5}, r'label_noise must be .* got 1\.5'),
        ({'rate': float('nan')}, 'label_noise must be .* got nan'),
        ({'rate': 0.1, 'form': 'pair'}, "label_noise_form must be .* got 'pair'"),
        ({'rate': 0.1, 'num_classes': 1}, 'num_classes=1, got 0.1: there is no other class'),
    ],
)
def test_label_noise_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        label_noise(np.zeros(9, int), [np.arange(9)], **{'num_classes': 2, 'seed': 0, **arguments})


@pytest.mark.parametrize('share', [-0.1, 1.0, float('nan')])
def test_hold_out_refuses(share):
    with pytest.raises(ValueError, match=f'share must be .* got {share}'):
        hold_out([np.arange(9)], np.zeros(9, int), share=share, seed=0)


@pytest.mark.parametrize(
    'name, settings_, message',
    [
        ('dirichle', {}, '--partition=dirichle is unknown: choose one of iid'),
        ('iid', {'alpha': 1.0}, '--partition=iid got alpha: it takes none'),
        ('sharding', {}, '--partition=sharding got no settings: it takes shards_per_client'),
    ],
)
def test_settings_of_another_partition_are_refused(name, settings_, message):
    with pytest.raises(ValueError, match=message):
        make_partition(name, ten_classes(), num_clients=2, seed=0, **settings_)


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'partition': 'quantity', 'size_alpha': 0.0}, r'--size_alpha must be positive, got 0\.0'),
        ({'partition': 'sharding', 'shards_per_client': 0}, '--shards_per_client must be at'),
        ({'partition': 'natural', 'min_user_size': 0}, '--min_user_size must be at least 1, got 0'),
        (
            {'partition': 'natural', 'num_users': -1},
            '--num_users must be at least 1, or 0 for all, got -1',
        ),
        ({'label_noise': -0.1}, r'--label_noise must be from 0 to 1, got -0\.1'),
        ({'imbalance': 0.9}, r'--imbalance must be at least 1, got 0\.9'),
        ({'label_noise_form': 'pair'}, '--label_noise_form must be one of equal, uniform'),
        ({'personal_test': 1.0}, '--personal_test must be at least 0 and below 1, got 1.0'),
        ({'partition_settings': {'size': 3}}, '--partition=dirichlet has no setting size there'),
        (
            {'partition_settings': {'alpha': 0.3}},
            r'must not have alpha, a setting of its own; set it as .* Config\(alpha=0\.3\)',
        ),
        (
            {'partition': 'iid', 'partition_settings': {'alpha': 0.3}},
            'has no setting alpha there; its settings are none',
        ),
    ],
)
def test_settings_are_checked_before_data_is_read(settings, message):
    with pytest.raises(ValueError, match=message):
        checks.check(Config(**settings))


def test_a_registered_partition_gets_its_flags(monkeypatch):
    def halves(labels, *, num_clients, seed, alpha: float, first: int = 3):
        return [np.arange(first), np.arange(first, labels.size)]

    monkeypatch.setitem(PARTITIONS, 'halves', halves)

    def parsed(*arguments):
        return config_flags.parse(arguments)

    mine = parsed('--partition=halves', '--first=7', '--alpha=2', '--num_clients=2')
    assert mine.partition_settings == {'first': 7}
    sizes = deal.deal(dataclasses.replace(mine, clients_per_round=2)).label_counts.sum(axis=1)
    assert sizes[0] == 7
    assert parsed('--partition=halves').partition_settings == {}
    with pytest.raises(ValueError, match='--first=7 belongs to --partition=halves, but'):
        parsed('--first=7')
    with pytest.raises(ValueError, match=r'--alpha=1\.0 .* halves, but --partition is iid;'):
        parsed('--partition=iid', '--alpha=1')
    with pytest.raises(TypeError, match=r"of halves are .* partition_settings={'first': 7}"):
        Config(partition='halves', first=7)
    with pytest.raises(ValueError, match="--first must be an integer, got 'x'"):
        checks.check(Config(partition='halves', partition_settings={'first': 'x'}))


def test_a_registered_partition_has_the_default_of_a_setting_or_none(monkeypatch):
    def mine(labels, *, num_clients, seed, alpha: float = 5.0, min_size: int = 10):
        return [labels]

    monkeypatch.setitem(PARTITIONS, 'mine', mine)
    message = (
        r"PARTITIONS\['mine'\]: its parameter alpha is the setting --alpha, whose default is 0.1, "
        'got 5.0; rename it, or remove its default.'
    )
    with pytest.raises(ValueError, match=message):
        partition_values(Config(partition='mine'))

    def others(labels, *, num_clients, seed, alpha: float, min_size: int = 10):
        return [labels]

    monkeypatch.setitem(PARTITIONS, 'mine', others)
    assert partition_values(Config(partition='mine')) == {'alpha': 0.1, 'min_size': 10}


@pytest.mark.parametrize(
    'parts, message',
    [
        (None, 'must return 3 index arrays, one per client, got NoneType'),
        ([[0], [1]], 'must return 3 index arrays, one per client, got 2'),
        ([[0.0], [1.0], [2.0]], r'must return integer arrays \[n_i\], got shape \(1,\) .* float64'),
        (np.eye(3, dtype=bool), 'dtype bool for client 0'),
        ([[0], [[1]], [2]], r'got shape \(1, 1\) and dtype int64 for client 1'),
        ([0, 1, 2], r'got shape \(\) and dtype int64 for client 0'),
        ([[0], [1], [1000]], 'must return indices from 0 to 999, got 1000'),
        ([[0], [1], [-1]], 'must return indices from 0 to 999, got -1'),
        ([np.arange(10)] * 3, 'but gives example 0 3 times'),
        ([[0, 5, 5], [1], [2]], 'but gives example 5 2 times'),
        ([[], [], []], 'must give examples to the clients, got none'),
    ],
)
def test_the_result_of_a_registered_partition_is_checked(monkeypatch, parts, message):
    monkeypatch.setitem(PARTITIONS, 'mine', lambda labels, num_clients, seed: parts)
    with pytest.raises(ValueError, match=rf'^--partition=mine .*{message}.*\.$'):
        make_partition('mine', ten_classes(), num_clients=3, seed=0)


def test_an_error_in_a_registered_partition_names_its_line(monkeypatch):
    monkeypatch.setitem(PARTITIONS, 'mine', lambda labels, num_clients, seed: 1 / seed)
    message = r"PARTITIONS\['mine'\] \(test_partition\.py, line \d+\): ZeroDivisionError: division"
    with pytest.raises(ValueError, match=message):
        make_partition('mine', ten_classes(), num_clients=3, seed=0)


def test_a_registered_partition_may_return_lists_and_empty_clients(monkeypatch):
    monkeypatch.setitem(PARTITIONS, 'mine', lambda labels, num_clients, seed: ([3, 1], [], (2,)))
    parts = make_partition('mine', ten_classes(), num_clients=3, seed=0)
    assert [part.tolist() for part in parts] == [[3, 1], [], [2]]
    assert {part.dtype for part in parts} == {np.dtype(np.int64)}


def test_the_parameters_of_a_registered_partition_are_checked(monkeypatch):
    monkeypatch.setitem(PARTITIONS, 'mine', lambda labels, num_clients: [])
    message = "--partition=mine must take labels and, .*unexpected keyword argument 'seed'"
    with pytest.raises(ValueError, match=message):
        make_partition('mine', ten_classes(), num_clients=3, seed=0)
    monkeypatch.setitem(PARTITIONS, 'mine', None)
    with pytest.raises(ValueError, match=r"PARTITIONS\['mine'\] must be a function, got a None"):
        checks.check(Config())


def test_dealt_data():
    plain = Config(method='fedcad', num_clients=10, min_size=20)
    noisy = dataclasses.replace(plain, label_noise=0.5, personal_test=0.25, local_eval_every=1)
    dealt, other = (deal.deal(c, auxiliary_per_class=4) for c in (plain, noisy))
    assert np.array_equal(dealt.auxiliary, other.auxiliary)
    assert [len(part) for part in dealt.personal] == [0] * 10
    true, seen = dealt.dataset.y_train, other.dataset.y_train
    assert np.array_equal(true[other.auxiliary], seen[other.auxiliary])
    for whole, train_part, kept in zip(dealt.partition, other.partition, other.personal):
        assert np.array_equal(np.sort(np.concatenate([train_part, kept])), whole)
        assert len(kept) == round(len(whole) / 4)
        assert np.array_equal(true[kept], seen[kept])
        fair = np.bincount(true[whole], minlength=10) * len(kept) / len(whole)
        assert np.abs(np.bincount(true[kept], minlength=10) - fair).max() < 1
    trained = np.concatenate(other.partition)
    assert 0.4 < np.mean(true[trained] != seen[trained]) < 0.6
    assert np.array_equal(other.label_counts, label_counts(seen, other.partition, 10))
    with pytest.raises(ValueError, match='holds out no example of any client'):
        deal.deal(dataclasses.replace(noisy, personal_test=1e-6))
    with pytest.raises(ValueError, match='the dataset has no users'):
        deal.deal(Config(partition='natural'))


def test_users_are_dealt_without_the_auxiliary_examples(monkeypatch):
    dataset = deal.load_dataset('digits')
    users = np.arange(len(dataset.y_train)) % 50
    monkeypatch.setattr(deal, 'load_dataset', lambda *_, **__: dataset._replace(users=users))
    settings = Config(partition='natural', num_clients=10, num_users=30, auxiliary_per_class=5)
    dealt = deal.deal(settings)
    held = [np.unique(users[part]) for part in dealt.partition]
    assert [len(examples) for examples in held] == [3] * 10
    used = np.flatnonzero(np.isin(users, np.concatenate(held)))
    assert np.array_equal(
        np.sort(np.concatenate(dealt.partition)), np.setdiff1d(used, dealt.auxiliary)
    )


def test_an_unreachable_minimum_is_refused(monkeypatch):
    monkeypatch.setattr(proportions, '_MAX_WORK', 10_000)
    monkeypatch.setattr(proportions, '_DRAWS_AT_ONCE', 1_000)
    with pytest.raises(ValueError, match=r'alpha=0.01 .* --min_size=99'):
        dirichlet(ten_classes(), num_clients=10, alpha=0.01, seed=0, min_size=99)
    with pytest.raises(ValueError, match=r'size_alpha=0.01 .* --min_size=99 .* raise --size_alpha'):
        quantity(ten_classes(), num_clients=10, size_alpha=0.01, seed=0, min_size=99)


def test_short_steps_count_as_work(monkeypatch):
    # An attempt ends with its first or second client: the time goes into steps, not numbers.
    def work(step_work):
        monkeypatch.setattr(proportions, '_STEP_WORK', step_work)
        rng = np.random.default_rng(0)
        holds, min_sizes = np.ones((5000, 10), bool), np.full(5000, 10)
        class_sizes = np.full(10, 5000)
        return proportions.draw_by_client(rng, class_sizes, holds, 0.05, min_sizes, 20)[1]

    assert work(0) <= 20 * 10 * 2
    assert (work(300) - work(0)) / 300 in (1, 2, 3, 4)


def test_counts_are_shown_as_they_are_trained(tmp_path):
    settings = Config(method='fedcad', workdir=str(tmp_path / 'out'))
    counts = deal_examples(settings).label_counts
    assert np.array_equal(counts, experiment.set_up(settings).dealt.label_counts)
    assert counts.sum() < deal_examples(Config()).label_counts.sum()
    assert len(deal_examples(Config(num_clients=4, alpha=1.0)).partition) == 4
    held_out = deal_examples(Config(personal_test=0.2))  # no model is evaluated
    assert held_out.label_counts.sum() < deal_examples(Config()).label_counts.sum()
    with pytest.raises(ValueError, match="unknown method 'fedlmb'"):
        deal_examples(Config(method='fedlmb'))
    with pytest.raises(ValueError, match=r'--mu=1\.0: --method=fedavg takes no such'):
        deal_examples(Config(hyperparameters={'mu': 1.0}))


@pytest.fixture
def show_map(monkeypatch):
    """The exit status of `python -m jaxfed.partition --output=PATH`."""

    def run(path):
        values = {'method': 'fedavg', 'include': None, 'output': str(path), 'output_indices': None}
        monkeypatch.setattr(
            show, 'flags', types.SimpleNamespace(FLAGS=types.SimpleNamespace(**values))
        )
        monkeypatch.setattr(show.command_line, 'quiet_libraries', lambda: None)
        monkeypatch.setattr(show.config_flags, 'from_flags', Config)
        return show.main(['partition'])

    return run


@pytest.mark.parametrize(
    'name, message',
    [
        ('no/such.png', 'there is no such folder; create it first'),
        ('map.jpg', 'must end in .png or .svg or .pdf.'),
    ],
)
def test_a_map_that_cannot_be_written_names_the_flag(name, message, tmp_path, show_map, capsys):
    path = tmp_path / name
    assert show_map(path) == 2
    shown = ' '.join(capsys.readouterr().err.split())
    assert f'--output={path}' in shown.replace(' ', '')
    assert message in shown


@pytest.mark.parametrize(
    'suffix, start', [('.png', b'\x89PNG'), ('.SVG', b'<?xml'), ('.pdf', b'%PDF')]
)
def test_a_map_is_the_same_file_every_time(suffix, start, tmp_path, show_map):
    path = tmp_path / f'map{suffix}'
    written = []
    for _ in range(2):
        assert show_map(path) == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(start) and b'/Type3' not in written[0]


def test_one_class_share_by_hand():
    counts = np.array([[19, 1, 0], [18, 2, 0], [0, 0, 5], [0, 0, 0]])
    assert one_class_share(counts) == (20 + 5) / 45
    assert one_class_share(counts, least=0.9) == 1
    assert one_class_share(counts, least=1) == 5 / 45
    assert one_class_share(np.zeros((2, 3), int)) == 0


def test_label_skew_by_hand():
    # Labels (1/2, 1/2, 0), (0, 0, 1) and no client: of all (1/4, 1/4, 1/2).
    effective, distance = label_skew(np.array([[4, 4, 0], [0, 0, 8], [0, 0, 0]]))
    assert (effective, distance) == pytest.approx(((2 + 1) / 2, 1 / 2))
    assert label_skew(np.full((5, 10), 7)) == pytest.approx((10, 0))
    assert label_skew(3 * np.eye(4, dtype=int)) == pytest.approx((1, 3 / 4))
    assert np.isnan(label_skew(np.zeros((2, 3), int))).all()


def test_label_counts_by_hand():
    counts = label_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]
    nobody = label_counts(np.array([0, 1]), [np.array([], int), np.array([1, 0])], 3)
    assert nobody.tolist() == [[0, 0, 0], [1, 1, 0]]


def test_many_clients_need_no_generator_each(monkeypatch):
    labels = np.arange(20_000) % 10
    parts = PARTITIONS['iid'](labels, num_clients=10_000, seed=0)
    monkeypatch.setattr(np.random, 'default_rng', None)
    train, test = hold_out(parts, labels, share=0.0, seed=0)
    assert all(map(np.array_equal, train, parts)) and not any(map(len, test))
    assert len(test) == 10_000
    counts = label_counts(labels, train, 10)
    assert (counts.sum(axis=1) == 2).all() and (counts.sum(axis=0) == 2000).all()
    assert counts[1234].tolist() == np.bincount(labels[parts[1234]], minlength=10).tolist()


def test_a_map_is_white_without_examples_and_dark_with_the_most(tmp_path):
    draw_heatmap(np.array([[0, 900], [1, 0]]), tmp_path / 'map.png', title='title')
    with Image.open(tmp_path / 'map.png') as image:
        pixels = np.asarray(image.convert('RGB'))
    height, width = pixels.shape[:2]
    # Client 0 is on the left, class 1 above class 0, and the colour bar on the right; a point
    # beside the middle of a cell is not in its number.
    left, right, above, below = 0.2 * width, 0.55 * width, 0.25 * height, 0.65 * height
    colour = {
        (i, c): tuple(pixels[int(y), int(x)].tolist())
        for (i, x) in enumerate((left, right))
        for (c, y) in enumerate((below, above))
    }
    assert colour[0, 0] == colour[1, 1] == (255, 255, 255)
    dark, light = colour[0, 1], colour[1, 0]
    assert dark == (8, 48, 107)
    assert light[2] > light[1] > light[0] > 200


@pytest.mark.parametrize(
    'settings, title',
    [
        ({'alpha': 0.05, 'num_clients': 10}, 'digits, dirichlet (alpha=0.05), 10 clients'),
        ({'balanced': True}, 'digits, dirichlet (alpha=0.1, balanced=True), 20 clients'),
        ({'partition': 'iid', 'alpha': 3.0}, 'digits, iid, 20 clients'),
        ({'partition': 'quantity'}, 'digits, quantity (size_alpha=0.5), 20 clients'),
        (
            {'partition': 'extended_dirichlet', 'alpha': 1.0, 'min_size': 5},
            'digits, extended_dirichlet (labels_per_client=2, alpha=1.0, min_size=5), 20 clients',
        ),
        ({'partition': 'sharding'}, 'digits, sharding (shards_per_client=2), 20 clients'),
        ({'partition': 'natural', 'num_users': 30}, 'digits, natural (num_users=30), 20 clients'),
    ],
)
def test_titles_name_the_settings_of_the_partition(settings, title):
    assert title_of(Config(**settings)) == title


@pytest.mark.parametrize('clients, classes, most', [(4, 3, 1), (30, 10, 499), (100, 62, 499)])
def test_heatmaps(clients, classes, most, tmp_path):
    counts = np.random.default_rng(0).integers(0, most, (clients, classes), endpoint=True)
    path = tmp_path / 'map.png'
    draw_heatmap(counts, path, title='title')
    assert path.read_bytes().startswith(b'\x89PNG')
    console = Console(width=80, record=True, file=open('/dev/null', 'w'))  # noqa: SIM115
    print_heatmap(counts, console)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert str(counts[3].sum()) in shown
    assert ('more clients' in shown) == (clients > 21)
