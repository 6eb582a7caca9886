"""A server optimizer as a part of a method: the round's update is a gradient, its sign reversed."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.method import MergeView, Method
from jaxfed.types import PyTree


def server_optimizer(optimizer: optax.GradientTransformation) -> Method:
    """Let an optax optimizer take the server's step.

    Args:
      optimizer: it is given minus the update that the parts before it made.

    Returns:
      The part.

    Reference:
      Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 1.
    """

    def init(params: PyTree) -> tuple[PyTree, PyTree]:
        return optimizer.init(params), ()

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        gradient = jax.tree.map(jnp.negative, view.update)
        return optimizer.update(gradient, view.state, view.params)

    return Method(init=init, merge=merge)
