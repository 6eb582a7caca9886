"""The kind of device that programs are compiled for, on which several choices depend."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax

# At its default, level O2, the compiler of a TPU tries so many forms of each convolution that a
# float32 step of `cnn` takes minutes. At level O1 it takes seconds, and the program moves fewer
# bytes (BUILD_NOTES.md, accelerators).
TPU_LEVEL = 19  # O1, in the numbers of XLA

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar('target', default=None)


def backend() -> str:
    """'cpu', 'gpu' or 'tpu': JAX's default, or that of an enclosing `compiling_for`."""
    return _target.get() or jax.default_backend()


def on_cpu() -> bool:
    """Whether programs are compiled for the CPU."""
    return backend() == 'cpu'


@contextlib.contextmanager
def compiling_for(kind: str) -> Iterator[None]:
    """Makes `backend` return `kind`, to compile for devices that this machine lacks."""
    token = _target.set(kind)
    try:
        yield
    finally:
        _target.reset(token)


def compile_program(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Compiles a function for arguments of these shapes; `options` are those of `jax.jit`.

    A TPU's compiler uses level O1 unless `jax_optimization_level` of JAX is set.
    """
    chosen = jax.config.jax_optimization_level != 'UNKNOWN'  # type: ignore[attr-defined]
    level: Any = {'optimization_level': TPU_LEVEL} if backend() == 'tpu' and not chosen else None
    return jax.jit(function, **options).lower(*arguments).compile(compiler_options=level)
