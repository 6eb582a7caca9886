"""The kind of device that programs are compiled for, on which several choices depend."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

# At its default, level O2, the compiler of a TPU tries so many forms of each convolution that a
# float32 step of `cnn` takes minutes. At level O1 it takes seconds, and the program moves fewer
# bytes (BUILD_NOTES.md, accelerators). On a TPU v6e O1 takes a minute, too, and O0 seconds for a
# program of the same instructions.
O0, O1 = 9, 19  # in the numbers of XLA

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar('target', default=None)
_device_kind: contextvars.ContextVar[str | None] = contextvars.ContextVar('kind', default=None)
_at_once: contextvars.ContextVar[int | None] = contextvars.ContextVar('at_once', default=None)


def backend() -> str:
    """'cpu', 'gpu' or 'tpu': JAX's default, or that of an enclosing `compiling_for`."""
    return _target.get() or jax.default_backend()


def on_cpu() -> bool:
    """Whether programs are compiled for the CPU."""
    return backend() == 'cpu'


@contextlib.contextmanager
def compiling_for(kind: str, at_once: int = 1, device_kind: str | None = None) -> Iterator[None]:
    """Makes `backend` return `kind`, to compile `at_once` programs for devices that are absent."""
    tokens = _target.set(kind), _at_once.set(at_once), _device_kind.set(device_kind)
    try:
        yield
    finally:
        _target.reset(tokens[0])
        _at_once.reset(tokens[1])
        _device_kind.reset(tokens[2])


def lower(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Lowers a function for arguments of these shapes; `options` are those of `jax.jit`."""
    return jax.jit(function, **options).lower(*arguments)


def compile_all(programs: Any) -> Any:
    """Compiles the lowered programs of a tree side by side: a compiler may use one core.

    A TPU's compiler uses `tpu_level` unless `jax_optimization_level` of JAX is set.
    """
    chosen = jax.config.jax_optimization_level != 'UNKNOWN'  # type: ignore[attr-defined]
    level: Any = {'optimization_level': tpu_level()} if backend() == 'tpu' and not chosen else None
    lowered, structure = jax.tree.flatten(programs)
    with ThreadPoolExecutor(_at_once.get()) as threads:
        compiled = threads.map(lambda program: program.compile(compiler_options=level), lowered)
        return jax.tree.unflatten(structure, compiled)


def tpu_level() -> int:
    """The optimization level of a TPU's compiler."""
    return O0 if 'v6' in (_device_kind.get() or jax.devices()[0].device_kind) else O1


def compile_program(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Compiles a function for arguments of these shapes; `options` are those of `jax.jit`."""
    return compile_all(lower(function, *arguments, **options))
