"""FedAvg: plain local training, weighted mean of the clients' parameters."""

from jaxfed.methods.method import Method


def fedavg() -> Method:
    """Federated averaging, the neutral element of `chain`.

    w = w_g + sum_i p_i (w_i - w_g), p_i = n_i / sum n by default (--aggregation)

    Returns:
      The method.

    Reference:
      McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
      AISTATS 2017, algorithm 1.
    """
    return Method()
