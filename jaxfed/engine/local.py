"""Local training of one client: its lane, its optimizer and the order of its examples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxfed.types import Array, ClientInfo, PyTree


class LocalSettings(NamedTuple):
    """What the clients do in a round."""

    local_epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    aggregation: str  # 'size' or 'uniform'
    longest: int  # examples of the largest client
    keep_models: bool = False  # whether a round gives the local models


class _Client(NamedTuple):
    """What a lane knows of the client it trains."""

    slot: Array
    info: ClientInfo
    static: PyTree
    state: PyTree
    begun: PyTree
    order: Array  # [E, M] int32, the client's examples in the order of each epoch
    key: Array  # of augmentation


class _Lane(NamedTuple):
    """One slot of the stacked axis. The engine has L of them."""

    params: PyTree
    stats: PyTree
    optimizer: optax.OptState
    client: _Client
    step: Array  # [] int32, local steps done
    loss: Array  # [] float32, sum of the objective over examples


def local_optimizer(
    learning_rate: float | Array, *, momentum: float | Array, weight_decay: float | Array
) -> optax.GradientTransformation:
    """SGD as PyTorch defines it, with coupled weight decay and heavy-ball momentum.

    g = grad + weight_decay w; m = momentum m + g; w = w - learning_rate m

    Args:
      learning_rate: step size, may be traced as the others may.
      momentum: in [0, 1); a 0 that is not traced keeps no buffer.
      weight_decay: >= 0.

    Returns:
      The optax transformation.
    """
    # What is traced may be anything; it is 0 for all where it is known.
    without = isinstance(momentum, float | int) and momentum == 0
    sgd = optax.sgd(learning_rate, momentum=None if without else momentum)
    undecayed = isinstance(weight_decay, float | int) and weight_decay == 0
    return sgd if undecayed else optax.chain(optax.add_decayed_weights(weight_decay), sgd)


def steps_per_epoch(size: Any, batch_size: int) -> Any:
    """Batches in one epoch, of numbers and of NumPy and JAX arrays alike.

    ceil(n / B)

    Args:
      size: n, examples of a client, or integers of several.
      batch_size: B.

    Returns:
      As `size`.
    """
    return -(-size // batch_size)


def epoch_order(key: Array, size: Array, longest: int) -> Array:
    """Positions 0..size-1 in random order, followed by the others up to `longest`.

    Args:
      key: random key of (client, round, epoch).
      size: [] int32, the client's examples.
      longest: M, examples of the largest client.

    Returns:
      [M] int32.
    """
    draw = jax.random.uniform(key, (longest,))
    return jnp.argsort(jnp.where(jnp.arange(longest) < size, draw, jnp.inf)).astype(jnp.int32)
