"""A run gives the same result in every form: on devices in waves, resumed, in lanes with others."""

import functools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxfed
from experiments.stress import power_loss
from jaxfed import methods
from jaxfed.runs import feed
from tests.networks import tiny_networks

CASES = {  # together as far as they can be, because compiling takes most of the time
    'fedrep': {},
    'fedbn': {'model': 'tiny_normal'},
    'apfl': {},
    'median': {'malicious': 0.25, 'attack': 'sign_flip'},
    'krum': {'malicious': 0.25, 'attack': 'gaussian'},
    'trimmed_mean': {'malicious': 0.25, 'attack': 'label_flip'},
    'multikrum': {
        'optimizer': 'adam', 'clip_norm': 1.0, 'accumulate_steps': 2, 'learning_rate': 0.005,
    },
    'fedlmd+ditto': {},
    'moon+fedper+topk+dp+logit_adjustment': {'imbalance': 3.0},
    'fedlmd+quantize+fedbuff+fedavgm+fedlc+feddecorr': {},
    'fedprox+scaffold+fedcurv+fedlsd+fedadam': {'label_noise': 0.3},
    'feddyn+fedrs+kd+mse+fedyogi': {'over_selection': 0.3},
    'fednova+fedntd+fedgkd+label_smoothing+fedadagrad': {
        'stragglers': 0.5, 'aggregation': 'uniform',
    },
    'fedlmd_tf+fedntd_tf+fedcad+fedssd': {'auxiliary_per_class': 2, 'validation': 0.1},
}  # fmt: skip
OTHERS = {  # how the other experiment of the same program differs
    'fedlmd+ditto': {'lam': 0.1},
    'apfl': {'alpha': 0.9},
    'trimmed_mean': {'trim': 0.4},
    'krum': {'byzantine': 0.0},
    'moon+fedper+topk+dp+logit_adjustment': {'share': 0.5, 'noise': 0.5},
    'fedlmd+quantize+fedbuff+fedavgm+fedlc+feddecorr': {'exponent': 2.0},
}


@pytest.fixture(autouse=True)
def networks():
    with tiny_networks():
        yield


def settings_of(case):
    common = {
        'method': case, 'model': 'tiny', 'num_clients': 8, 'clients_per_round': 6, 'alpha': 1.0,
        'rounds': 3, 'local_epochs': 2, 'batch_size': 20, 'dropout': 0.1, 'local_eval_every': 3,
        'personal_test': 0.2, 'checkpoint_every': 1, 'learning_rate': 0.05,
    }  # fmt: skip
    return common | CASES[case]


def check_same(one, other):
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    for a, b in zip(one.metrics, other.metrics, strict=True):
        assert a.keys() == b.keys()
        assert_allclose(a['train_loss'], b['train_loss'], rtol=1e-4)
        assert_allclose(a['test_loss'], b['test_loss'], rtol=1e-4)
        assert a['test_accuracy'] == pytest.approx(b['test_accuracy'], abs=0.004)  # one example
    names = ('personal_accuracy', 'personal_global_accuracy', 'personal_worst_tenth')
    for name in names:
        assert one.summary[name] == pytest.approx(other.summary[name], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_every_form_gives_the_same_result(case, cheap_runs, monkeypatch, stopped_before, tmp_path):
    common = settings_of(case)

    def config(form, **changes):
        settings = {'devices': '1', 'lanes': 1, 'stream': 'off', **common, **changes}
        return jaxfed.Config(**settings, workdir=str(tmp_path / form))

    simulate = functools.partial(jaxfed.simulate, quiet=True, compilation_cache=False)
    base = simulate(config('base'))
    assert np.isfinite([entry['train_loss'] for entry in base.metrics]).all()
    with monkeypatch.context() as patch:
        patch.setattr(feed, 'memory', lambda mesh: 1.0)  # a wave holds the largest client
        check_same(base, simulate(config('waves', devices='2', lanes=2, stream='on')))

    with power_loss.fast_runs():  # the second uses the programs of the first
        with stopped_before(3):
            simulate(config('resumed'))
        resumed = simulate(config('resumed'))
    assert resumed.summary['resumed_after'] == 2
    check_same(base, resumed)

    other = OTHERS.get(case)
    other = {'hyperparameters': other} if other else {'learning_rate': 0.02}
    together = jaxfed.simulate_all(
        {'same': config('same', lanes=4), 'other': config('other', lanes=4, **other)},
        tmp_path / 'together', quiet=True, compilation_cache=False,
    )  # fmt: skip
    assert together['same'].summary['experiments'] == 2
    check_same(base, together['same'])
    assert untimed(together['other']) != untimed(together['same'])


def untimed(result):
    """The entries of a run without its times."""
    return [
        {name: value for name, value in entry.items() if 'seconds' not in name}
        for entry in result.metrics
    ]


def test_every_method_is_compared():
    named = {name for case in CASES for name in case.split('+')}
    assert named >= {*methods.METHODS} - {'fedavg'}  # part of every method
