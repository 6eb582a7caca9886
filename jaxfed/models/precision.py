"""Arithmetic precision of a network; its parameters stay float32."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxfed.types import Array, Model, Outputs, PyTree

Precision = Literal['float32', 'tf32', 'bfloat16']


def with_precision(model: Model, precision: Precision) -> Model:
    """Makes a network compute in a precision.

    Gradients are computed in the same precision and arrive at the parameters as float32.

    Args:
      model: the network.
      precision: 'float32' exactly; 'tf32', matrix products of float32 with 10 bits of mantissa on
        devices that have them (others compute float32); 'bfloat16', parameters and images rounded
        to bfloat16 on entry.

    Returns:
      The network, with float32 outputs.
    """
    products = {'float32': 'float32', 'tf32': 'tensorfloat32', 'bfloat16': 'default'}[precision]

    def apply(params: PyTree, x: Array, *mode: PyTree) -> Outputs:
        if precision == 'bfloat16':
            params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
        with jax.default_matmul_precision(products):
            outputs = model.apply(params, x, *mode)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), outputs)

    return model._replace(apply=apply)
