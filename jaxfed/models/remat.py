"""Blocks whose inside is computed again for the gradient, instead of being kept until then."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.types import Array, PyTree


def recomputed(function: Callable[..., PyTree], *, platform: str | None = None) -> Callable:
    """Makes a function that keeps its arguments only, and computes the rest again for its gradient.

    Args:
      function: (weights, x, constant) -> result, differentiated by weights and x.
      platform: 'cpu', 'gpu', 'tpu' ...; None for the default backend's.

    Returns:
      The same function.
    """
    if (platform or jax.default_backend()) != 'cpu':
        return jax.checkpoint(function)

    # On the CPU the compiler drops the barriers of `jax.checkpoint` and then finds that all has
    # been computed before. It cannot look into a branch that it does not know to be taken.
    @jax.custom_vjp
    def again(weights: PyTree, x: Array, constant: PyTree) -> PyTree:
        return function(weights, x, constant)

    def forward(weights: PyTree, x: Array, constant: PyTree) -> tuple[PyTree, tuple]:
        return function(weights, x, constant), (weights, x, constant)

    def backward(kept: tuple, cotangent: PyTree) -> tuple[Any, Any, None]:
        weights, x, constant = kept

        def gradient() -> tuple[PyTree, Array]:
            _, pull_back = jax.vjp(lambda w, x: function(w, x, constant), weights, x)
            return pull_back(cotangent)

        always = jnp.argmax(x.reshape(-1)[:2]) < 2
        zeros = jax.tree.map(jnp.zeros_like, (weights, x))
        return *lax.cond(always, gradient, lambda: zeros), None

    again.defvjp(forward, backward)
    return again
