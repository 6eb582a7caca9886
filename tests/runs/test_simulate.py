"""`jaxfed.simulate` from Python: progress, compiled programs, failed starts, interruption."""

import json
import signal
import time

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxfed
from jaxfed.internal import console
from jaxfed.internal.signals import Interrupted
from jaxfed.runs import program_cache, simulate

TINY = {
    'model': 'mlp',
    'devices': '1',
    'lanes': 1,
    'rounds': 1,
    'local_epochs': 1,
    'clients_per_round': 1,
    'alpha': 1.0,
}


def fail(*_, **__):
    raise TypeError('unsupported operand')


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_a_name_is_not_a_method(tmp_path):
    workdir = tmp_path / 'run'
    with pytest.raises(ValueError, match=r"must be a jaxfed\.Method, got 'fedlmd'; the name"):
        jaxfed.simulate(jaxfed.Config(workdir=str(workdir)), method='fedlmd')
    assert not workdir.exists()


def test_config_names_unknown_settings():
    with pytest.raises(TypeError, match=r"no setting beta\. .* hyperparameters={'beta': 0\.5}"):
        jaxfed.Config(beta=0.5)
    with pytest.raises(TypeError, match='no setting learning_rat; did you mean learning_rate'):
        jaxfed.Config(learning_rat=0.5)


def test_a_failed_start_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate, 'prepare', fail)
    with pytest.raises(TypeError, match='unsupported operand'):
        jaxfed.simulate(jaxfed.Config(**TINY))
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(simulate, 'prepare', interrupt)
    with pytest.raises(KeyboardInterrupt):
        jaxfed.simulate(jaxfed.Config(**TINY))
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match='--alpha must be positive'):
        jaxfed.simulate_all({'a': jaxfed.Config(alpha=-1.0)}, tmp_path / 'all')
    assert not list(tmp_path.iterdir())


def test_programs_are_kept_only_in_the_block(tmp_path, monkeypatch):
    def folder():
        return jax.config.jax_compilation_cache_dir

    before, shortest = folder(), jax.config.jax_persistent_cache_min_compile_time_secs
    with program_cache.kept_programs(True):
        assert folder() == before  # the user's cache stays
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path))
    monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
    try:
        jax.config.update('jax_compilation_cache_dir', None)
        with program_cache.kept_programs(True):
            assert folder() == str(tmp_path / 'compiled')
        assert folder() is None
        with program_cache.kept_programs(False):
            assert folder() is None
        monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
        with program_cache.kept_programs(True):
            assert folder() is None
    finally:
        jax.config.update('jax_compilation_cache_dir', before)
        compilation_cache.reset_cache()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == shortest


@pytest.mark.parametrize('watched', [False, True])
@pytest.mark.parametrize('quiet', [None, False, True])
def test_progress_is_shown_to_a_person(watched, quiet, monkeypatch):
    seen = []
    monkeypatch.setattr(console, 'is_watched', lambda: watched)
    monkeypatch.setattr(simulate, 'set_up', lambda *_: None)
    monkeypatch.setattr(simulate, 'train', lambda _, quiet: seen.append(quiet))
    jaxfed.simulate(jaxfed.Config(), quiet=quiet)
    assert seen == [not watched if quiet is None else quiet]


@pytest.mark.parametrize(
    'command, advice',
    [
        ('', 'the same settings with --workdir=DIR continue the run.'),
        ('jaxfed --workdir=DIR', 'to continue: jaxfed --workdir=DIR'),
    ],
)
def test_an_interrupted_run_names_what_continues_it(command, advice, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Interrupted('stopped after round 1', signal.SIGTERM)

    experiment = simulate.set_up(jaxfed.Config(**TINY, workdir=str(tmp_path / 'run')))
    monkeypatch.setattr(simulate, 'train_experiments', stop)
    with pytest.raises(Interrupted) as stopped:
        simulate.train(experiment, quiet=True, command=command)
    advice = advice.replace('DIR', str(experiment.workdir)) if not command else advice
    assert str(stopped.value) == f'stopped after round 1; {advice}'
    assert stopped.value.signal == signal.SIGTERM


def test_results_and_models_are_one_line(cheap_runs, tmp_path):
    result = jaxfed.simulate(jaxfed.Config(**TINY, workdir=str(tmp_path / 'run')))
    accuracy = result.summary['final_accuracy']
    assert repr(result) == (
        f'Result(workdir={str(tmp_path / "run")!r}, rounds=1, final_accuracy={accuracy})'
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(result.params))
    assert repr(jaxfed.load(tmp_path / 'run')) == (
        f"Loaded(method='fedavg', dataset='digits', model='mlp', parameters={count}, "
        f'final_accuracy={accuracy})'
    )


def same(a, b, tolerance):
    """Whether two results have the same metrics, except for times, and parameters."""
    for one, other in zip(a.metrics, b.metrics, strict=True):
        for name in one:
            if 'seconds' not in name and one[name] is not None:
                np.testing.assert_allclose(one[name], other[name], rtol=tolerance, err_msg=name)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        *(a.params, b.params),
    )


LONGER = {**TINY, 'rounds': 4, 'clients_per_round': 4, 'checkpoint_every': 1, 'method': 'scaffold'}


@pytest.mark.slow
def test_other_devices_lanes_and_versions_continue_a_run(cheap_runs, tmp_path, stopped_before):
    whole = jaxfed.simulate(jaxfed.Config(**LONGER, workdir=str(tmp_path / 'whole')))
    settings = {**LONGER, 'workdir': str(tmp_path / 'run')}
    with stopped_before(4):
        jaxfed.simulate(jaxfed.Config(**settings))
    path = tmp_path / 'run' / 'config.json'
    described = json.loads(path.read_text())
    described['versions']['jax'] = '0.9.0'
    path.write_text(json.dumps(described))
    refused = {'learning_rate': 0.5, 'rounds': 5, 'alpha': 0.3, 'method': 'fedavg', 'seed': 3}
    for name, value in refused.items():
        with pytest.raises(
            ValueError, match=rf'other settings \(.*--{name}=.* there, {value} here'
        ):
            jaxfed.simulate(jaxfed.Config(**{**settings, name: value}))
    allowed = {'devices': '2', 'lanes': 2, 'checkpoint_every': 2, 'keep': 1}
    rest = jaxfed.simulate(jaxfed.Config(**{**settings, **allowed}))
    assert rest.summary['resumed_after'] == 3
    same(rest, whole, 1e-4)


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(
    cheap_runs, tmp_path, stopped_before, monkeypatch
):
    whole = jaxfed.simulate(jaxfed.Config(**LONGER, workdir=str(tmp_path / 'whole')))
    now = [time.time()]

    def earlier():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, 'time', earlier)
    config = jaxfed.Config(**LONGER, workdir=str(tmp_path / 'run'))
    with stopped_before(4):
        jaxfed.simulate(config)
    rest = jaxfed.simulate(config)
    assert rest.summary['resumed_after'] == 3
    assert rest.summary['seconds_total'] >= 0
    same(rest, whole, 0)
