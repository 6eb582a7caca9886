"""FedLC and logit adjustment: the cross-entropy of logits with a margin for each class."""

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.losses._checks import check_arrays
from jaxfed.losses._softmax import as_float, masked_log_softmax, one_hot
from jaxfed.types import Array


def calibrated_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, class_margins: ArrayLike
) -> Array:
    """Softmax cross-entropy of logits minus the margins of their classes.

    -log p_y, p = softmax(z - m)

    Args:
      logits: z [B, C].
      labels: y [B], integers in 0..C-1.
      class_margins: m [C]; infinity leaves a class out of the softmax.

    Returns:
      [B], in nats; 0 for an example of a class that is left out.

    Raises:
      ValueError: if shapes do not match or the labels are not integers.

    Reference:
      Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML
      2022; Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021, eq. 10.
    """
    check_arrays(logits, labels=labels, class_margins=class_margins)
    logits, margins = as_float(logits), as_float(class_margins)
    within = jnp.broadcast_to(~jnp.isposinf(margins), logits.shape)
    shifted = logits - jnp.where(jnp.isposinf(margins), 0.0, margins)
    log_p = masked_log_softmax(shifted, within)
    return -jnp.sum(one_hot(labels, logits, None) * log_p, axis=-1)
