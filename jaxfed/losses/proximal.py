"""FedProx: the distance to the global parameters."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.losses._softmax import as_float
from jaxfed.types import Array, PyTree


def proximal(params: PyTree, global_params: PyTree) -> Array:
    """Half the squared distance of the parameters to the global ones.

    1/2 ||w - w_g||^2

    Args:
      params: w.
      global_params: w_g, of the same structure and shapes, constant: it gets no gradient.

    Returns:
      [].

    Raises:
      ValueError: if the structures or the shapes differ.

    Reference:
      Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, eq. 2.
    """

    def difference(local: Array, start: Array) -> Array:
        if jnp.shape(local) != jnp.shape(start):
            raise ValueError(
                f'params has a leaf of shape {jnp.shape(local)} where global_params has '
                f'{jnp.shape(start)}; their shapes must be equal.'
            )
        return as_float(local) - jax.lax.stop_gradient(as_float(start))

    distance = jax.tree.map(difference, params, global_params)
    return 0.5 * optax.tree.norm(distance, squared=True)
