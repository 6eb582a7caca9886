"""QSGD: updates with few bits for a number."""

import jax
import jax.numpy as jnp

from jaxfed.methods._check import check
from jaxfed.methods.method import ClientView, MessageSize, Method
from jaxfed.types import Array, PyTree


def quantize(*, bits: int = 8) -> Method:
    """Unbiased stochastic rounding of a client's update.

    q(u)[j] = ||u|| sign(u[j]) xi / s, s = 2^(bits - 1) - 1,
    xi = floor(s |u[j]| / ||u||), plus 1 with the probability of the remainder

    The norm is that of each array of the parameters.

    Args:
      bits: bits of a number with its sign, 2 to 16.

    Returns:
      The method.

    Raises:
      ValueError: if bits is out of range.

    Reference:
      Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding,
      NeurIPS 2017, section 3.1.
    """
    check((bits >= 2) & (bits <= 16), 'bits', bits, 'in 2..16')
    levels = 2 ** (bits - 1) - 1

    def round_array(u: Array, key: Array) -> Array:
        norm = jnp.sqrt(jnp.sum(jnp.square(u)))
        scaled = levels * jnp.abs(u) / jnp.where(norm > 0, norm, 1.0)
        number = jnp.floor(scaled + jax.random.uniform(key, u.shape))
        return norm / levels * jnp.sign(u) * number

    def send(client: ClientView) -> PyTree:
        leaves, structure = jax.tree.flatten(client.update)
        keys = jax.random.split(client.key, len(leaves))
        return jax.tree.unflatten(structure, map(round_array, leaves, keys))

    def message_size(update: PyTree, size: MessageSize) -> MessageSize:
        return size._replace(bits=bits, other=size.other + 4 * len(jax.tree.leaves(update)))

    return Method(send=send, message_size=message_size, alters_messages=True)
