"""FedGKD: distillation from the mean of the last global models."""

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.methods._check import check, check_temperature
from jaxfed.methods._weights import has_arrived
from jaxfed.methods.method import LocalView, MergeView, Method, ServerView
from jaxfed.types import Array, PyTree


def fedgkd(*, beta: float = 0.1, tau: float = 1.0, models: int = 5) -> Method:
    """Distillation from an ensemble of past global models.

    CE + beta tau^2 KL(softmax(zt / tau) || softmax(z / tau)), zt the logits under the mean of the
    last M global models, including the current one

    The initial model is not among them, so that there is no distillation before the first update;
    after another method, before the first update of this one.

    Args:
      beta: weight of the distillation, >= 0.
      tau: temperature, > 0.
      models: M, >= 1; 1 is `kd` after round 1.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range.

    Reference:
      Yao et al., Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
      Non-IID Data, 2021, eq. 4-6, with the default beta and the first round of the released code.
    """
    check(beta >= 0, 'beta', beta, 'at least 0')
    check_temperature(tau)
    check(models >= 1, 'models', models, 'at least 1')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        # The models before the current one, newest first, and their number; missing ones are zero.
        # `trained` is whether the current one is not the initial one.
        model = params, stats
        past = jax.tree.map(lambda w: jnp.zeros((models - 1, *w.shape), w.dtype), model)
        return {'past': past, 'number': jnp.zeros((), jnp.int32), 'trained': jnp.bool_(False)}, ()

    def share(server: ServerView) -> PyTree:
        known = 1 + server.state['number']
        model, past = (server.params, server.stats), server.state['past']
        mean = jax.tree.map(lambda w, old: (w + old.sum(0)) / known, model, past)
        return mean, server.state['trained']

    def penalty(view: LocalView) -> Array:
        (params, stats), trained = view.shared
        teacher = view.evaluate(params, view.batch.x, stats).logits
        distillation = losses.kl_distillation(view.outputs.logits, teacher, temperature=tau)
        return jnp.where(trained, beta * view.mean(distillation), 0.0)

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        changed = has_arrived(view.update)  # a round without an update makes no model
        trained = view.state['trained']
        enters = trained & changed

        def insert(old: Array, w: Array) -> Array:
            return jnp.where(enters, jnp.concatenate([w[None], old])[: models - 1], old)

        past = jax.tree.map(insert, view.state['past'], (view.params, view.stats))
        number = jnp.minimum(view.state['number'] + enters, models - 1)
        return view.update, {'past': past, 'number': number, 'trained': trained | changed}

    return Method(init=init, share=share, penalty=penalty, merge=merge, reads_server=True)
