"""Distillation from all classes: Kullback-Leibler divergence and soft cross-entropy."""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays, check_temperature
from jaxfed.losses._softmax import as_float, masked_kl
from jaxfed.types import Array


def kl_distillation(
    logits: ArrayLike, teacher_logits: ArrayLike, *, temperature: float | Array
) -> Array:
    """Divergence of the student's prediction from the teacher's.

    tau^2 KL(softmax(zg / tau) || softmax(z / tau))

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2.

    Raises:
      ValueError: if `temperature` is out of range or shapes do not match.

    Reference:
      Hinton et al., Distilling the Knowledge in a Neural Network, 2015, section 2.
    """
    check_arrays(logits)
    all_classes = jnp.ones(jnp.shape(logits), bool)
    return masked_kl(logits, teacher_logits, all_classes, all_classes, temperature)


def soft_cross_entropy(
    logits: ArrayLike, teacher_logits: ArrayLike, *, temperature: float | Array
) -> Array:
    """Cross-entropy with the teacher's prediction, the L_d of FedLSD and FedCAD; no tau^2.

    -sum_c pg_c log p_c, pg = softmax(zg / tau), p = softmax(z / tau)

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      temperature: tau, > 0.

    Returns:
      [B], in nats.

    Raises:
      ValueError: if `temperature` is out of range or shapes do not match.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, eq. 2.
    """
    check_arrays(logits, teacher_logits=teacher_logits)
    check_temperature(temperature)
    teacher = jax.nn.softmax(jax.lax.stop_gradient(as_float(teacher_logits)) / temperature)
    return optax.softmax_cross_entropy(as_float(logits) / temperature, teacher)
