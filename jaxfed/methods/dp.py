"""DP-FedAvg: differential privacy of clients in the central model."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods._check import check
from jaxfed.methods.method import ClientView, MergeView, Method, Privacy
from jaxfed.types import PyTree


def dp(*, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5) -> Method:
    """Clipped updates of equal weight, and Gaussian noise on their sum.

    update = 1 / m (sum_i u_i min(1, clip / ||u_i||) + noise clip N(0, I)), m the mean cohort size

    A run records the epsilon of its rounds, of neighbouring sets of clients. The noise follows
    --batch_seed, so runs are reproducible; a server of jaxfed.flower draws it in secret. An update
    that is not finite counts as zero.

    Args:
      clip: largest norm of a client's update, > 0.
      noise: standard deviation of the noise in multiples of `clip`, 0 or >= 1e-6; less would be
        lost in rounding.
      delta: probability with which the bound epsilon may fail, > 0 and < 1; a run of N
        clients needs less than 1 / N.

    Returns:
      The method.

    Raises:
      ValueError: if a hyper-parameter is out of range, or the network has batch statistics.

    Reference:
      McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018,
      algorithm 1, with flat clipping and the fixed denominator of equation 1.
    """
    check(clip > 0, 'clip', clip, 'above 0')
    check((noise == 0) | (noise >= 1e-6), 'noise', noise, '0 or at least 1e-6')
    check((delta > 0) & (delta < 1), 'delta', delta, 'above 0 and below 1')

    def send(client: ClientView) -> PyTree:
        norm = optax.tree.norm(client.update)
        factor = jnp.minimum(1.0, clip / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
        # One client must not change the sum by more than its norm, also if its training diverges.
        finite = jnp.isfinite(norm)
        return jax.tree.map(lambda u: jnp.where(finite, factor * u, 0), client.update)

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        scale = noise * clip / view.round.expected_size
        draws = optax.tree.random_like(view.key, view.update)
        return jax.tree.map(lambda u, z: u + scale * z, view.update, draws), view.state

    return Method(
        weigh=lambda cohort: (cohort.weights > 0) / cohort.round.expected_size,
        send=send,
        merge=merge,
        equal_weights=True,
        alters_messages=True,
        privacy=Privacy(noise, delta),
    )
