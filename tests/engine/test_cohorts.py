"""Sampling of clients, failures and stragglers."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxfed
from jaxfed.engine.cohorts import SAMPLINGS, candidates, draw_cohort, everyone, sample
from jaxfed.engine.devices import replicate
from jaxfed.engine.execution import run_waves
from jaxfed.engine.local import steps_per_epoch
from jaxfed.engine.remote import add_up
from jaxfed.engine.types import Sums
from jaxfed.methods import Method
from jaxfed.runs.config_flags import define_flags, from_flags
from jaxfed.runs.feed import plan_wave
from jaxfed.types import Cohort
from tests import oracle
from tests.engine.test_round import SIZES, make, normalise, rounds, set_up, training_data
from tests.marks import only_fast
from tests.rounds import add_axis, run_round

SEEDS = {'cohort_seed': 1, 'availability_seed': 2}
SIZE = np.array([5, 0, 40, 7, 7, 12, 30, 3, 9, 21])


def draw(round_=1, **changes):
    wanted = {'clients_per_round': 4, 'local_epochs': 5, **SEEDS, **changes}
    return draw_cohort(round_, SIZE, **wanted)


@settings(max_examples=50)
@given(
    round_=st.integers(1, 1000),
    sampling=st.sampled_from(['uniform', 'size', 'round_robin']),
    dropout=st.sampled_from([0.0, 0.5, 0.99]),
    stragglers=st.sampled_from([0.0, 0.5, 1.0]),
    over=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_cohort_is_sorted_distinct_and_repeatable(round_, sampling, dropout, stragglers, over):
    changes = {
        'sampling': sampling,
        'dropout': dropout,
        'stragglers': stragglers,
        'over_selection': over,
    }
    cohort = clients, epochs = draw(round_, **changes)
    assert clients.shape == epochs.shape == (4,)
    assert (np.diff(clients) > 0).all() and clients[-1] < len(SIZE)
    assert ((epochs >= 0) & (epochs <= 5)).all()
    if not dropout:
        assert (epochs > 0).all()
    if not dropout and not stragglers:
        assert (epochs == 5).all()
    chex.assert_trees_all_equal(draw(round_, **changes), cohort)


def test_unreliable_clients_are_sampled_like_reliable_ones():
    for round_ in range(1, 20):
        chex.assert_trees_all_equal(
            draw(round_).clients, draw(round_, dropout=0.5, stragglers=0.5).clients
        )


def test_shares_of_failures_and_epochs():
    rounds = [draw(r, dropout=0.3, stragglers=0.5) for r in range(1, 2001)]
    epochs = np.concatenate([cohort.epochs for cohort in rounds])
    share = np.bincount(epochs, minlength=6) / epochs.size
    # 8000 draws: five standard deviations are 0.026 at most.
    want = np.array([0.3, 0.07, 0.07, 0.07, 0.07, 0.7 * (0.5 + 0.1)])
    np.testing.assert_allclose(share, want, atol=0.026)


def test_sampling_by_size_needs_enough_clients_with_examples():
    size = np.array([3, 0, 0, 2])
    with pytest.raises(ValueError, match='--sampling=size samples 3 clients a round, but only 2'):
        sample('size', 1, size, number=3, seed=0)


def test_sampling_by_size_and_in_turn():
    uniform, by_size = (
        np.bincount(
            np.concatenate(
                [draw(r, sampling=s, clients_per_round=1).clients for r in range(1, 4001)]
            ),
            minlength=len(SIZE),
        )
        / 4000
        for s in ('uniform', 'size')
    )
    np.testing.assert_allclose(uniform, 0.1, atol=0.025)
    np.testing.assert_allclose(by_size, SIZE / SIZE.sum(), atol=0.04)
    assert by_size[1] == 0
    drawn = np.concatenate([draw(r, sampling='round_robin').clients for r in range(1, 6)])
    np.testing.assert_array_equal(np.bincount(drawn), 2)  # 20 places, 10 clients


@pytest.fixture
def register(monkeypatch):
    return lambda sampling: monkeypatch.setitem(SAMPLINGS, 'custom', sampling)


def test_custom_sampling(register, cheap_runs, tmp_path):
    seen = []

    def latest(round_, size, *, number, seed):
        seen.append((size, number))
        return [round_ % 8, 0]  # in any order

    register(latest)
    result = run(tmp_path / 'run', sampling='custom', measure='cohort_labels')
    assert [entry['cohort'] for entry in result.metrics] == [[0, r] for r in range(1, 7)]
    sizes = json.loads((tmp_path / 'run' / 'partition.json').read_text())['label_counts']
    assert len(seen) >= 6
    for size, number in seen:
        np.testing.assert_array_equal(size, np.sum(sizes, axis=1))
        assert number == 2
    into = flags.FlagValues()
    define_flags(into)
    into(['jaxfed', '--sampling=custom'])
    assert from_flags(into).sampling == 'custom'


@pytest.mark.parametrize('chosen', [[0], [0, 0], [0, 8], [-1, 0], [0.0, 1.0], [[0, 1]], 3])
def test_invalid_custom_sampling(register, tmp_path, chosen):
    register(lambda round_, size, *, number, seed: chosen)
    with pytest.raises(ValueError, match=r'--sampling=custom must return 2 distinct .* in round 1'):
        run(tmp_path / 'run', sampling='custom')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'sampling, message',
    [
        (lambda round_, size: [0], r": TypeError: .* unexpected keyword argument 'number'\."),
        (lambda *_, **__: {}['rare'], r" \(test_cohorts\.py, line \d+\): KeyError: 'rare'\."),
    ],
)
def test_a_custom_sampling_that_fails(register, sampling, message):
    register(sampling)
    place = r"SAMPLINGS\['custom'\]\(round_, size, \*, number, seed\)"
    with pytest.raises(ValueError, match=place + message):
        draw(1, sampling='custom')


def test_over_selection_keeps_the_first_to_report():
    assert candidates(10, 0.3) == 13
    assert candidates(10, 0.1) == 11
    assert candidates(3, 0.1) == 4
    clients, epochs = draw(clients_per_round=5, over_selection=1.0)  # all ten
    np.testing.assert_array_equal(clients, [0, 1, 3, 4, 7])  # the smallest
    assert (epochs == 5).all()
    # Clients with equal work are all as likely to be the first.
    equal = np.full(20, 7)
    cohorts = [
        draw_cohort(round_, equal, clients_per_round=5, local_epochs=5, over_selection=0.3, **SEEDS)
        for round_ in range(1, 1001)
    ]
    times = np.bincount(np.concatenate([cohort.clients for cohort in cohorts]))
    assert times.min() > 200 and times.max() < 300  # binomial, mean 250, deviation 14
    # A failed client only fills the cohort up.
    for round_ in range(1, 100):
        cohort = draw(round_, clients_per_round=2, over_selection=4.0, dropout=0.5)
        alone = draw(round_, clients_per_round=10, dropout=0.5)
        assert (cohort.epochs > 0).sum() == min(2, (alone.epochs > 0).sum())


def play(name, cohort, lanes=2):
    """Two rounds; the cohort is that of the second one."""
    method, data = make(name), training_data()
    model, local, server, states, (programs, mesh) = set_up(method, devices=2)
    server, data, key = replicate((server, data, jax.random.key(5)), mesh)
    size = np.array(SIZES)
    first = everyone([0, 1, 2, 3, 4, 5][: len(cohort.clients)], 2)
    for sampled in (first, cohort):
        steps = sampled.epochs * steps_per_epoch(size[sampled.clients], local.batch_size)
        slots = np.flatnonzero(sampled.epochs)
        plan = plan_wave(steps, slots, lanes=lanes, devices=2)
        before, rows = server, jax.tree.map(np.copy, states)
        server, metrics, _ = run_round(
            programs, mesh, server, states, sampled, plan, 0.03, key, data
        )
    want = oracle.run_round(
        model, method, local, normalise, before, cohort.clients[slots],
        jax.tree.map(lambda s: jnp.asarray(s[cohort.clients[slots]]), rows), jnp.float32(0.03),
        jax.random.key(5), data, epochs=[int(e) for e in cohort.epochs[slots]],
    )  # fmt: skip
    got_rows = jax.tree.map(lambda s: s[cohort.clients[slots]], states)
    got = (server.params, server.stats, server.method, got_rows, float(metrics.train_loss))
    return got, want, states, rows


UNRELIABLE = ['fedlmd', 'scaffold', 'fednova', 'feddyn', 'fedcurv', 'moon', 'fedgkd+fedavgm']


@pytest.mark.slow
@pytest.mark.parametrize('name', UNRELIABLE)
def test_lost_and_late_clients_equal_plain_loop_over_the_others(name):
    cohort = Cohort(np.array([0, 2, 3, 5], np.int32), np.array([2, 0, 1, 2], np.int32))
    got, want, states, before = play(name, cohort)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
    for after, was in zip(jax.tree.leaves(states), jax.tree.leaves(before)):
        np.testing.assert_array_equal(after[[1, 2, 4]], was[[1, 2, 4]])


def test_round_in_which_every_client_fails_changes_only_its_number():
    _, _, server, states, (programs, mesh) = set_up(make('scaffold'), devices=2)
    nobody = Cohort(np.array([0, 2], np.int32), np.zeros(2, np.int32))
    server, states, nobody, _, tuned, keys, _ = add_axis(
        server, states, nobody, None, 0.1, jax.random.key(0), training_data()
    )
    after, metrics, models = run_waves(
        programs, mesh, server, states, nobody, iter([]), tuned, keys
    )
    assert metrics is None and models == [] and after.round == server.round + 1
    assert after._replace(round=server.round) == server


@pytest.mark.slow
def test_a_method_follows_the_numbers_of_the_rounds(cheap_runs, stopped_before, tmp_path):
    """Rounds without an update are rounds, too, also before a run continues."""
    numbers = []

    def record(number):
        numbers.append(int(number))

    def begin(client):
        jax.debug.callback(record, client.round.number)
        return ()

    method = Method(begin=begin)
    config = jaxfed.Config(
        model='mlp', rounds=8, num_clients=4, clients_per_round=1, dropout=0.6, alpha=1.0,
        devices='1', local_epochs=1, checkpoint_every=1, workdir=str(tmp_path / 'run'),
    )  # fmt: skip
    with stopped_before(5):
        jaxfed.simulate(config, method=method, quiet=True)
    trained = jaxfed.simulate(config, method=method, quiet=True).metrics
    jax.effects_barrier()
    with_clients = [entry['round'] for entry in trained if entry['clients']]
    assert len(with_clients) < 8 and sorted(set(numbers)) == with_clients


@pytest.mark.parametrize(
    'name', only_fast(['fedavg', 'median', 'fedavgm', 'feddyn', 'fedcurv'], 'fedavgm', 'median')
)
def test_clients_without_examples_send_no_update(name):
    _, local, server, states, run = set_up(make(name))
    data = training_data()
    server, states, _ = rounds(run, local, server, states, [[0, 1, 2, 3]], 2, data)
    empty = data._replace(size=jnp.zeros_like(data.size))
    empty, key = replicate((empty, jax.random.key(5)), run[1])
    nothing = plan_wave(np.zeros(4, int), np.arange(4), lanes=2, devices=1)
    cohort = everyone(np.arange(4, dtype=np.int32), 2)
    after, metrics, _ = run_round(*run, server, states, cohort, nothing, 0.03, key, empty)
    assert after.round == server.round + 1 and metrics.train_loss == 0
    chex.assert_trees_all_equal(after._replace(round=server.round), server)


@pytest.mark.parametrize('survives', [True, False])
def test_remote_clients_that_diverge_count_unless_the_method_survives_them(survives):
    update = {'w': np.ones(2, np.float32)}
    sums = [Sums(update, (), (), np.float32(of), np.float32(4)) for of in (8, np.nan, 2)]
    weights = np.full((1, 3), 1 / 3), np.full((1, 3), 1 / 3)
    got = add_up([*enumerate(sums)], weights, 3, combines=True, survives=survives)
    wanted = (10, 8) if survives else (np.nan, 12)
    np.testing.assert_array_equal([got.loss.item(), got.examples.item()], wanted)


def run(workdir, **changes):
    wanted = {
        'model': 'mlp',
        'rounds': 6,
        'num_clients': 8,
        'clients_per_round': 2,
        'local_epochs': 2,
        'alpha': 1.0,
        'workdir': str(workdir),
    }
    return jaxfed.simulate(jaxfed.Config(**{**wanted, **changes}))


@pytest.mark.slow
@pytest.mark.parametrize('stream', ['off', 'on'])
def test_recorded_rounds_without_any_client(cheap_runs, tmp_path, stream):
    result = run(tmp_path / 'run', dropout=0.8, stragglers=0.5, stream=stream)
    entries = result.metrics
    lost = [entry for entry in entries if entry['clients'] == 0]
    assert lost and len(lost) < len(entries)
    for before, entry in zip([None, *entries], entries):
        assert (entry['train_loss'] is None) == (entry['clients'] == 0)
        if entry in lost and before:
            assert entry['test_accuracy'] == before['test_accuracy']
            assert entry['test_loss'] == before['test_loss']
    assert not result.summary['failed']


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'dropout': 1.0}, '--dropout must be at least 0 and below 1'),
        ({'stragglers': -0.1}, '--stragglers must be from 0 to 1, got -0.1'),
        ({'over_selection': 4.0}, '--over_selection=4.0 samples 10 clients a round'),
        ({'sampling': 'alphabetical'}, '--sampling must be one of .*, got alphabetical'),
        ({'dropout': 0.9999, 'rounds': 1}, '--dropout=0.9999 loses every client'),
    ],
)
def test_invalid_settings(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / 'run', **changes)
    assert not (tmp_path / 'run').exists()
