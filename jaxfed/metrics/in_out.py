"""In-local and out-local accuracy: on frequent and on rare classes of a client."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array


def label_shares(counts: ArrayLike) -> Array:
    """The in-local distribution of each client, uniform for a client without examples.

    p_i(c) = n_ic / n_i

    Args:
      counts: n [..., C] integers.

    Returns:
      [..., C], each with sum 1.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, definition 1.
    """
    counts = jnp.asarray(counts)
    size = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.where(size > 0, counts / jnp.maximum(size, 1), 1 / counts.shape[-1])


def out_local(shares: ArrayLike) -> Array:
    """The out-local distribution of each client, largest for its rarest classes.

    (1 - p_i(c)) / (C - 1)

    Args:
      shares: p [..., C], of two classes or more.

    Returns:
      [..., C], each with sum 1.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, definition 1.
    """
    shares = jnp.asarray(shares)
    return (1 - shares) / (shares.shape[-1] - 1)


def in_out_accuracy(class_accuracy: ArrayLike, counts: ArrayLike) -> tuple[Array, Array]:
    """Test accuracy on the in-local and on the out-local distribution of each client.

    sum_c p_i(c) A_c and sum_c (1 - p_i(c)) / (C - 1) A_c

    Args:
      class_accuracy: A [..., C], of each client's model, or [C] of one model for all clients.
      counts: n [..., C], the clients' label counts.

    Returns:
      [...] in-local and [...] out-local accuracy, in 0..1.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 2.2.
    """
    accuracy, shares = jnp.asarray(class_accuracy), label_shares(counts)
    return jnp.sum(shares * accuracy, axis=-1), jnp.sum(out_local(shares) * accuracy, axis=-1)
