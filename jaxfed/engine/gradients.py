"""The gradient of a client's cross-entropy, which examples add up to a chunk at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.types import Array, Outputs, PyTree


def gradient_sum(
    apply: Callable[[PyTree, Array], Outputs],
    params: PyTree,
    x: Array,
    y: Array,
    mask: Array,
    prepare: Callable[[Array], Array] = lambda x: x,
) -> PyTree:
    """Sum over examples of the gradient of their cross-entropy.

    sum_{x, y} grad CE(z(x), y); over all of a client's examples and divided by n_i it is grad f_i

    Args:
      apply: the network.
      params: its parameters.
      x: [B, H, W, channels].
      y: [B] int32 labels.
      mask: [B] bool, False for examples that do not count.
      prepare: applied to x first, for instance a normalisation of uint8 images.

    Returns:
      The sum, of the structure of `params`.
    """

    def objective(params: PyTree) -> Array:
        return jnp.sum(losses.cross_entropy(apply(params, prepare(x)).logits, y), where=mask)

    return jax.grad(objective)(params)
