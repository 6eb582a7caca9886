"""FedBuff: updates that arrive in a later round count less."""

import jax
import jax.numpy as jnp

from jaxfed.methods._check import check
from jaxfed.methods._weights import equal_weights
from jaxfed.methods.method import ClientView, MergeView, Method
from jaxfed.types import Array, PyTree


def fedbuff(*, delay: int = 2, exponent: float = 0.5) -> Method:
    """Buffered asynchronous aggregation: each update arrives some rounds late, and counts less.

    w = w_g + 1/K sum (1 + t_i)^-a u_i over the K updates that arrive in the round; t_i in 0..T

    A client draws its delay t_i, uniformly, in every round. The buffer is emptied once a round, so
    its size K varies. Batch statistics are averaged without delay.

    Args:
      delay: T, the longest delay in rounds, >= 0; 0 is FedAvg with --aggregation=uniform.
      exponent: a, >= 0; 0 counts late updates like others.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022,
      algorithm 1, with the staleness weight of section 5.
    """
    check(delay >= 0, 'delay', delay, 'at least 0')
    check(exponent >= 0, 'exponent', exponent, 'at least 0')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        buffer = jax.tree.map(lambda leaf: jnp.zeros((delay + 1, *leaf.shape)), params)
        return (buffer, jnp.zeros(delay + 1)), ()

    def arrival(client: ClientView) -> Array:
        late = jax.random.randint(client.key, (), 0, delay + 1)
        # A client without examples has no update that the server could wait for.
        return jax.nn.one_hot(late, delay + 1) * (client.steps > 0)

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        arrives = arrival(client)
        share = arrives * (1.0 + jnp.arange(delay + 1)) ** -exponent
        late = jax.tree.map(lambda u: jnp.multiply.outer(share, u), client.update)
        return (), (late, arrives)

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        buffer, number = jax.tree.map(jnp.add, view.state, view.uploads)
        update = jax.tree.map(lambda rows: rows[0] / jnp.maximum(number[0], 1), buffer)

        def wait(rows: Array) -> Array:
            return jnp.concatenate([rows[1:], jnp.zeros_like(rows[:1])])

        return update, jax.tree.map(wait, (buffer, number))

    return Method(
        init=init,
        weigh=equal_weights,
        finish=finish,
        merge=merge,
        sent=lambda upload: (),
        equal_weights=True,
        alters_messages=True,
        delays=True,
    )
