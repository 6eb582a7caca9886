"""A server optimizer as a part of a method: the round's update is a gradient, its sign reversed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods._check import check
from jaxfed.methods.method import MergeView, Method
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

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        return optimizer.init(params), ()

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        gradient = jax.tree.map(jnp.negative, view.update)
        return optimizer.update(gradient, view.state, view.params)

    return Method(init=init, merge=merge)


def two_moments(
    optimizer: Callable[..., optax.GradientTransformation],
    *,
    server_lr: float,
    b1: float,
    b2: float,
    eps: float,
) -> Method:
    """Let an optimizer of Adam's kind take the server's step.

    Args:
      optimizer: optax's factory.
      server_lr: the server's learning rate, > 0.
      b1: decay of the first moment, in [0, 1).
      b2: decay of the second moment, in [0, 1).
      eps: added to the root of the second moment, > 0.

    Returns:
      The part.

    Raises:
      ValueError: if a hyper-parameter is out of range.
    """
    check(server_lr > 0, 'server_lr', server_lr, 'above 0')
    check((b1 >= 0) & (b1 < 1), 'b1', b1, 'in [0, 1)')
    check((b2 >= 0) & (b2 < 1), 'b2', b2, 'in [0, 1)')
    check(eps > 0, 'eps', eps, 'above 0')
    return server_optimizer(optimizer(server_lr, b1=b1, b2=b2, eps=eps))
