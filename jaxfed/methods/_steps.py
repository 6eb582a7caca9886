"""Effective local steps: momentum repeats the gradient of a step in later steps."""

import jax.numpy as jnp

from jaxfed.types import Array


def effective_steps(steps: Array, momentum: float | Array) -> Array:
    """Computes the L1 norm of the weights of the gradients in a local update, at least 1.

    K for plain SGD, with momentum rho: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)

    Reference:
      Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
      Optimization, NeurIPS 2020, section 4.
    """
    k, rho = jnp.asarray(steps, jnp.float32), jnp.asarray(momentum, jnp.float32)
    rest = 1 - rho
    # expm1 computes 1 - rho^K, because the terms of the numerator nearly cancel for large rho.
    decayed = -jnp.expm1(k * jnp.log(jnp.maximum(rho, 1e-30)))
    direct = (k - rho * decayed / rest) / rest
    # Where they cancel altogether, its binomial series C(K+1, 2) - C(K+1, 3) (1 - rho) + ...
    term = series = k * (k + 1) / 2
    for i in range(3, 9):
        term = -term * rest * (k + 2 - i) / i
        series = series + term
    return jnp.maximum(jnp.where(k * rest < 0.5, series, direct), 1.0)
