"""Server optimizers as parts of a method; their gradient is minus the round's update."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods._check import check
from jaxfed.methods._weights import has_arrived
from jaxfed.methods.method import MergeView, Method
from jaxfed.types import PyTree


def server_optimizer(optimizer: optax.GradientTransformation) -> Method:
    """Makes a part with an optax optimizer as its server step.

    A round without an update changes neither the model nor the optimizer's state.

    Reference:
      Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 1.
    """

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        return optimizer.init(params), ()

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        gradient = jax.tree.map(jnp.negative, view.update)
        step, state = optimizer.update(gradient, view.state, view.params)
        arrived = has_arrived(view.update)
        return (
            jax.tree.map(lambda u: jnp.where(arrived, u, 0), step),
            jax.tree.map(lambda new, old: jnp.where(arrived, new, old), state, view.state),
        )

    return Method(init=init, merge=merge)


def two_moments(
    optimizer: Callable[..., optax.GradientTransformation],
    *,
    server_lr: float,
    b1: float,
    b2: float,
    eps: float,
) -> Method:
    """Makes a part with an optimizer like Adam as its server step."""
    check(server_lr > 0, 'server_lr', server_lr, 'above 0')
    # Float32 rounds numbers still nearer to 1 or 0 to these, and the step is then not finite.
    check((b1 >= 0) & (b1 <= 0.999999), 'b1', b1, 'from 0 to 0.999999')
    check((b2 >= 0) & (b2 <= 0.999999), 'b2', b2, 'from 0 to 0.999999')
    check(eps >= 1e-30, 'eps', eps, 'at least 1e-30')
    return server_optimizer(optimizer(server_lr, b1=b1, b2=b2, eps=eps))
