"""How far local steps carry: momentum makes a step's gradient act again in later steps."""

import jax.numpy as jnp

from jaxfed.types import Array


def effective_steps(steps: Array, momentum: float) -> Array:
    """The L1 norm of the weights with which the gradients of local training enter its update.

    K for plain SGD, with momentum rho: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)

    Args:
      steps: K, local steps, any shape.
      momentum: rho in [0, 1), reset at the start of the round.

    Returns:
      float32, of the same shape, at least 1 so that it divides.

    Reference:
      Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
      Optimization, NeurIPS 2020, section 4.
    """
    k = jnp.asarray(steps, jnp.float32)
    rest = 1 - momentum
    return jnp.maximum((k - momentum * (1 - momentum**k) / rest) / rest, 1.0)
