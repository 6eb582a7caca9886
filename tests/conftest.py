"""The tests see four devices, so that what is shared out among devices is.

Compiling takes most of their time, and half as long where programs need not be fast; what the
compiler makes of the convolutions is tested as users run it (`test_ops`), and so are whole runs in
processes of their own (`test_main`).
"""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxfed import simulation

jax.config.update('jax_num_cpu_devices', 4)
jax.config.update('jax_disable_most_optimizations', True)


@pytest.fixture(scope='module')
def shared_programs(tmp_path_factory):
    """Programs that several runs of a module compile are compiled once."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update('jax_compilation_cache_dir', str(tmp_path_factory.mktemp('compiled')))
    compilation_cache.reset_cache()
    yield
    jax.config.update('jax_compilation_cache_dir', before)
    compilation_cache.reset_cache()


@pytest.fixture
def cheap_runs(shared_programs, monkeypatch):
    """Runs in this process share programs, draw no pictures and leave nothing behind."""
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
    for picture in ('draw_heatmap', 'draw_accuracy'):
        monkeypatch.setattr(simulation, picture, lambda *_, **__: None)
