"""Epsilon of the noise that `dp` adds, and the runs for which it is known."""

import itertools
import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxfed import Config, simulate
from jaxfed.methods import METHODS, Method, build, chain, resolve
from jaxfed.runs.privacy import Release, check_privacy, epsilon, privacy_after

pytest.importorskip('dp_accounting')


def test_epsilon_without_sampling():
    # Renyi divergence of order a: rounds a / (2 noise^2), and for one replaced client, whose
    # clipped update moves by twice the norm, with half the noise.
    orders = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), [128, 256, 512]])

    def bound(divergence, delta=1e-3):
        terms = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return np.min(divergence + terms)

    everyone = Release(20, 20, dropout=0.0, noise=2.0)
    assert everyone.neighbours == 'add_or_remove_one'
    assert_allclose(epsilon(everyone, 30, 1e-3), bound(30 * orders / 8), rtol=1e-6)


def test_epsilon_of_random_participation():
    # McMahan et al., 2018, report 4.634 at delta 1e-9 after 5000 rounds with 5000 of 763430 users
    # on average, by the moments accountant: integer orders, and an older conversion.
    from jaxfed.runs.privacy import _renyi_divergences

    release = Release(763430, 763430, dropout=1 - 5000 / 763430, noise=1.0)
    orders, divergences = _renyi_divergences(release)
    older = 5000 * divergences + math.log(1e9) / (orders - 1)
    integer = (orders == np.round(orders)) & (orders <= 32)
    assert_allclose(older[integer].min(), 4.634, atol=5e-4)
    assert 3.5 < epsilon(release, 5000, 1e-9) < 4.634


def test_epsilon_of_a_fixed_number_of_clients():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    noisy = dp_accounting.GaussianDpEvent(0.75)  # 1.5 times the norm, which moves by two norms
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, noisy), 40)
    release = Release(100, 10, dropout=0.0, noise=1.5)
    assert release.neighbours == 'replace_one'
    assert_allclose(epsilon(release, 40, 1e-5), accountant.get_epsilon(1e-5), rtol=1e-9)
    # Failures of sampled clients are not counted on.
    failing = epsilon(release._replace(dropout=0.5), 40, 1e-5)
    assert_allclose(failing, epsilon(release, 40, 1e-5), rtol=1e-9)


def test_a_sample_loses_no_more_than_all_clients():
    # One replaced client moves the sum of a round by twice the norm, if it is sampled.
    from dp_accounting.rdp import compute_epsilon

    orders = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), [128, 256, 512]])
    whole = compute_epsilon(orders, 30 * orders / (2 * 2.0**2), 1e-5)[0]
    losses = [epsilon(Release(20, sampled, 0.0, 4.0), 30, 1e-5) for sampled in (5, 15, 19)]
    assert losses[0] < 0.5 * whole
    assert_allclose(losses[1:], whole, rtol=1e-6)


def test_epsilon_falls_with_noise_and_grows_with_rounds():
    release = Release(100, 10, dropout=0.0, noise=1.0)
    assert epsilon(release, 10, 1e-5) < epsilon(release, 20, 1e-5)
    assert epsilon(release._replace(noise=2.0), 10, 1e-5) < epsilon(release, 10, 1e-5)
    assert epsilon(release._replace(noise=0.0), 10, 1e-5) == math.inf
    assert epsilon(release, 10, 1e-3) < epsilon(release, 10, 1e-5)


@pytest.mark.parametrize(
    'settings, hyper, message',
    [
        ({'sampling': 'size'}, {}, '--sampling=size .* --sampling=uniform only; remove'),
        ({'over_selection': 0.2}, {}, '--over_selection=0.2 .* remove the flag'),
        ({}, {'noise': 1e9}, r'--noise=1e\+09 must be at most 1e\+06: epsilon cannot be computed'),
        ({}, {'delta': 0.05}, r'--delta=0.05 must be below 0.05, 1 over --num_clients'),
    ],
)
def test_runs_whose_epsilon_is_not_known(settings, hyper, message):
    config = Config(method='dp', **settings)
    with pytest.raises(ValueError, match=message):
        check_privacy(config, METHODS['dp'](**hyper))
    check_privacy(config, METHODS['fedavg']())


def test_missing_library(monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '.\[privacy\]', or set --noise=0"):
        check_privacy(Config(method='dp'), METHODS['dp']())
    check_privacy(Config(method='dp'), METHODS['dp'](noise=0.0))
    assert privacy_after(Config(), METHODS['dp'](noise=0.0), 3)['epsilon'] is None


@pytest.mark.slow
def test_a_run_records_epsilon(tmp_path):
    common = {'model': 'mlp', 'partition': 'iid', 'rounds': 3, 'local_epochs': 1}
    config = Config(method='fedlmd+dp', workdir=str(tmp_path), **common)
    result = simulate(config, quiet=True)
    method = build(resolve('fedlmd+dp', {}))
    want = [privacy_after(config, method, rounds)['epsilon'] for rounds in (1, 2, 3)]
    assert [entry['epsilon'] for entry in result.metrics] == want and want[0] < want[2]
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['epsilon'] == want[2] and summary['delta'] == 1e-5
    assert summary['neighbours'] == 'replace_one'


@pytest.mark.slow
def test_noise_and_late_updates_also_come_without_any_arrival(tmp_path, cheap_runs):
    common = {
        'model': 'mlp', 'partition': 'iid', 'num_clients': 4, 'clients_per_round': 4, 'rounds': 8,
        'local_epochs': 1, 'dropout': 0.7, 'devices': '2', 'lanes': 1,
    }  # fmt: skip

    def entries(method, stream):
        config = Config(
            method=method, stream=stream, workdir=str(tmp_path / f'{method}{stream}'), **common
        )
        return simulate(config, quiet=True).metrics

    for method in ('dp', 'fedbuff', 'fedavg'):
        for stream in ('off', 'on'):
            metrics = entries(method, stream)
            pairs = [
                (before['test_loss'], entry['test_loss'])
                for before, entry in itertools.pairwise(metrics)
                if entry['clients'] == 0
            ]
            assert pairs
            same = [before == after for before, after in pairs]
            assert all(same) if method == 'fedavg' else not all(same)


def test_a_private_client_uploads_nothing_else():
    leak = Method(finish=lambda client: ((), client.update))
    config = Config(model='mlp', partition='iid', rounds=1)
    with pytest.raises(ValueError, match=r'finish \(.*\) must return no upload'):
        simulate(config, method=chain(leak, METHODS['dp']()), quiet=True)
    with pytest.raises(ValueError, match='changes updates only, but method 1 uploads more'):
        chain(leak._replace(uploads=True), METHODS['dp']())
    leaking = METHODS['dp']()._replace(finish=leak.finish, uploads=True)
    with pytest.raises(ValueError, match=r'finish \(.*\) must return no upload, \(\): noise'):
        simulate(config, method=leaking, quiet=True)


@pytest.mark.slow
def test_private_experiments_in_one_program(tmp_path, cheap_runs):
    from jaxfed.sweeps.runner import simulate_all

    settings = {
        'method': 'dp', 'model': 'mlp', 'partition': 'iid', 'rounds': 3, 'local_epochs': 1,
    }  # fmt: skip
    configs = {
        str(noise): Config(hyperparameters={'noise': noise}, **settings) for noise in (0.5, 2.0)
    }
    together = simulate_all(configs, tmp_path / 'both', quiet=True)
    alone = simulate(
        Config(hyperparameters={'noise': 2.0}, workdir=str(tmp_path / 'alone'), **settings),
        quiet=True,
    )
    assert together['2.0'].summary['experiments'] == 2
    last = together['2.0'].metrics[-1]['test_loss']
    assert last == pytest.approx(alone.metrics[-1]['test_loss'], rel=1e-5)
