"""The tests see eight devices, so that what is shared out among devices is.

Compiling takes most of their time, and half as long where programs need not be fast; what the
compiler makes of the convolutions is tested as users run it (`test_ops`), and so are whole runs in
processes of their own (`test_main`). What one test has compiled others do not compile again.
"""

import argparse
import os

import jax
import jaxlib
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxfed.runs import simulate
from jaxfed.sweeps import training

jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_disable_most_optimizations', True)
with pytest.MonkeyPatch.context() as patch:  # processes that tests start do not inherit it
    # A quarter less time again. A jaxlib that does not know a flag ends the process.
    if jaxlib.__version__.startswith('0.10.'):
        given = os.environ.get('XLA_FLAGS', '')
        patch.setenv('XLA_FLAGS', f'{given} --xla_cpu_use_fusion_emitters=false')
    jax.devices()  # from here on no command that a test runs can change their number


def pytest_addoption(parser):
    parser.addoption(
        '--fuzz_inputs',
        type=positive,
        help='random inputs of test_fuzz, of all targets [the same few hundred in every run]',
    )
    parser.addoption('--fuzz_seed', type=int, default=0, help='seed of --fuzz_inputs [0]')


def positive(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, got {number}.')
    return number


@pytest.fixture(scope='session', autouse=True)
def shared_programs(tmp_path_factory):
    """Programs that several tests compile are compiled once."""
    jax.config.update('jax_compilation_cache_dir', str(tmp_path_factory.mktemp('compiled')))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
    compilation_cache.reset_cache()


@pytest.fixture
def cheap_runs(shared_programs, monkeypatch):
    """Runs in this process share programs, draw no pictures and leave nothing behind."""
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
    for picture in ('draw_heatmap', 'draw_accuracy'):
        monkeypatch.setattr(simulate, picture, lambda *_, **__: None)


@pytest.fixture
def programs(monkeypatch):
    """The number of experiments of each program that was trained."""
    counts, inner = [], training.train_experiments

    def train(experiments, *arguments, **keywords):
        result = inner(experiments, *arguments, **keywords)
        counts.append(len(experiments))
        return result

    monkeypatch.setattr(training, 'train_experiments', train)
    return counts
