"""Batch normalisation of users' networks with the statistics of the real examples only.

A short batch ends with padding: images of other clients. `nnx.BatchNorm` and `linen.BatchNorm`
ignore it if they receive a mask. A network written without jaxfed passes none, so jaxfed adds it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from flax import linen, nnx

from jaxfed.types import Array

_mask: ContextVar[Array | None] = ContextVar('mask', default=None)


def add_masks(module: nnx.Module) -> None:
    """Makes every `nnx.BatchNorm` of a module use the mask of `real_examples`, in place.

    Layers with their own `__call__` remain as they are.
    """
    for _, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.BatchNorm) and type(layer).__call__ is nnx.BatchNorm.__call__:
            object.__setattr__(layer, '__class__', _masked_class(type(layer)))


@cache
def _masked_class(layer: type[nnx.BatchNorm]) -> type:
    """The subclass of a layer that passes the current mask."""

    def call(
        self: nnx.BatchNorm,
        x: Array,
        use_running_average: bool | None = None,
        *,
        mask: Array | None = None,
    ) -> Array:
        mask = _mask_of(x) if mask is None else mask
        return nnx.BatchNorm.__call__(self, x, use_running_average, mask=mask)

    metaclass: Any = type(layer)
    return metaclass(layer.__name__, (layer,), {'__call__': call})


@contextlib.contextmanager
def real_examples(mask: Array | None) -> Iterator[None]:
    """Passes a mask [B] to the batch normalisations that are called in this context."""
    token = _mask.set(mask)
    try:
        with linen.intercept_methods(_add_mask):
            yield
    finally:
        _mask.reset(token)


def _add_mask(function: Callable, args: tuple, keywords: dict[str, Any], context: Any) -> Any:
    """Adds the mask to a call of `linen.BatchNorm`."""
    if isinstance(context.module, linen.BatchNorm) and context.method_name == '__call__':
        x = args[0] if args else keywords['x']
        keywords = {'mask': _mask_of(x), **keywords}
    return function(*args, **keywords)


def _mask_of(x: Array) -> Array | None:
    """The mask, of shape [B, 1, ...], for x [B, ...]."""
    mask = _mask.get()
    if mask is None:
        return None
    if x.shape[:1] != mask.shape:
        raise ValueError(
            f'the first axis of the input of a batch normalisation must be the {len(mask)} '
            f'examples of the batch, got shape {x.shape}.'
        )
    return mask.reshape(-1, *[1] * (x.ndim - 1))
