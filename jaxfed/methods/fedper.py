"""FedPer: every client keeps a classifier of its own."""

from jaxfed.methods._own import below, keep_own
from jaxfed.methods.method import Method


def fedper() -> Method:
    """Personal classifier, common features.

    w = (body, head_i); only the body is sent and averaged

    The server's classifier stays the initial one (but for the noise of `dp`, and what a server
    optimizer makes of a zero update), so the global accuracy says little; --personal_test measures
    the clients' models.

    Returns:
      The method.

    Raises:
      ValueError: if the network's parameters hold no 'classifier'.

    Reference:
      Arivazhagan et al., Federated Learning with Personalization Layers, 2019, algorithms 1 and 2.
    """
    return keep_own(below('classifier'))
