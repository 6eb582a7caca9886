"""Weight alignment: whether a neuron prefers the same class in two models."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxfed.types import Array


def class_preference(activations: ArrayLike, y: ArrayLike, num_classes: int) -> Array:
    """The class for which each neuron of a layer is most active.

    argmax_c mean_{x of class c} a(x)

    No neuron prefers a class without examples. Of equal means the lowest class wins, so a neuron
    that is never active prefers the first class with examples.

    Args:
      activations: a [m, F], of a layer with F neurons on m examples; average a feature map over
        its pixels, or reshape it to one neuron a pixel.
      y: [m] int32 labels.
      num_classes: C.

    Returns:
      [F] int32.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 5.1.
    """
    member = jax.nn.one_hot(jnp.asarray(y), num_classes)
    counts = jnp.sum(member, axis=0)[:, None]
    sums = jnp.matmul(member.T, jnp.asarray(activations), precision='highest')
    means = jnp.where(counts > 0, sums / jnp.maximum(counts, 1), -jnp.inf)
    return jnp.argmax(means, axis=0).astype(jnp.int32)


def alignment(preference: ArrayLike, other: ArrayLike) -> Array:
    """Share of a layer's neurons that prefer the same class in two models.

    Args:
      preference: [F] int32, of one model, from `class_preference`.
      other: [F] int32, of the other model.

    Returns:
      [], in 0..1.

    Reference:
      Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
      Learning, NeurIPS 2022, section 5.1.
    """
    return jnp.mean((jnp.asarray(preference) == jnp.asarray(other)).astype(jnp.float32))
