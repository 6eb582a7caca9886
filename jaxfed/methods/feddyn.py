"""FedDyn: a dynamic regulariser aligns the clients' optima with the global one."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.losses import proximal
from jaxfed.methods._check import check
from jaxfed.methods._weights import equal_weights
from jaxfed.methods.method import ClientView, LocalView, MergeView, Method
from jaxfed.types import Array, PyTree


def feddyn(*, alpha: float = 0.1) -> Method:
    """Dynamic regularisation.

    CE - <h_i, w> + alpha / 2 ||w - w_g||^2, then h_i -= alpha (w_i - w_g);
    h -= alpha / N sum_i (w_i - w_g), w = mean_i w_i - h / alpha

    The states are -h_i / alpha and -h / alpha, the sums of updates, so alpha may be 0. The mean is
    over the round's clients and unweighted, for every --aggregation.

    Args:
      alpha: weight of the regulariser, >= 0.

    Returns:
      The method.

    Raises:
      ValueError: if alpha is negative.

    Reference:
      Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, algorithm 1.
    """
    check(alpha >= 0, 'alpha', alpha, 'at least 0')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        zeros = optax.tree.zeros_like(params)
        return zeros, zeros

    def penalty(view: LocalView) -> Array:
        linear = optax.tree.vdot(view.state, view.params)
        return alpha * (linear + proximal(view.params, view.global_params))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        moved = optax.tree.sub(client.params, client.global_params)
        return jax.tree.map(jnp.add, client.state, moved), moved

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        clients = view.round.num_clients
        state = jax.tree.map(lambda total, u: total + u / clients, view.state, view.uploads)
        return jax.tree.map(jnp.add, view.update, state), state

    return Method(
        init=init,
        weigh=equal_weights,
        penalty=penalty,
        finish=finish,
        merge=merge,
        sent=lambda upload: (),  # the server knows w_i and w_g
        equal_weights=True,
        uploads=True,
    )
