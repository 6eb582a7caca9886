"""Top-k sparsification with error feedback."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods._check import check
from jaxfed.methods._weights import keep_if_finite
from jaxfed.methods.method import ClientView, MessageSize, Method
from jaxfed.types import Array, PyTree


def topk(*, share: float = 0.1) -> Method:
    """The largest entries of a client's update; what is not sent is added to its next one.

    u = update + e_i; send the ceil(share d) entries of u with the largest |u[j]|; e_i = the rest

    Entries are chosen in each array of the parameters, of d entries. An update that is not
    finite is sent and leaves e_i as it is.

    Args:
      share: of the entries that are sent, in (0, 1]; 1 sends all.

    Returns:
      The method.

    Raises:
      ValueError: if share is out of range, or `quantize` comes before it.

    Reference:
      Stich et al., Sparsified SGD with Memory, NeurIPS 2018, algorithm 1.
    """
    check((share > 0) & (share <= 1), 'share', share, 'above 0 and at most 1')

    def number_of(size: int) -> Array:
        # 0.1 * 30 is above 3 as a float, but 3 entries are sent. The share of a sweep is a float32,
        # so the product is wrong by up to 2e-7 of its size.
        number = jnp.ceil(share * size * (1 - 4e-7) - 1e-6).astype(jnp.int32)
        return jnp.where(share < 1, jnp.maximum(number, 1), size)

    def largest(u: Array) -> Array:
        # Bits of numbers of one sign have the same order; NaN is the largest, so that it is sent.
        size = jax.lax.bitcast_convert_type(jnp.abs(u.ravel()).astype(jnp.float32), jnp.int32)
        number = number_of(u.size)
        least = _nth_largest(size, number)
        # Of equal entries the first ones.
        order = jnp.where(size == least, jnp.arange(u.size, 0, -1), 0)
        last = _nth_largest(order, number - jnp.sum(size > least))
        return jnp.where(((size > least) | (order >= last)).reshape(u.shape), u, 0)

    def send(client: ClientView) -> PyTree:
        return jax.tree.map(largest, optax.tree.add(client.update, client.state))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        total = optax.tree.add(client.update, client.state)
        rest = optax.tree.sub(total, send(client))
        return keep_if_finite(rest, client.state, total), ()

    def message_size(update: PyTree, size: MessageSize) -> MessageSize:
        if size.bits < 32:
            raise ValueError(
                'topk sends sums of an update and of what it has kept, so quantize must come after '
                'it, as in topk+quantize.'
            )
        return size._replace(
            kept=sum(int(number_of(leaf.size)) for leaf in jax.tree.leaves(update))
        )

    return Method(
        init=lambda params, stats: ((), optax.tree.zeros_like(params)),
        send=send,
        finish=finish,
        message_size=message_size,
        alters_messages=True,
    )


@jax.jit  # or each call outside of a program would compile the loop again
def _nth_largest(values: Array, n: Array) -> Array:
    """The n-th largest of int32 values that are not negative, bit by bit.

    Sorting takes nine times as long on a CPU, and two minutes to compile for a TPU.
    """

    def set_bit(i: Array, found: Array) -> Array:
        larger = found | (1 << (30 - i))
        return jnp.where(jnp.sum(values >= larger) >= n, larger, found)

    return jax.lax.fori_loop(0, 31, set_bit, jnp.zeros((), jnp.int32))
