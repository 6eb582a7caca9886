"""FedAdagrad: Adagrad on the server."""

import optax

from jaxfed.methods._check import check
from jaxfed.methods._server import server_optimizer
from jaxfed.methods.method import Method


def fedadagrad(*, server_lr: float = 0.01, eps: float = 1e-3, initial: float = 0.0) -> Method:
    """Server Adagrad; combines with any method, as in fedlmd+fedadagrad.

    v += g^2, w -= lr g / sqrt(v + eps)

    This is optax.adagrad, g = -update. The paper adds eps outside the root and starts v at eps^2.

    Args:
      server_lr: lr, the server's learning rate, > 0.
      eps: degree of adaptivity, >= 1e-30.
      initial: v before the first round, >= 0.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2.
    """
    check(server_lr > 0, 'server_lr', server_lr, 'above 0')
    check(eps >= 1e-30, 'eps', eps, 'at least 1e-30')
    check(initial >= 0, 'initial', initial, 'at least 0')
    return server_optimizer(optax.adagrad(server_lr, initial_accumulator_value=initial, eps=eps))
