"""Client drift: lengths and directions of the clients' updates, or of their gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.metrics._ratio import ratio
from jaxfed.types import Array, PyTree


class Drift(NamedTuple):
    """Updates of S clients, d_i = w_i - w_g, and their mean d = mean_i d_i."""

    norms: Array  # [S], ||d_i||
    cosines: Array  # [S], <d_i, d> / (||d_i|| ||d||); 0 if d_i or d is zero
    diversity: Array  # [], as `diversity`


def drift(models: PyTree, start: PyTree) -> Drift:
    """Computes lengths and directions of the clients' updates, with equal weights.

    Args:
      models: w, parameters of S local models [S, ...]; NumPy arrays remain on the host.
      start: w_g, parameters [...] of the global model from which they started.

    Returns:
      The drift.

    Reference:
      Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
      2020, section 3.2, names the drift; Yin et al., Gradient Diversity: a Key Ingredient for
      Scalable Distributed Learning, AISTATS 2018, definition 1, the diversity.
    """

    def products(models: Array, start: Array) -> Array:
        rows = (models - start).reshape(len(models), -1)
        mean = rows.mean(axis=0)
        whole = jnp.broadcast_to((mean * mean).sum(), len(rows))
        return jnp.stack([(rows * rows).sum(axis=1), (rows * mean).sum(axis=1), whole])

    leaves = jax.tree.leaves(jax.tree.map(products, models, start))
    squares, along, whole = jnp.sum(jnp.stack(leaves), axis=0)
    norms = jnp.sqrt(squares)
    cosines = ratio(along, norms * jnp.sqrt(whole), 0.0)
    return Drift(norms, cosines, diversity(squares, whole[0]))


def diversity(squares: ArrayLike, mean_square: ArrayLike) -> Array:
    """Gradient diversity: how much the directions of vectors differ.

    mean_i ||v_i||^2 / ||mean_i v_i||^2 >= 1

    It is 1 if all vectors are equal, also if all are zero, and infinite if they cancel out.

    Args:
      squares: [S], ||v_i||^2.
      mean_square: [], ||mean_i v_i||^2.

    Returns:
      [].

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, definition 2, for gradients.
    """
    mean = jnp.mean(jnp.asarray(squares))
    return jnp.where(mean > 0, ratio(mean, jnp.asarray(mean_square), jnp.inf), 1.0)
