"""FedCurv: a penalty keeps the parameters that are important to other clients in place."""

import jax
import jax.numpy as jnp
import optax

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import ClientView, LocalView, Method
from jaxfed.types import Array, Batch, PyTree


def fedcurv(*, lam: float = 1e-3) -> Method:
    """Curvature of the other clients' losses as a penalty.

    CE + lambda sum_j (w - w_j)^T diag(F_j) (w - w_j), j the other clients of the last round,
    F_j = mean over j's examples of the squared gradient of CE at w_j

    The server sends only the sums of F_j and F_j w_j. The constant w_j^T diag(F_j) w_j is omitted.
    The first round has no penalty.

    Args:
      lam: lambda, weight of the penalty, >= 0; FedSSD's tables use 1e-3 on CIFAR-10, 1e-4 on
        CIFAR-100 and 1e-5 on Tiny-ImageNet.

    Returns:
      The method.

    Raises:
      ValueError: if lam is negative.

    Reference:
      Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019, eq. 4.
    """
    check(lam >= 0, 'lam', lam, 'at least 0')

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        zeros = optax.tree.zeros_like(params)
        sums = {'fisher': zeros, 'fisher_params': zeros}
        return (state := {'sums': sums, 'round': jnp.zeros((), jnp.int32)}), state

    def begin(client: ClientView) -> PyTree:
        # Subtracts the client's share if it is part of the sums, which are of the last round with
        # an update.
        recent = client.state['round'] == client.shared['round']
        total, share = client.shared['sums'], client.state['sums']
        return jax.tree.map(lambda total, share: total - recent * share, total, share)

    def penalty(view: LocalView) -> Array:
        factors = jax.tree.map(
            lambda w, f, fw: f * w - 2 * fw,
            view.params,
            view.begun['fisher'],
            view.begun['fisher_params'],
        )
        return lam * optax.tree.vdot(view.params, factors)

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        def loss(params: PyTree, x: Array, y: Array) -> Array:
            logits = client.apply(params, x[None], client.stats).logits
            return losses.cross_entropy(logits, y[None])[0]

        def add(total: PyTree, example: Batch) -> tuple[PyTree, None]:
            gradient = jax.grad(loss)(client.params, example.x, example.y)
            return jax.tree.map(lambda t, g: t + example.mask * g**2, total, gradient), None

        # One example at a time: the gradients of a batch would need B times the parameters' memory.
        total = client.fold(
            lambda total, batch: jax.lax.scan(add, total, batch)[0],
            optax.tree.zeros_like(client.params),
        )
        fisher = jax.tree.map(lambda t: t / jnp.maximum(client.info.size, 1), total)
        upload = {'fisher': fisher, 'fisher_params': optax.tree.mul(fisher, client.params)}
        return {'sums': upload, 'round': client.round.number}, upload

    return Method(
        init=init,
        share=lambda server: server.state,
        begin=begin,
        penalty=penalty,
        finish=finish,
        uploads=True,
        merge=lambda view: (view.update, {'sums': view.uploads, 'round': view.round.number}),
        # The server knows w_j and can compute F_j w_j.
        sent=lambda upload: upload['fisher'],
    )
