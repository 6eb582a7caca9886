"""Ditto: a personal model beside the common one."""

import jax

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods._own import below, keep_own, pair
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array


def ditto(*, lam: float = 1.0) -> Method:
    """A personal model v_i, drawn towards the global one, beside FedAvg's.

    v_i: CE + lambda / 2 ||v_i - w_g||^2; w: CE, sent and averaged

    Both train on the same batches with the same optimizer.

    Args:
      lam: lambda, weight of the distance, >= 0; 0 trains v_i alone.

    Returns:
      The method.

    Raises:
      ValueError: if lam is negative, or the network has batch statistics, dropout or a mask.

    Reference:
      Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
      algorithm 1.
    """
    check(lam >= 0, 'lam', lam, 'at least 0')

    def penalty(view: LocalView) -> Array:
        own, common = view.params['own'], jax.lax.stop_gradient(view.global_params['model'])
        logits = view.apply({'model': own}, view.batch.x).logits
        loss = view.mean(losses.cross_entropy(logits, view.batch.y))
        return loss + lam * losses.proximal(own, common)

    return keep_own(below('own'))._replace(
        adapt=pair,
        penalty=penalty,
        personal=lambda params: {'model': params['own'], 'own': params['own']},
    )
