"""FedGKD: distillation from the mean of the last global models."""

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods.method import LocalView, MergeView, Method, ServerView
from jaxfed.types import Array, PyTree


def fedgkd(*, beta: float = 1.0, tau: float = 1.0, models: int = 5) -> Method:
    """Distillation from an ensemble of past global models.

    CE + beta tau^2 KL(softmax(zt / tau) || softmax(z / tau)), zt the logits under the mean of the
    last M global models, including the current one

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.
      models: M, >= 1; 1 is `kd`.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Yao et al., Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
      Non-IID Data, 2021, eq. 4-6.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)
    check(models >= 1, 'models', models, 'at least 1')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        # The models before the current one, newest first; missing ones are zero.
        model = params, stats
        return jax.tree.map(lambda w: jnp.zeros((models - 1, *w.shape), w.dtype), model), ()

    def share(server: ServerView) -> PyTree:
        known = jnp.minimum(server.round.number, models)
        model = server.params, server.stats
        return jax.tree.map(lambda w, old: (w + old.sum(0)) / known, model, server.state)

    def penalty(view: LocalView) -> Array:
        params, stats = view.shared
        teacher = jax.lax.stop_gradient(view.apply(params, view.batch.x, stats).logits)
        distillation = losses.kl_distillation(view.outputs.logits, teacher, temperature=tau)
        return beta * view.mean(distillation)

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        model = view.params, view.stats
        return view.update, jax.tree.map(
            lambda old, w: jnp.concatenate([w[None], old])[: models - 1], view.state, model
        )

    return Method(init=init, share=share, penalty=penalty, merge=merge)
