"""FedLMD: distillation from the classes that the client has few or no examples of."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_bool, check_shapes, check_temperature
from jaxfed.losses._softmax import masked_kl
from jaxfed.types import Array


def majority_labels(label_counts: ArrayLike) -> Array:
    """The classes that a client has more than an even share of.

    n_c > n / C, n = sum_c n_c

    Args:
      label_counts: n_c [C], integers, the client's examples of each class.

    Returns:
      bool [C]; all False for a client without an example.

    Raises:
      ValueError: if the counts are no integers.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, section 3, with
      the inequality of the released code.
    """
    counts = jnp.asarray(label_counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f'label_counts is {counts.dtype}; give the counts as integers.')
    # For an integer n_c this is n_c > n / C exactly; it can neither round nor overflow as C n_c.
    return counts > jnp.sum(counts, axis=-1, keepdims=True) // counts.shape[-1]


def label_masking_distillation(
    logits: ArrayLike,
    teacher_logits: ArrayLike,
    labels: ArrayLike,
    majority: ArrayLike,
    *,
    temperature: float | Array,
) -> Array:
    """Divergence from a teacher who knows neither the true class nor the majority classes.

    tau^2 KL(pg' || p'), pg' = softmax of zg / tau over the classes neither in the majority nor y,
    p' = softmax of z / tau over all classes but y

    Args:
      logits: z [B, C].
      teacher_logits: zg [B, C], constant: it gets no gradient.
      labels: y [B], integers in 0..C-1.
      majority: bool [C], the client's majority classes, from `majority_labels`.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2; 0 where no class is left to the teacher.

    Raises:
      ValueError: if `temperature` is out of range, the shapes do not go together, the labels are
        no integers or `majority` is not boolean.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, section 3; with
      the tau^2 of the released code.
    """
    check_shapes(
        logits,
        same={'teacher_logits': teacher_logits},
        labels=labels,
        classes={'majority': majority},
    )
    check_bool(majority=majority)
    check_temperature(temperature)
    not_true = ~jax.nn.one_hot(labels, jnp.shape(logits)[-1], dtype=bool)
    return masked_kl(
        logits,
        teacher_logits,
        student_classes=not_true,
        teacher_classes=not_true & ~jnp.asarray(majority),
        temperature=temperature,
    )


def label_masking_teacher_free(
    logits: ArrayLike, labels: ArrayLike, majority: ArrayLike, *, temperature: float | Array
) -> Array:
    """Label-masking distillation with the uniform distribution in the teacher's place.

    tau^2 KL(u' || p'), u' uniform over the classes neither in the majority nor y,
    p' = softmax of z / tau over all classes but y

    Args:
      logits: z [B, C].
      labels: y [B], integers in 0..C-1.
      majority: bool [C], the client's majority classes, from `majority_labels`.
      temperature: tau, > 0.

    Returns:
      [B], in nats times tau^2; 0 where no class is left to the teacher.

    Raises:
      ValueError: if `temperature` is out of range, the shapes do not go together, the labels are
        no integers or `majority` is not boolean.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, section 3
      (FedLMD-Tf).
    """
    # Equal logits are the uniform teacher.
    uniform = jnp.zeros(jnp.shape(logits))
    return label_masking_distillation(logits, uniform, labels, majority, temperature=temperature)
