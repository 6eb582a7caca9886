"""APFL: a personal model mixed with the common one."""

import jax

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods._own import below, keep_own, pair
from jaxfed.methods.method import LocalView, Method
from jaxfed.types import Array, PyTree


def apfl(*, alpha: float = 0.5) -> Method:
    """Adaptive personalised federated learning with a fixed mixture.

    w: CE(w), sent and averaged; v_i: CE(alpha v_i + (1 - alpha) w) with respect to v_i alone

    The mixture is the personal model. The authors' code weighs clients equally, as
    --aggregation=uniform does, and mixes outputs instead of parameters.

    Args:
      alpha: share of the client's model, in 0..1; 0 is FedAvg. The paper also adapts it.

    Returns:
      The method.

    Raises:
      ValueError: if alpha is out of range, or the network has batch statistics, dropout or a mask.

    Reference:
      Deng et al., Adaptive Personalized Federated Learning, 2020, algorithm 1.
    """
    check((alpha >= 0) & (alpha <= 1), 'alpha', alpha, 'in 0..1')

    def mix(own: PyTree, common: PyTree) -> PyTree:
        return jax.tree.map(lambda v, w: alpha * v + (1 - alpha) * w, own, common)

    def penalty(view: LocalView) -> Array:
        mixed = mix(view.params['own'], jax.lax.stop_gradient(view.params['model']))
        logits = view.apply({'model': mixed}, view.batch.x).logits
        return view.mean(losses.cross_entropy(logits, view.batch.y))

    def personal(params: PyTree) -> PyTree:
        return {'model': mix(params['own'], params['model']), 'own': params['own']}

    return keep_own(below('own'))._replace(adapt=pair, penalty=penalty, personal=personal)
