"""Optimizers of local training by name; `OPTIMIZERS['mine'] = mine` adds one."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxfed.types import Array, PyTree

Number = float | Array


def sgd(
    learning_rate: Number, momentum: Number, weight_decay: Number, *, nesterov: bool = False
) -> optax.GradientTransformation:
    """SGD as PyTorch defines it, with coupled weight decay and heavy-ball momentum.

    g = grad + weight_decay w; m = momentum m + g; w = w - learning_rate m
    """
    # A traced number may have any value; a number that is 0 for all experiments is not traced.
    no_momentum = isinstance(momentum, float | int) and momentum == 0
    step = optax.sgd(learning_rate, None if no_momentum else momentum, nesterov)
    return _decayed(weight_decay, step)


def nesterov(
    learning_rate: Number, momentum: Number, weight_decay: Number
) -> optax.GradientTransformation:
    """SGD with Nesterov's momentum and coupled weight decay."""
    return sgd(learning_rate, momentum, weight_decay, nesterov=True)


def adamw(
    learning_rate: Number, momentum: Number, weight_decay: Number
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay."""
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def of_gradient(
    optimizer: Callable[..., optax.GradientTransformation],
) -> Callable[..., optax.GradientTransformation]:
    """An optimizer of the learning rate alone, with coupled weight decay."""
    return functools.partial(_of_gradient, optimizer)


def _of_gradient(
    optimizer: Callable[..., optax.GradientTransformation],
    learning_rate: Number,
    momentum: Number,
    weight_decay: Number,
) -> optax.GradientTransformation:
    return _decayed(weight_decay, optimizer(learning_rate))


def _decayed(
    weight_decay: Number, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    no_decay = isinstance(weight_decay, float | int) and weight_decay == 0
    return (
        optimizer if no_decay else optax.chain(optax.add_decayed_weights(weight_decay), optimizer)
    )


# Name -> (learning rate of the round, momentum, weight decay) -> optimizer
OPTIMIZERS: dict[str, Callable[[Number, Number, Number], optax.GradientTransformation]] = {
    'sgd': sgd,
    'nesterov': nesterov,
    'adam': of_gradient(optax.adam),
    'adamw': adamw,
    'adagrad': of_gradient(optax.adagrad),
    'rmsprop': of_gradient(optax.rmsprop),
}
BUILT_IN = tuple(OPTIMIZERS.values())


def reads_momentum(name: str) -> bool:
    """Whether an optimizer of `OPTIMIZERS` depends on the momentum."""
    make = OPTIMIZERS[name]
    return make is not adamw and getattr(make, 'func', None) is not _of_gradient


def of_each_array(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer with a state of each array, which only steps that train the array change.

    `update` takes a tree of bools `mask`, whether a step trains an array. In PyTorch, too, an
    optimizer skips a parameter without gradient.
    """

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(optimizer.init, params)

    def update(
        gradient: PyTree, states: PyTree, params: PyTree, *, mask: PyTree
    ) -> tuple[PyTree, PyTree]:
        def of_array(g: Array, state: PyTree, w: Array, keep: Array) -> tuple[Array, PyTree]:
            update, new = optimizer.update(g, state, w)
            new = jax.tree.map(lambda n, old: jnp.where(keep, n, old), new, state)
            return jnp.where(keep, update, 0), new

        gradients = jax.tree.leaves(gradient)
        structure: Any = jax.tree.structure(gradient)
        others = (structure.flatten_up_to(tree) for tree in (states, params, mask))
        updates, new = zip(*map(of_array, gradients, *others), strict=True)
        return structure.unflatten(updates), structure.unflatten(new)

    return optax.GradientTransformationExtraArgs(init, update)


def local_optimizer(
    name: str,
    learning_rate: Number,
    *,
    momentum: Number,
    weight_decay: Number,
    clip_norm: float = 0.0,
    accumulate_steps: int = 1,
    each_array: bool = False,
) -> optax.GradientTransformation:
    """The optimizer of a client, which starts anew in every round.

    Args:
      name: a key of `OPTIMIZERS`.
      learning_rate: of the round.
      momentum: of `sgd` and `nesterov`.
      weight_decay: coupled, as in PyTorch; decoupled with `adamw`.
      clip_norm: largest norm of a step's gradient, without weight decay; 0 for no limit.
      accumulate_steps: batches whose mean gradient makes a step; the last ones of a round that
        are fewer make none.
      each_array: whether it is `of_each_array`, of a method that trains some arrays in a step.
    """
    optimizer = OPTIMIZERS[name](learning_rate, momentum, weight_decay)
    optimizer = of_each_array(optimizer) if each_array else optimizer
    if clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)
    if accumulate_steps > 1:
        optimizer = optax.MultiSteps(optimizer, accumulate_steps).gradient_transformation()
    return optimizer
