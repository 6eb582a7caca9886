"""One method for the first rounds and another afterwards."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.methods.chain import combine_states, neutral_hooks, part_view
from jaxfed.methods.hooks import check_hooks
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    CombineView,
    LocalView,
    MergeView,
    MessageSize,
    Method,
    RoundInfo,
    check_method,
    weighted_sum,
)
from jaxfed.types import Array, PyTree


def switch(first: Method, second: Method, *, rounds: int) -> Method:
    """Trains with one method for some rounds and with another afterwards.

    L = L_1 in the rounds 1..R, L_2 after them

    Each method has its state, which changes only in its rounds.
    The network is adapted for both. The costs that a run records are the most that a round can
    have: what both keep and upload, and the larger form of an update.

    Args:
      first: the method of the rounds 1..rounds.
      second: the method of the rounds after these.
      rounds: R, the rounds of the first method, >= 1.

    Returns:
      The combined method.

    Raises:
      ValueError: if `rounds` is below 1, a part is not a valid method, keeps parameters at the
        clients, adds noise for privacy, or delays updates.

    Reference:
      Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023, figure 8.
    """
    _check(first, second, rounds)
    parts = check_hooks(first), check_hooks(second)

    def select(round_info: RoundInfo, function: Callable[[int], PyTree]) -> PyTree:
        """Calls function(0) in the first rounds and function(1) afterwards."""
        return lax.cond(round_info.number > rounds, lambda: function(1), lambda: function(0))

    def of_both(hook: str, view: Any) -> tuple[PyTree, PyTree]:
        """What a hook of each method returns; zeros of the one that does not train this round."""

        def of_part(i: int) -> PyTree:
            function = functools.partial(getattr(parts[i], hook), part_view(view, i))
            idle = functools.partial(_zeros, function)
            return lax.cond((view.round.number > rounds) == i, function, idle)

        return of_part(0), of_part(1)

    def begin(client: ClientView) -> PyTree:
        return of_both('begin', client._replace(begun=((), ())))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        def kept(i: int) -> PyTree:
            return (*client.state[:i], states[i], *client.state[i + 1 :])

        states, uploads = zip(*of_both('finish', client), strict=True)
        return select(client.round, kept), uploads

    def trainable(view: LocalView) -> PyTree:
        def of_part(i: int) -> PyTree:
            trains = parts[i].trainable
            everything = jax.tree.map(lambda _: jnp.bool_(True), view.params)
            return trains(part_view(view, i)) if trains else everything

        return select(view.round, of_part)

    def combine(view: CombineView) -> PyTree:
        def of_part(i: int) -> PyTree:
            function = parts[i].combine or weighted_sum
            return function(view)

        return select(view.round, of_part)

    def send(client: ClientView) -> PyTree:
        return select(client.round, lambda i: parts[i].send(part_view(client, i)))

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        def merge_part(i: int) -> tuple[PyTree, PyTree]:
            update, state = parts[i].merge(part_view(view, i))
            return update, (*view.state[:i], state, *view.state[i + 1 :])

        return select(view.round, merge_part)

    def weigh(cohort: CohortView) -> Array:
        return select(cohort.round, lambda i: parts[i].weigh(cohort))

    def supervised(view: LocalView) -> Array:
        return select(view.round, lambda i: parts[i].supervised(part_view(view, i)))

    def penalty(view: LocalView) -> Array:
        return select(view.round, lambda i: parts[i].penalty(part_view(view, i)))

    def message_size(update: PyTree, size: MessageSize) -> MessageSize:
        sizes = [part.message_size(update, size) for part in parts]
        return max(sizes, key=lambda of_part: of_part.bytes)

    combined = combine_states(*parts)._replace(
        share=functools.partial(of_both, 'share'),
        begin=begin,
        weigh=weigh,
        supervised=supervised,
        penalty=penalty,
        trainable=trainable if any(part.trainable for part in parts) else None,
        send=send,
        finish=finish,
        combine=combine if any(part.combine for part in parts) else None,
        merge=merge,
        message_size=message_size,
    )
    return combined._replace(**neutral_hooks((first, second)))


def _check(first: Method, second: Method, rounds: int) -> None:
    """Raises the errors of `switch`."""
    for part in (first, second):
        check_method(part, 'both methods of switch() must be')
        if part.receive or part.personal:
            raise ValueError(
                'methods that keep parameters at the clients cannot follow or precede another '
                'method; name them first in both, as in fedper+kd,fedper+fedlmd.'
            )
        if part.privacy or part.delays:
            raise ValueError(
                'dp and fedbuff cannot follow or precede another method: epsilon needs noise in '
                'every round, and delayed updates would be lost; name them last in both, as in '
                'kd+dp,fedlmd+dp.'
            )
    if rounds < 1:
        raise ValueError(f'switch_round must be at least 1, got {rounds}.')


def _zeros(function: Callable[[], PyTree]) -> PyTree:
    """Zeros in the form of the function's value."""
    shapes = jax.eval_shape(function)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
