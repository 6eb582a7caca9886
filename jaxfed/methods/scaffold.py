"""SCAFFOLD: control variates correct the drift of local training."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods._check import check
from jaxfed.methods._steps import effective_steps
from jaxfed.methods.method import ClientView, LocalView, MergeView, Method
from jaxfed.types import Array, PyTree


def scaffold(*, server_lr: float = 1.0) -> Method:
    """Control variates against client drift.

    The local gradient is corrected by c - c_i, the gradient of the term <c - c_i, w - w_g>.
    c_i+ = c_i - c + (w_g - w_i) / (a_i lr), c += 1/N sum_i (c_i+ - c_i)

    a_i is the number of local steps; with local momentum, their effective number. Variates start at
    zero. --aggregation weighs the clients' parameters; algorithm 1 weighs them equally.

    Args:
      server_lr: factor of the server's step, > 0.

    Returns:
      The method.

    Raises:
      ValueError: if server_lr is out of range.

    Reference:
      Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
      2020, algorithm 1, option II.
    """

    check(server_lr > 0, 'server_lr', server_lr, 'above 0')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        zeros = optax.tree.zeros_like(params)
        return zeros, zeros

    def penalty(view: LocalView) -> Array:
        correction = optax.tree.sub(view.shared, view.state)
        return optax.tree.vdot(correction, optax.tree.sub(view.params, view.global_params))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        steps = effective_steps(client.steps, client.round.momentum)
        scale = 1 / (steps * client.round.learning_rate)
        change = jax.tree.map(
            lambda c, w, w_g: scale * (w_g - w) - c,
            *(client.shared, client.params, client.global_params),
        )
        # A client without examples, or with a learning rate that is 0 in float32, has no gradient
        # to estimate.
        known = (client.steps > 0) & jnp.isfinite(scale)
        change = jax.tree.map(lambda d: jnp.where(known, d, 0.0), change)
        return jax.tree.map(jnp.add, client.state, change), change

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        clients = view.round.num_clients
        state = jax.tree.map(lambda c, total: c + total / clients, view.state, view.uploads)
        return optax.tree.scale(server_lr, view.update), state

    return Method(
        init=init,
        share=lambda server: server.state,
        penalty=penalty,
        finish=finish,
        merge=merge,
        counts_steps=True,
        uploads=True,
    )
