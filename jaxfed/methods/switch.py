"""One method for the first rounds and another afterwards."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.methods.method import (
    ClientView,
    CohortView,
    LocalView,
    MergeView,
    Method,
    RoundInfo,
    part_of,
)
from jaxfed.types import Array, PyTree


def switch(first: Method, second: Method, *, rounds: int) -> Method:
    """Train by one method for some rounds and by another from then on.

    Both keep their states, which do not change while the other is active; the network is adapted
    for both.

    Args:
      first: the method of rounds 1..rounds.
      second: the method of the rounds after.
      rounds: of the first method, >= 1.

    Returns:
      The combined method.

    Raises:
      ValueError: if `rounds` is below 1.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, figure 8.
    """
    if rounds < 1:
        raise ValueError(f'switch_round={rounds} must be at least 1.')
    parts = first, second

    def active(info: RoundInfo) -> Array:
        return (info.number > rounds).astype(jnp.int32)

    def choose(hook: str, view: Any, info: RoundInfo) -> Array:
        branches = [lambda i=i: getattr(parts[i], hook)(part_of(view, i)) for i in range(2)]
        return lax.switch(active(info), branches)

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        states = [part.init(params, stats) for part in parts]
        return tuple(server for server, _ in states), tuple(client for _, client in states)

    def begin(client: ClientView) -> PyTree:
        client = client._replace(begun=((), ()))
        return tuple(part.begin(part_of(client, i)) for i, part in enumerate(parts))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        def of(i: int) -> tuple[PyTree, PyTree]:
            view = part_of(client, i)
            shape = jax.eval_shape(lambda: parts[i].finish(view)[1])
            idle = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
            return lax.cond(
                active(client.round) == i, lambda: parts[i].finish(view), lambda: (view.state, idle)
            )

        done = of(0), of(1)
        return tuple(state for state, _ in done), tuple(upload for _, upload in done)

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        def by(i: int) -> tuple[PyTree, PyTree]:
            update, state = parts[i].merge(part_of(view, i))
            states = list(view.state)
            states[i] = state
            return update, tuple(states)

        return lax.switch(active(view.round), [lambda: by(0), lambda: by(1)])

    def weigh(cohort: CohortView) -> Array:
        return lax.switch(
            active(cohort.round), [lambda: first.weigh(cohort), lambda: second.weigh(cohort)]
        )

    def supervised(view: LocalView) -> Array:
        return choose('supervised', view, view.round)

    def penalty(view: LocalView) -> Array:
        return choose('penalty', view, view.round)

    return Method(
        init=init,
        prepare=lambda info: tuple(part.prepare(info) for part in parts),
        share=lambda server: tuple(part.share(part_of(server, i)) for i, part in enumerate(parts)),
        weigh=weigh,
        begin=begin,
        supervised=supervised,
        penalty=penalty,
        finish=finish,
        merge=merge,
        adapt=lambda model: second.adapt(first.adapt(model)),
        sent=lambda upload: tuple(part.sent(upload[i]) for i, part in enumerate(parts)),
        auxiliary=max(part.auxiliary for part in parts),
    )
