"""FedCurv: parameters that matter to the other clients are held where those left them."""

import jax
import jax.numpy as jnp
import optax

from jaxfed import losses
from jaxfed.methods._check import check
from jaxfed.methods.method import ClientView, LocalView, MergeView, Method
from jaxfed.types import Array, Batch, PyTree


def fedcurv(*, lam: float = 1e-3) -> Method:
    """Curvature of the other clients' losses as a penalty.

    CE + lambda sum_j (w - w_j)^T diag(F_j) (w - w_j), j the other clients of the last round,
    F_j = mean over j's examples of the squared gradient of CE at w_j

    The sums of F_j and F_j w_j are all that is needed; a constant that does not depend on w is left
    out. In the first round there is no penalty.

    Args:
      lam: lambda, weight of the penalty, >= 0; FedSSD's tables take 1e-3 on CIFAR-10, 1e-4 on
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
        return sums, {**sums, 'round': jnp.zeros((), jnp.int32)}

    def begin(client: ClientView) -> PyTree:
        # Who was in the last round takes its own share out of the sums.
        recent = client.state['round'] == client.round.number - 1
        own = {name: client.state[name] for name in client.shared}
        return jax.tree.map(lambda every, own: every - recent * own, client.shared, own)

    def penalty(view: LocalView) -> Array:
        quadratic = jax.tree.map(
            lambda w, f, fw: jnp.vdot(w, f * w - 2 * fw),
            view.params,
            view.begun['fisher'],
            view.begun['fisher_params'],
        )
        return lam * sum(jax.tree.leaves(quadratic), jnp.zeros(()))

    def fisher(client: ClientView) -> PyTree:
        def loss(params: PyTree, x: Array, y: Array) -> Array:
            logits = client.apply(params, x[None], client.stats).logits
            return losses.cross_entropy(logits, y[None])[0]

        def add(total: PyTree, example: Batch) -> tuple[PyTree, None]:
            gradient = jax.grad(loss)(client.params, example.x, example.y)
            return jax.tree.map(lambda t, g: t + example.mask * g**2, total, gradient), None

        # An example after the other: all gradients of a batch at once would take its memory times
        # the parameters.
        total = client.fold(
            lambda total, batch: jax.lax.scan(add, total, batch)[0],
            optax.tree.zeros_like(client.params),
        )
        return jax.tree.map(lambda t: t / jnp.maximum(client.info.size, 1), total)

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        own = fisher(client)
        sums = {'fisher': own, 'fisher_params': jax.tree.map(jnp.multiply, own, client.params)}
        return {**sums, 'round': client.round.number}, sums

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        return view.update, view.uploads

    return Method(
        init=init,
        share=lambda server: server.state,
        begin=begin,
        penalty=penalty,
        finish=finish,
        merge=merge,
        # The server knows w_j and can multiply.
        sent=lambda upload: upload['fisher'],
    )
