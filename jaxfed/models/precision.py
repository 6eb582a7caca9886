"""Arithmetic precision of a network; its parameters stay float32."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxfed.types import Array, Model, Outputs, PyTree

Precision = Literal['float32', 'tf32', 'bfloat16']


def with_precision(model: Model, precision: Precision) -> Model:
    """Computes a network and its gradients in a precision; outputs and gradients are float32.

    'tf32' rounds the operands of matrix products to 10 bits of mantissa on devices that support it
    and is 'float32' on others; 'bfloat16' rounds parameters and images to bfloat16 on entry.
    """
    products = {'float32': 'float32', 'tf32': 'tensorfloat32', 'bfloat16': 'default'}[precision]

    def apply(params: PyTree, x: Array, *mode: PyTree) -> Outputs:
        if precision == 'bfloat16':
            params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
        with jax.default_matmul_precision(products):
            outputs = model.apply(params, x, *mode)
        return jax.tree.map(_as_float32, outputs)

    return model._replace(apply=apply)


def _as_float32(leaf: Array) -> Array:
    """Casts floating-point numbers; statistics may also count."""
    return leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
