"""FedAvgM: momentum on the server."""

from typing import Literal

import optax

from jaxfed.methods._check import check
from jaxfed.methods._server import server_optimizer
from jaxfed.methods.method import Method


def fedavgm(
    *,
    beta: float = 0.7,
    server_lr: float = 1.0,
    form: Literal['heavy_ball', 'ema', 'nesterov'] = 'heavy_ball',
) -> Method:
    """Server momentum; combines with any method, as in fedlmd+fedavgm.

    heavy_ball: m = beta m + update, w += lr m; ema: m = beta m + (1 - beta) update, w += lr m;
    nesterov: m = beta m + update, w += lr (update + beta m)

    Args:
      beta: momentum from 0 to 0.999999.
      server_lr: lr, the server's learning rate, > 0.
      form: one of the equations above.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
      Classification, 2019, section 4.3.
    """
    check((beta >= 0) & (beta <= 0.999999), 'beta', beta, 'from 0 to 0.999999')
    check(server_lr > 0, 'server_lr', server_lr, 'above 0')
    check(form in ('heavy_ball', 'ema', 'nesterov'), 'form', form, 'heavy_ball, ema or nesterov')
    if form == 'ema':
        mean = optax.ema(beta, debias=False)
        return server_optimizer(optax.chain(mean, optax.scale_by_learning_rate(server_lr)))
    return server_optimizer(optax.sgd(server_lr, momentum=beta, nesterov=form == 'nesterov'))
