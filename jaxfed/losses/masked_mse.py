"""FedSSD: logit matching with a weight for each example and class."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays
from jaxfed.losses._softmax import as_float
from jaxfed.types import Array


def masked_mse_distillation(
    logits: ArrayLike, teacher_logits: ArrayLike, channel_weights: ArrayLike
) -> Array:
    """Squared distance to the teacher's logits, each class with its weight.

    ||M (zg - z)||^2 = sum_k M_k^2 (zg_k - z_k)^2

    The weights are squared, and the sum over the classes is not divided by their number.

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      channel_weights: M [B, C], constant too; for instance from `credibility_weights`.

    Returns:
      [B].

    Raises:
      ValueError: if shapes do not match.

    Reference:
      He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID
      Data, IEEE Transactions on Big Data 2022, eq. 3.
    """
    check_arrays(logits, teacher_logits=teacher_logits, channel_weights=channel_weights)
    teacher_logits = jax.lax.stop_gradient(as_float(teacher_logits))
    weights = jax.lax.stop_gradient(as_float(channel_weights))
    return jnp.sum(jnp.square(weights * (teacher_logits - as_float(logits))), axis=-1)
