"""JAX's persistent compilation cache, for runs that Python code starts."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxfed.engine.devices import keep_compiled_programs


@contextlib.contextmanager
def kept_programs(enabled: bool) -> Iterator[None]:
    """Keeps the programs that JAX compiles in the block on disk, for later runs and processes.

    A cache that the user configured stays in use, and later programs of the user are not kept.
    """
    settings: Any = jax.config
    if (
        not enabled
        or settings.jax_compilation_cache_dir
        or 'JAX_COMPILATION_CACHE_DIR' in os.environ
    ):
        yield
        return
    changed = (
        'jax_compilation_cache_dir',
        'jax_compilation_cache_max_size',
        'jax_persistent_cache_min_compile_time_secs',
    )
    before = {name: getattr(settings, name) for name in changed}
    keep_compiled_programs()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
