"""FedCAD: distillation with a weight for each class, from the teacher's credibility."""

from numbers import Real

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays, check_temperature
from jaxfed.losses._softmax import as_float, one_hot
from jaxfed.losses.kl import soft_cross_entropy
from jaxfed.types import Array


def class_weighted_distillation(
    logits: ArrayLike,
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    class_weights: ArrayLike,
    *,
    temperature: float | Array,
) -> Array:
    """FedCAD's distillation loss, weighted by the class of the example.

    a_y L_d, L_d = -sum_c pg_c log p_c, pg = softmax(zg / tau), p = softmax(z / tau)

    The other part of the loss is (1 - a_y) times the cross-entropy.

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      labels: y [B], integers in 0..C-1.
      class_weights: a [C], in 0..1, from `class_credibility`.
      temperature: tau, > 0.

    Returns:
      [B], in nats.

    Raises:
      ValueError: if `temperature` is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, eq. 5, its second term.
    """
    check_arrays(logits, labels=labels, class_weights=class_weights)
    distillation = soft_cross_entropy(logits, teacher_logits, temperature=temperature)
    return as_float(class_weights)[jnp.asarray(labels)] * distillation


def class_credibility(
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    *,
    beta: float | Array,
    gamma: float | Array,
    temperature: float | Array,
    where: ArrayLike | None = None,
) -> Array:
    """FedCAD's class weights: the credibility of the teacher's prediction of each class.

    a_c = (gamma - beta) / 2 E[phi | y = c] + (gamma + beta) / 2,
    phi = pg_y - sum_{k != y} pg_k = 2 pg_y - 1, pg = softmax(zg / tau)

    Args:
      teacher_logits: zg [B, C].
      labels: y [B], integers in 0..C-1.
      beta: weight of a class that the teacher never predicts correctly.
      gamma: weight of a class that it always predicts correctly; 0 <= beta <= gamma <= 1.
      temperature: tau, > 0.
      where: bool [B], False for the padding of a short batch; None for no padding.

    Returns:
      a [C], in beta..gamma; a class without examples gets (gamma + beta) / 2, as if phi were 0.

    Raises:
      ValueError: if a number is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, eq. 6.
    """
    phi_sum, count = class_credibility_sums(
        teacher_logits, labels, temperature=temperature, where=where
    )
    return class_credibility_from_sums(phi_sum, count, beta=beta, gamma=gamma)


def class_credibility_sums(
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    *,
    temperature: float | Array,
    where: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Sums over one batch for `class_credibility`; the sums of several batches can be added.

    sum_{x: y = c} phi(x), phi = 2 softmax(zg / tau)_y - 1

    Args:
      teacher_logits: zg [B, C].
      labels: y [B], integers in 0..C-1.
      temperature: tau, > 0.
      where: bool [B], False for the padding of a short batch; None for no padding.

    Returns:
      The sum of phi by class [C] and the number of examples by class [C], both floats.

    Raises:
      ValueError: if `temperature` is out of range, shapes do not match or the labels are not
        integers.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, eq. 6.
    """
    check_arrays(teacher_logits, labels=labels, where=where)
    check_temperature(temperature)
    logits = jax.lax.stop_gradient(as_float(teacher_logits))
    examples = one_hot(labels, logits, where)
    phi = 2 * jax.nn.softmax(logits / temperature) - 1
    return jnp.sum(jnp.where(examples > 0, phi, 0.0), axis=-2), jnp.sum(examples, axis=-2)


def class_credibility_from_sums(
    phi_sum: ArrayLike, count: ArrayLike, *, beta: float | Array, gamma: float | Array
) -> Array:
    """FedCAD's class weights from sums over batches.

    a_c = (gamma - beta) / 2 phi_sum_c / count_c + (gamma + beta) / 2

    Args:
      phi_sum: [C], from `class_credibility_sums`.
      count: [C], examples of each class.
      beta: lower bound of the weights.
      gamma: upper bound; 0 <= beta <= gamma <= 1.

    Returns:
      a [C]; a class without examples gets (gamma + beta) / 2, as if phi were 0.

    Raises:
      ValueError: if `beta` and `gamma` are numbers out of range or the shapes differ.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning,
      FL-AAAI workshop 2022, eq. 6.
    """
    if isinstance(beta, Real) and isinstance(gamma, Real) and not 0 <= beta <= gamma <= 1:
        raise ValueError(f'beta={beta}, gamma={gamma} must satisfy 0 <= beta <= gamma <= 1.')
    if jnp.shape(count) != jnp.shape(phi_sum):
        raise ValueError(
            f'count has shape {jnp.shape(count)}; it must be {jnp.shape(phi_sum)} as phi_sum.'
        )
    mean = as_float(phi_sum) / jnp.maximum(as_float(count), 1.0)
    return (gamma - beta) / 2 * mean + (gamma + beta) / 2
