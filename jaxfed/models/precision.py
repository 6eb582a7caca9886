"""Arithmetic precision of a network; its parameters stay float32."""

from typing import Any, Literal

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
            params, x = _as_type(jnp.bfloat16, (params, x))
        with jax.default_matmul_precision(products):
            outputs = model.apply(params, x, *mode)
        return _as_type(jnp.float32, outputs)

    return model._replace(apply=apply)


def _as_type(dtype: Any, tree: PyTree) -> PyTree:
    """Casts floating-point numbers; token ids and statistics that count remain."""

    def cast(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
