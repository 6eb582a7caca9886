"""Malicious clients, to test robust sums; --malicious and --attack add them to a method."""

import jax
import jax.numpy as jnp
import optax

from jaxfed.methods.method import ClientView, Method
from jaxfed.types import PyTree


def sign_flip(*, clients: int, scale: float) -> Method:
    """The first clients send their update with the opposite sign.

    u_i' = -scale u_i

    Args:
      clients: number of malicious clients, those with the lowest ids.
      scale: factor of the update.

    Returns:
      The method, to be the first part of a `chain`.

    Reference:
      Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from
      Heterogeneous Datasets, AAAI 2019, section 5.
    """

    def send(client: ClientView) -> PyTree:
        factor = jnp.where(client.info.id < clients, -scale, 1.0)
        return optax.tree.scale(factor, client.update)

    return Method(send=send, alters_messages=True)


def gaussian(*, clients: int, scale: float) -> Method:
    """The first clients send noise.

    u_i' = scale ||u_i|| z / ||z||, z normal

    Args:
      clients: number of malicious clients, those with the lowest ids.
      scale: norm of the noise relative to that of the update.

    Returns:
      The method, to be the first part of a `chain`.

    Reference:
      Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
      NeurIPS 2017, section 6.
    """

    def send(client: ClientView) -> PyTree:
        noise = optax.tree.random_like(client.key, client.update, jax.random.normal)
        factor = scale * optax.tree.norm(client.update) / optax.tree.norm(noise)
        malicious = client.info.id < clients
        return jax.tree.map(lambda u, z: jnp.where(malicious, factor * z, u), client.update, noise)

    return Method(send=send, alters_messages=True)


ATTACKS = {'sign_flip': sign_flip, 'gaussian': gaussian}
