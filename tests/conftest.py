"""The tests run on eight devices of the CPU, so that they cover the distribution over devices.

Compilation takes most of their time, and half as much without optimizations; tests that depend on
the compiler start processes with its defaults (`test_ops`, `test_main`). Tests share compiled
programs.
"""

import argparse
import contextlib
import gc
import os
import signal

import hypothesis
import jax
import jaxlib
import pytest
from jax.experimental.compilation_cache import compilation_cache
from PIL import Image

from jaxfed.recording.curve import draw_accuracy
from jaxfed.recording.heatmap import draw_heatmap
from jaxfed.runs import rounds, simulate
from jaxfed.sweeps import training

# A busy machine may take any time for an example.
slow = hypothesis.HealthCheck.too_slow
hypothesis.settings.register_profile('busy', deadline=None, suppress_health_check=[slow])
hypothesis.settings.load_profile('busy')
# No test uses a network; the libraries of Hugging Face read this when they are imported.
os.environ['HF_HUB_OFFLINE'] = '1'
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_disable_most_optimizations', True)
with pytest.MonkeyPatch.context() as patch:  # processes of tests do not inherit it
    # Without these emitters it takes three quarters, and with modules in one part seven eighths of
    # that. An unknown flag ends the process.
    if jaxlib.__version__.startswith('0.10.'):
        quick = '--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
        patch.setenv('XLA_FLAGS', f'{os.environ.get("XLA_FLAGS", "")} {quick}')
    jax.devices()  # later commands cannot change their number any more


def pytest_addoption(parser):
    parser.addoption(
        '--fuzz_inputs',
        type=positive,
        help='random inputs of test_fuzz, of all targets [the same few hundred in every run]',
    )
    parser.addoption(
        '--fuzz_seed',
        type=int,
        default=0,
        help='seed of --fuzz_inputs; added to the seeds of the random combinations [0]',
    )


def positive(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, got {number}.')
    return number


@pytest.fixture(scope='session', autouse=True)
def interrupts():
    """SIGINT has an effect, also if a shell that starts the tests in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session', autouse=True)
def frozen_modules():
    """Collections of garbage, one before each training, leave the loaded modules out."""
    gc.freeze()


@pytest.fixture(scope='session', autouse=True)
def shared_programs(tmp_path_factory):
    """The tests of all workers, and the processes that they start, share compiled programs."""
    folder = tmp_path_factory.getbasetemp()
    if 'PYTEST_XDIST_WORKER' in os.environ:
        folder = folder.parent  # each worker has a folder in that of the run
    settings = {
        'jax_compilation_cache_dir': str(folder / 'compiled'),
        'jax_compilation_cache_max_size': 8 << 30,  # with a limit JAX locks the cache
        'jax_persistent_cache_min_compile_time_secs': 0.1,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        compilation_cache.reset_cache()
        yield


@pytest.fixture(scope='module', autouse=True)
def bounded_memory():
    """Programs of finished modules leave the memory; a worker held 5 GB otherwise."""
    yield
    jax.clear_caches()


@pytest.fixture(scope='session', autouse=True)
def small_pictures():
    """The pictures of runs in this process are one pixel; drawing takes longer than some runs."""

    def draw(_, path, **__):
        Image.new('L', (1, 1)).save(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, 'draw_heatmap', draw)
        patch.setattr(simulate, 'draw_accuracy', draw)
        yield


@pytest.fixture
def true_pictures(monkeypatch):
    """Runs draw their pictures."""
    monkeypatch.setattr(simulate, 'draw_heatmap', draw_heatmap)
    monkeypatch.setattr(simulate, 'draw_accuracy', draw_accuracy)


@pytest.fixture
def cheap_runs(shared_programs, monkeypatch):
    """Runs in this process share programs and write no cache."""
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')


@pytest.fixture
def stopped_before(monkeypatch):
    """A context that ends a run before a round, as a kill after the last checkpoint does."""

    class Stopped(BaseException):
        pass

    @contextlib.contextmanager
    def stopped(number):
        inner = rounds.train_and_evaluate

        def run_round(prepared, experiments, planned, *rest):
            if planned.number == number:
                raise Stopped
            return inner(prepared, experiments, planned, *rest)

        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(rounds, 'train_and_evaluate', run_round)
            yield

    return stopped


@pytest.fixture
def programs(monkeypatch):
    """The number of experiments of each trained program."""
    counts, inner = [], training.train_experiments

    def train(experiments, *arguments, **keywords):
        result = inner(experiments, *arguments, **keywords)
        counts.append(len(experiments))
        return result

    monkeypatch.setattr(training, 'train_experiments', train)
    return counts
