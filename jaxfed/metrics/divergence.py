"""Divergence of local models from the global one, in their weights and in their distributions."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array, PyTree


def weight_distances(models: PyTree, center: PyTree) -> Array:
    """Euclidean distance of each model to one.

    ||w_i - w_g||; its mean over i is the weight divergence

    Args:
      models: w, parameters of S models, NumPy or JAX arrays [S, ...]; NumPy's stay on the host.
      center: w_g, that they started from, of the same structure without the first axis.

    Returns:
      [S].

    Reference:
      Lee et al., Preservation of Global Knowledge by Not-True Distillation in Federated Learning,
      NeurIPS 2022, section 5.2.
    """
    squares = jax.tree.map(
        lambda rows, one: ((rows - one) ** 2).reshape(len(rows), -1).sum(axis=1), models, center
    )
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def distribution_divergence(shares: ArrayLike, class_accuracy: ArrayLike) -> Array:
    """How far each client's labels are from those that the global model is good at.

    sum_c |p_i(c) - pg(c)|, pg(c) = A_c / sum_k A_k; its mean over i is the distribution divergence

    A global model that is right about nothing has a uniform pg.

    Args:
      shares: p [S, C], from `label_shares`.
      class_accuracy: A [C], of the global model that the clients start from.

    Returns:
      [S], in 0..2.

    Reference:
      Lee et al., Preservation of Global Knowledge by Not-True Distillation in Federated Learning,
      NeurIPS 2022, section 5.2.
    """
    accuracy = jnp.asarray(class_accuracy)
    total = jnp.sum(accuracy)
    uniform = jnp.full_like(accuracy, 1 / accuracy.shape[0])
    of_global = jnp.where(total > 0, accuracy / jnp.where(total > 0, total, 1), uniform)
    return jnp.sum(jnp.abs(jnp.asarray(shares) - of_global), axis=-1)
