"""Divergence of local models from the global one, in weights and in label distributions."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.metrics._ratio import ratio
from jaxfed.types import Array, PyTree


def weight_distances(models: PyTree, center: PyTree) -> Array:
    """Euclidean distance of each model to a central one.

    ||w_i - w_g||; its mean over i is the weight divergence

    Args:
      models: w, parameters of S models [S, ...]; NumPy arrays remain on the host.
      center: w_g, parameters [...] of the model from which they started.

    Returns:
      [S].

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 5.2.
    """
    squares = jax.tree.map(
        lambda rows, one: ((rows - one) ** 2).reshape(len(rows), -1).sum(axis=1), models, center
    )
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


def distribution_divergence(shares: ArrayLike, class_accuracy: ArrayLike) -> Array:
    """Distance of each client's label shares to the global model's class accuracies.

    sum_c |p_i(c) - pg(c)|, pg(c) = A_c / sum_k A_k; its mean over i is the distribution divergence

    pg is uniform if all class accuracies are 0.

    Args:
      shares: p [S, C], from `label_shares`.
      class_accuracy: A [C], of the global model from which the clients start.

    Returns:
      [S], in 0..2.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 5.2.
    """
    accuracy = jnp.asarray(class_accuracy)
    uniform = jnp.full_like(accuracy, 1 / accuracy.shape[0])
    global_shares = ratio(accuracy, jnp.sum(accuracy), uniform)
    return jnp.sum(jnp.abs(jnp.asarray(shares) - global_shares), axis=-1)
