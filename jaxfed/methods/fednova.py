"""FedNova: clients' updates are normalised by their numbers of local steps."""

import jax.numpy as jnp

from jaxfed.methods._steps import effective_steps
from jaxfed.methods.method import CohortView, Method
from jaxfed.types import Array


def fednova() -> Method:
    """Updates normalised by local steps.

    w_g + tau sum_i p_i (w_i - w_g) / a_i, tau = sum_i p_i a_i

    p_i is the client's weight, a_i its number of local steps; with local momentum, their effective
    number. With equal steps this is FedAvg.

    Returns:
      The method.

    Reference:
      Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
      Optimization, NeurIPS 2020, eq. 6.
    """

    def weigh(cohort: CohortView) -> Array:
        steps = effective_steps(cohort.steps, cohort.round.momentum)
        return cohort.weights / steps * jnp.sum(cohort.weights * steps)

    return Method(weigh=weigh, counts_steps=True)
