"""FedLMD: distillation of the classes with few or no examples at the client."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays
from jaxfed.losses._softmax import masked_kl, not_true
from jaxfed.types import Array


def majority_labels(label_counts: ArrayLike) -> Array:
    """The classes of which a client has more than an even share.

    n_c > n / C, n = sum_c n_c

    Args:
      label_counts: n_c [C], integers, the client's examples of each class.

    Returns:
      bool [C]; all False for a client without an example.

    Raises:
      ValueError: if the counts are not integers.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, section 4.2, with
      the inequality of the released code.
    """
    counts = jnp.asarray(label_counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f'label_counts is {counts.dtype}; it must be integers.')
    # For an integer n_c this is exactly n_c > n / C; it does not round, nor overflow as C n_c.
    return counts > jnp.sum(counts, axis=-1, keepdims=True) // counts.shape[-1]


def label_masking_distillation(
    logits: ArrayLike,
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    majority: ArrayLike,
    *,
    temperature: float | Array,
) -> Array:
    """Divergence from the teacher without the true class and the majority classes.

    tau^2 KL(pg' || p'), pg' = softmax of zg / tau over the classes neither in the majority nor y,
    p' = softmax of z / tau over all classes but y

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      labels: y [B], integers in 0..C-1.
      majority: bool [C], the client's majority classes, from `majority_labels`.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2; 0 where the teacher has no class left.

    Raises:
      ValueError: if `temperature` is out of range, shapes do not match, the labels are not
        integers or `majority` is not boolean.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, eq. 3-6, with
      the tau^2 of the released code.
    """
    check_arrays(logits, labels=labels, majority=majority)
    classes = not_true(labels, logits)
    return masked_kl(logits, teacher_logits, classes, classes & ~jnp.asarray(majority), temperature)


def label_masking_teacher_free(
    logits: ArrayLike, labels: ArrayLike, majority: ArrayLike, *, temperature: float | Array
) -> Array:
    """Label-masking distillation with a uniform distribution instead of a teacher.

    tau^2 KL(u' || p'), u' uniform over the classes neither in the majority nor y,
    p' = softmax of z / tau over all classes but y

    Args:
      logits: z [B, C].
      labels: y [B], integers in 0..C-1.
      majority: bool [C], the client's majority classes, from `majority_labels`.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2; 0 where the teacher has no class left.

    Raises:
      ValueError: if `temperature` is out of range, shapes do not match, the labels are not
        integers or `majority` is not boolean.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, eq. 7-8
      (FedLMD-Tf), with the tau^2 of the released code and u' normalised without y.
    """
    uniform = jnp.zeros(jnp.shape(logits))  # equal logits
    return label_masking_distillation(logits, uniform, labels, majority, temperature=temperature)
