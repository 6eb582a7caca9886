"""FedCAD: self-distillation with a weight for each class."""

from typing import Literal

import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import ClientView, LocalView, Method, ServerView
from jaxfed.types import Array, Batch


def fedcad(
    *,
    beta: float = 0.25,
    gamma: float = 0.5,
    tau: float = 2.0,
    source: Literal['server', 'client'] = 'server',
    auxiliary: int = 32,
) -> Method:
    """Class-wise adaptive self-distillation.

    (1 - a_y) CE + a_y L_d, L_d = -sum_c pg_c log p_c, both softmaxes at temperature tau,
    a_c = (gamma - beta) / 2 E[2 pg_c - 1 | c] + (gamma + beta) / 2

    The expectation is over the server's auxiliary data (the paper) or the client's data (the
    two-page abstract), and is estimated every round. beta = gamma = a is FedLSD with alpha = a.

    Args:
      beta: lower bound of the distillation weight.
      gamma: upper bound; 0 <= beta <= gamma <= 1.
      tau: temperature, > 0.
      source: 'server' or 'client', the data on which the weights are estimated.
      auxiliary: default number of examples of each class on the server, >= 1; the largest counts in
        a combination; 'client' uses none.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      He et al., Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning, 2022,
      eq. 5 and 6.
      source=client: its student abstract, AAAI 2022.
    """
    check(
        (beta >= 0) & (beta <= gamma) & (gamma <= 1),
        'beta, gamma',
        (beta, gamma),
        'such that 0 <= beta <= gamma <= 1',
    )
    check_temperature(tau)
    check(source in ('server', 'client'), 'source', source, "'server' or 'client'")
    check(auxiliary >= 1, 'auxiliary', auxiliary, 'at least 1')

    def share(server: ServerView) -> Array:
        assert server.auxiliary is not None  # because `auxiliary` is above 0
        x, y, _ = server.auxiliary
        return losses.class_credibility(
            server.predict(x), y, beta=beta, gamma=gamma, temperature=tau
        )

    def begin(client: ClientView) -> Array:
        def add(sums: tuple[Array, Array], batch: Batch) -> tuple[Array, Array]:
            logits = client.apply(client.global_params, batch.x).logits
            phi, count = losses.class_credibility_sums(
                logits, batch.y, temperature=tau, where=batch.mask
            )
            return sums[0] + phi, sums[1] + count

        zeros = jnp.zeros(client.info.label_counts.shape)
        phi, count = client.fold(add, (zeros, zeros))
        return losses.class_credibility_from_sums(phi, count, beta=beta, gamma=gamma)

    def supervised(view: LocalView) -> Array:
        logits, labels = view.outputs.logits, view.batch.y
        class_weights = view.shared if source == 'server' else view.begun
        distillation = losses.class_weighted_distillation(
            logits, view.teacher.logits, labels, class_weights, temperature=tau
        )
        return (1 - class_weights[labels]) * losses.cross_entropy(logits, labels) + distillation

    if source == 'server':
        return Method(share=share, supervised=supervised, auxiliary=auxiliary, reads_server=True)
    return Method(begin=begin, supervised=supervised)
