"""A round of FedAvg as a plain loop over clients, without the engine and the operations of jaxfed.

One jitted program trains one batch of one client; Python loops over batches and clients.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxfed.models.ops import Convolution
from jaxfed.types import Array, Model, PyTree

Batches = Iterable[tuple[np.ndarray, np.ndarray]]  # images [B] int32, real [B] bool


def _conv_max_pool(x: Array, w: Array, padding: str) -> Array:
    """A convolution, then a 2x2 max-pool."""
    y = lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')


PLAIN = Convolution(lax.conv_general_dilated, _conv_max_pool)


class Optimizer(NamedTuple):
    """SGD with momentum and coupled weight decay."""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0


def make_step(
    model: Model, x: Array, y: Array, to_input: Callable[[Array], Array], optimizer: Optimizer
) -> Callable[..., tuple[PyTree, PyTree]]:
    """Makes the jitted local step of one client.

    Args:
      model: the network, without batch statistics.
      x: [n, H, W, channels] images on the device.
      y: [n] labels.
      to_input: raw images -> input of the network.
      optimizer: of the clients.

    Returns:
      (parameters, velocity, images [B], real [B]) -> (parameters, velocity).
    """

    @jax.jit
    def step(
        params: PyTree, velocity: PyTree, x: Array, y: Array, images: Array, real: Array
    ) -> tuple[PyTree, PyTree]:
        def loss(params: PyTree) -> Array:
            log_p = jax.nn.log_softmax(model.apply(params, to_input(x[images])).logits)
            picked = jnp.take_along_axis(log_p, y[images][:, None], axis=1)[:, 0]
            return -jnp.sum(picked, where=real) / jnp.sum(real)

        rate, momentum, decay = optimizer
        gradient = jax.grad(loss)(params)
        velocity = jax.tree.map(
            lambda v, g, p: momentum * v + g + decay * p, velocity, gradient, params
        )
        return jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity

    return lambda params, velocity, images, real: step(params, velocity, x, y, images, real)


@jax.jit
def _add(total: PyTree, weight: float, after: PyTree, before: PyTree) -> PyTree:
    return jax.tree.map(lambda t, a, b: t + weight * (a - b), total, after, before)


def train_round(
    step: Callable[..., tuple[PyTree, PyTree]],
    params: PyTree,
    clients: Sequence[Batches],
    weights: Sequence[float],
) -> PyTree:
    """Trains one client after another, and adds the weighted mean of their updates.

    Args:
      step: from `make_step`.
      params: of the server.
      clients: the batches of each.
      weights: of each; their sum is 1.

    Returns:
      The new parameters of the server.
    """
    zeros = jax.tree.map(jnp.zeros_like, params)
    total = params
    for batches, weight in zip(clients, weights, strict=True):
        local, velocity = params, zeros
        for images, real in batches:
            local, velocity = step(local, velocity, images, real)
        total = _add(total, weight, local, params)
    return jax.block_until_ready(total)


def draw_batches(
    examples: np.ndarray, *, epochs: int, batch_size: int, rng: np.random.Generator
) -> Batches:
    """The batches of a client's epochs, each in random order; repeats fill the last batch."""
    for _ in range(epochs):
        order = rng.permutation(examples)
        for start in range(0, len(order), batch_size):
            places = np.arange(start, start + batch_size)
            images = order[np.minimum(places, len(order) - 1)]
            yield images.astype(np.int32), places < len(order)
