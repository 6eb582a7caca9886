"""FedYogi: Yogi on the server."""

import optax

from jaxfed.methods._server import two_moments
from jaxfed.methods.method import Method


def fedyogi(
    *, server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3
) -> Method:
    """Server Yogi; combines with any method, as in fedlmd+fedyogi.

    m = b1 m + (1 - b1) g, v -= (1 - b2) sign(v - g^2) g^2, w -= lr m / (sqrt(v) + eps)

    This is optax.yogi, g = -update. It starts m and v at 1e-6 and corrects their bias as Adam does;
    the paper starts v at eps^2 and corrects none.

    Args:
      server_lr: lr, the server's learning rate, > 0.
      b1: decay of the first moment, from 0 to 0.999999.
      b2: decay of the second moment, from 0 to 0.999999.
      eps: degree of adaptivity, >= 1e-30.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Reddi et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2.
    """
    return two_moments(optax.yogi, server_lr=server_lr, b1=b1, b2=b2, eps=eps)
