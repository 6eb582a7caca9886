"""MOON: the model-contrastive loss."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_temperature
from jaxfed.losses._softmax import as_float
from jaxfed.types import Array

_SMALLEST = 1e-8  # lower bound of norms, as in PyTorch's cosine similarity


def model_contrastive(
    features: ArrayLike,
    global_features: ArrayLike,
    previous_features: ArrayLike,
    *,
    temperature: float | Array,
) -> Array:
    """MOON's contrast of a representation with those of the global and the previous local model.

    -log(exp(cos(f, f_g) / tau) / (exp(cos(f, f_g) / tau) + exp(cos(f, f_p) / tau)))

    Args:
      features: f [B, F], of the local model.
      global_features: f_g [B, F], constant: they get no gradient.
      previous_features: f_p [B, F], of the client's previous model, constant as well.
      temperature: tau, > 0.

    Returns:
      [B].

    Raises:
      ValueError: if the temperature is out of range.

    Reference:
      Li et al., Model-Contrastive Federated Learning, CVPR 2021, eq. 2.
    """
    check_temperature(temperature)
    positive = _cosine(features, jax.lax.stop_gradient(global_features))
    negative = _cosine(features, jax.lax.stop_gradient(previous_features))
    return jax.nn.softplus((negative - positive) / temperature)


def _cosine(a: ArrayLike, b: ArrayLike) -> Array:
    """Cosine similarity along the last axis."""
    a, b = as_float(a), as_float(b)

    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.maximum(jnp.sum(x * x, axis=-1), _SMALLEST**2))

    return jnp.sum(a * b, axis=-1) / (norm(a) * norm(b))
