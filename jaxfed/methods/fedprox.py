"""FedProx: a proximal term keeps the local parameters close to the global ones."""

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import Method


def fedprox(*, mu: float = 0.1) -> Method:
    """Proximal term on the parameters.

    CE + mu / 2 ||w - w_g||^2

    Args:
      mu: weight of the proximal term, >= 0.

    Returns:
      The method.

    Raises:
      ValueError: if mu is negative.

    Reference:
      Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, eq. 2.
    """
    check(mu >= 0, 'mu', mu, 'at least 0')
    return Method(penalty=lambda view: mu * losses.proximal(view.params, view.global_params))
