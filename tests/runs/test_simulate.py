"""`jaxfed.simulate` from Python: progress, compiled programs, failed starts, interruption."""

import dataclasses
import html
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxfed
from jaxfed.internal import console, program_cache
from jaxfed.internal.signals import Interrupted
from jaxfed.methods import METHODS, Method
from jaxfed.report import __main__ as report
from jaxfed.runs import feed, simulate

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


@pytest.mark.slow
def test_a_method_object_is_recorded_by_its_own_name(cheap_runs, tmp_path):
    def recorded(name, **settings):
        folder = tmp_path / name
        jaxfed.simulate(jaxfed.Config(**TINY, **settings, workdir=str(folder)), method=Method())
        files = [json.loads((folder / f).read_text()) for f in ('config.json', 'summary.json')]
        assert jaxfed.load(folder).config.method == files[0]['method'] == files[1]['method']
        return files[0]['method'], files[0]['method_parts']

    assert recorded('a') == ('own', [])
    assert recorded('b', method='plain, 0.1') == ('plain, 0.1', [])
    assert recorded('c', method='fedlmd+mine') == ('fedlmd+mine', [])


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'method': 'fedlmd'}, '--method=fedlmd and a method object exclude each other; omit one'),
        ({'method': 'kd+fedprox'}, '--method=kd.fedprox and a method object exclude each'),
        ({'switch_round': 2}, '--switch_round=2 has no effect on a method object; use'),
        ({'hyperparameters': {'mu': 1}}, "hyperparameters={'mu': 1} have no effect on a method"),
    ],
)
def test_a_method_object_excludes_registered_names(settings, message):
    with pytest.raises(ValueError, match=message):
        jaxfed.simulate(jaxfed.Config(**TINY, **settings), method=Method())


@pytest.mark.parametrize('registered', [True, False])
def test_a_hook_that_diverges_at_once_gets_a_hint(registered, tmp_path, monkeypatch, cheap_runs):
    def penalty(view):
        moved = jax.tree.map(lambda w, v: w - v, view.params, view.global_params)
        return sum(jax.numpy.linalg.norm(leaf) for leaf in jax.tree.leaves(moved))

    method, settings = Method(penalty=penalty), {**TINY, 'workdir': str(tmp_path / 'run')}
    if registered:
        monkeypatch.setitem(METHODS, 'mine', lambda: method)
        settings |= {'method': 'mine'}
    with pytest.raises(jaxfed.Diverged, match='In a hook, the gradients of sqrt, norm and log at'):
        jaxfed.simulate(jaxfed.Config(**settings), method=None if registered else method)


def test_config_names_unknown_settings():
    with pytest.raises(TypeError, match=r"no setting beta\. .* hyperparameters={'beta': 0\.5}"):
        jaxfed.Config(beta=0.5)
    with pytest.raises(TypeError, match='no setting learning_rat; did you mean learning_rate'):
        jaxfed.Config(learning_rat=0.5)


def test_numbers_of_numpy_and_paths_are_plain_settings(tmp_path):
    settings = jaxfed.Config(
        seed=np.int64(3),
        alpha=np.float32(0.5),
        workdir=tmp_path,
        hyperparameters={'mu': np.int8(1)},
    )
    plain = jaxfed.Config(seed=3, alpha=0.5, workdir=str(tmp_path), hyperparameters={'mu': 1})
    assert json.dumps(dataclasses.asdict(settings)) == json.dumps(dataclasses.asdict(plain))


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


CACHE = (
    'jax_compilation_cache_dir',
    'jax_compilation_cache_max_size',
    'jax_persistent_cache_min_compile_time_secs',
)


def cache_settings():
    return {name: getattr(jax.config, name) for name in CACHE}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The folder of jaxfed's cache, in place of the one that the tests share."""
    before = cache_settings()
    monkeypatch.setenv('JAXFED_CACHE_DIR', str(tmp_path / 'cache'))
    monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
    jax.config.update('jax_compilation_cache_dir', None)
    jax.config.update('jax_compilation_cache_max_size', -1)
    compilation_cache.reset_cache()
    yield tmp_path / 'cache'
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_cache_of_the_user_stays(shared_programs):
    before = cache_settings()
    with program_cache.kept_programs(True):
        assert cache_settings() == before


def test_programs_are_kept_only_in_the_block(own_cache, monkeypatch):
    before = cache_settings()
    with program_cache.kept_programs(True):
        expected = str(own_cache / 'compiled'), program_cache.SIZE, 0.1
        assert tuple(cache_settings().values()) == expected
    assert cache_settings() == before
    with program_cache.kept_programs(False):
        assert cache_settings() == before
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
    with program_cache.kept_programs(True):
        assert cache_settings() == before
    monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
    jax.config.update('jax_compilation_cache_max_size', 10**6)
    with program_cache.kept_programs(True):
        assert jax.config.jax_compilation_cache_max_size == 10**6  # the user's limit


def compile_new(number):
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.jit(lambda x: jax.numpy.sin(x) * number)(1.0)


def kept(folder):
    return {path.name: path.stat().st_size for path in (folder / 'compiled').glob('*-cache')}


def test_the_cache_of_programs_is_bounded(own_cache, monkeypatch):
    with program_cache.kept_programs(True):
        compile_new(0.1)
    first = kept(own_cache)
    limit = 3 * sum(first.values())
    monkeypatch.setattr(program_cache, 'SIZE', limit)
    for number in range(1, 9):
        with program_cache.kept_programs(True):
            compile_new(number)
        assert sum(kept(own_cache).values()) <= limit
    assert kept(own_cache) and not first.keys() & kept(own_cache).keys()  # the oldest left


def test_a_program_that_was_not_written_completely_is_removed(own_cache):
    with program_cache.kept_programs(True):
        compile_new(0.1)
    whole = kept(own_cache)
    name = next(iter(whole))
    path = own_cache / 'compiled' / name
    path.write_bytes(path.read_bytes()[:100])
    path.with_name(name.replace('-cache', '-atime')).unlink()  # as after kill -9 in between
    with program_cache.kept_programs(True):
        assert name not in kept(own_cache)
        jax.clear_caches()
        compile_new(0.1)
    # The size of a program may differ by a byte: it is compressed with the time it took.
    assert kept(own_cache).keys() == whole.keys() and kept(own_cache)[name] > 100


@pytest.mark.skipif(os.name != 'posix', reason='Windows has no mode of a file')
def test_programs_that_another_user_may_have_planted_are_not_run(own_cache, caplog):
    with program_cache.kept_programs(True):
        assert jax.config.jax_compilation_cache_dir
        compile_new(0.1)
    os.chmod(own_cache / 'compiled', 0o777)
    with program_cache.kept_programs(True):
        assert not caplog.records  # others cannot reach it
    os.chmod(own_cache, 0o711)
    with program_cache.kept_programs(True):
        assert jax.config.jax_compilation_cache_dir is None
    (record,) = caplog.records
    assert 'compiled can be written by other users' in record.getMessage()


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


@pytest.mark.slow
def test_work_directories_with_any_characters(tmp_path, cheap_runs, stopped_before):
    name = 'it\'s "q" $(touch owned) `id`; & | * é %s {0} <b> #?%41'
    workdir = str(tmp_path / name)
    config = jaxfed.Config(**{**TINY, 'rounds': 3}, checkpoint_every=1, workdir=workdir)
    with stopped_before(2):
        jaxfed.simulate(config, quiet=True)
    assert jaxfed.simulate(config, quiet=True).summary['resumed_after'] == 1
    assert jaxfed.load(workdir).config.workdir == workdir
    page = tmp_path / 'page.html'
    assert report.main([workdir, f'--output={page}', f'--csv={tmp_path / "t.csv"}']) == 0
    assert name not in page.read_text() and name in html.unescape(page.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, 'page.html', 't.csv'])
    configs = {f'{name}{seed}': jaxfed.Config(**TINY, seed=seed) for seed in (0, 1)}
    results = jaxfed.simulate_all(configs, tmp_path / f'all {name}', quiet=True)
    for run, result in results.items():
        assert jaxfed.load(tmp_path / f'all {name}' / run).config.seed == configs[run].seed
        assert result.summary['experiments'] == 2
    for character in '\n\r\x0b\u2028\0':
        with pytest.raises(ValueError, match='--workdir must have no'):
            jaxfed.simulate(jaxfed.Config(**TINY, workdir=f'{tmp_path}/a{character}b'))


def same(a, b, tolerance):
    """Whether two results have the same metrics, except for times, and parameters."""
    for one, other in zip(a.metrics, b.metrics, strict=True):
        for name in one:
            if one[name] is None or other[name] is None:
                assert one[name] is other[name], name
            elif 'seconds' not in name:
                np.testing.assert_allclose(one[name], other[name], rtol=tolerance, err_msg=name)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        *(a.params, b.params),
    )


LONGER = {**TINY, 'rounds': 4, 'clients_per_round': 4, 'checkpoint_every': 1, 'method': 'scaffold'}


@pytest.mark.slow
def test_other_devices_lanes_and_versions_continue_a_run(
    cheap_runs, tmp_path, stopped_before, monkeypatch
):
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
    allowed = {
        'devices': '2', 'lanes': 2, 'checkpoint_every': 2, 'keep': 1, 'stream': 'on', 'csv': True,
    }  # fmt: skip
    monkeypatch.setattr(feed, 'memory', lambda mesh: 1.0)  # a wave has the largest client only
    rest = jaxfed.simulate(jaxfed.Config(**{**settings, **allowed}))
    assert rest.summary['resumed_after'] == 3
    assert len((tmp_path / 'run' / 'metrics.csv').read_text().splitlines()) == 1 + 4
    same(rest, whole, 1e-4)


def altered(path, seed, shift=0):
    """Writes a dataset; the seed changes its images, the shift the labels of the test data."""
    rng, y = np.random.default_rng(seed), np.arange(40) % 4
    x = rng.integers(0, 256, (40, 4, 4, 1), np.uint8)
    np.savez(path, x_train=x, y_train=y, x_test=x[:8], y_test=(y[:8] + shift) % 4)


@pytest.mark.slow
def test_changed_images_lines_and_lost_checkpoints_are_noticed(
    cheap_runs, tmp_path, stopped_before, capsys
):
    npz, workdir = str(tmp_path / 'd.npz'), tmp_path / 'run'
    config = jaxfed.Config(
        model='mlp', dataset='npz', npz=npz, num_clients=4, clients_per_round=2, rounds=4,
        checkpoint_every=1, workdir=str(workdir),
    )  # fmt: skip
    altered(npz, 0)
    with stopped_before(4):
        jaxfed.simulate(config)
    for other in {'seed': 1}, {'seed': 0, 'shift': 1}:
        altered(npz, **other)
        with pytest.raises(ValueError, match=r'partition.json describes other data, or an'):
            jaxfed.simulate(config)
    altered(npz, 0)
    lines = (workdir / 'metrics.jsonl').read_text()
    (workdir / 'metrics.jsonl').write_text(
        lines.replace('"test_accuracy": 0', '"test_accuracy": 1')
    )
    with pytest.raises(ValueError, match=r'round 3: .*metrics.jsonl has changed in the first 3'):
        jaxfed.simulate(config)
    (workdir / 'metrics.jsonl').write_text(lines)
    shutil.rmtree(workdir / 'checkpoints')
    capsys.readouterr()
    assert jaxfed.simulate(config, quiet=False).summary['resumed_after'] is None
    assert 'there is no checkpoint: starting again at round 1' in capsys.readouterr().out


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
    for entry in (rest.summary, *rest.metrics):
        assert all(entry[name] >= 0 for name in entry if 'seconds' in name)
    same(rest, whole, 0)


@pytest.mark.slow
def test_local_models_are_evaluated_with_64_bits_in_numpys_way(tmp_path):
    flags = ['--model=mlp', '--rounds=1', '--local_eval_every=1', f'--workdir={tmp_path / "run"}']
    done = subprocess.run(
        [sys.executable, '-m', 'jaxfed.main', *flags], env={**os.environ, 'JAX_ENABLE_X64': '1'},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['local_accuracy'] > 0
