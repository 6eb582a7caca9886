"""JAX's persistent compilation cache."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxfed.internal.files import cache_folder
from jaxfed.internal.logger import LOGGER

# The programs of a run on a CPU take 1 to 2 MB, and JAX looks at every file before it adds one.
SIZE = 1 << 30
_FOLDER = 'jax_compilation_cache_dir'
_LIMIT = 'jax_compilation_cache_max_size'
_LEAST_SECONDS = 'jax_persistent_cache_min_compile_time_secs'


def keep_programs() -> None:
    """Makes JAX keep compiled programs on disk for later processes, up to `SIZE` bytes.

    A cache that the user configured stays in use. A program that is read is executed, so a folder
    to which other users could have written is not used; a warning says so.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir or 'JAX_COMPILATION_CACHE_DIR' in os.environ:
        return
    try:
        folder = cache_folder('compiled')
    except OSError as error:
        LOGGER.warning('Compiled programs are not kept: %s.', error)
        return
    for program in folder.glob('*-cache'):
        # JAX writes the time of use last and cannot evict a program without it.
        if not program.with_name(f'{program.name.removesuffix("-cache")}-atime').exists():
            program.unlink(missing_ok=True)
    jax.config.update(_FOLDER, str(folder))
    jax.config.update(_LEAST_SECONDS, 0.1)
    if settings.jax_compilation_cache_max_size == -1:  # the user set no limit
        jax.config.update(_LIMIT, SIZE)


@contextlib.contextmanager
def kept_programs(enabled: bool) -> Iterator[None]:
    """Keeps the programs that JAX compiles in the block, and no later programs of the user."""
    before = {name: getattr(jax.config, name) for name in (_FOLDER, _LIMIT, _LEAST_SECONDS)}
    if enabled:
        keep_programs()
    if getattr(jax.config, _FOLDER) == before[_FOLDER]:
        yield
        return
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
