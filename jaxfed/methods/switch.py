"""One method for the first rounds and another afterwards."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxfed.methods.chain import combine_states, part_view
from jaxfed.methods.hooks import check_hooks
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    CombineView,
    LocalView,
    MergeView,
    Method,
    RoundInfo,
    check_method,
    weighted_sum,
)
from jaxfed.types import Array, PyTree


def switch(first: Method, second: Method, *, rounds: int) -> Method:
    """Trains with one method for some rounds and with another afterwards.

    L = L_1 in the rounds 1..R, L_2 after them

    Each method has its state, which changes only in its rounds. The network is adapted for both.

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
    for part in (first, second):
        check_method(part, 'both methods of switch() must be')
        if part.receive or part.personal:
            raise ValueError(
                'methods that keep parameters at the clients cannot follow or precede another '
                'method; train with one of them alone.'
            )
        if part.privacy or part.delays:
            raise ValueError(
                'dp and fedbuff cannot follow or precede another method: epsilon needs noise in '
                'every round, and delayed updates would be lost; train with one of them alone.'
            )
    if rounds < 1:
        raise ValueError(f'switch_round must be at least 1, got {rounds}.')
    parts = check_hooks(first), check_hooks(second)

    def select(round_info: RoundInfo, function: Callable[[int], PyTree]) -> PyTree:
        """Calls function(0) in the first rounds and function(1) afterwards."""
        index = (round_info.number > rounds).astype(jnp.int32)
        return lax.switch(index, [lambda: function(0), lambda: function(1)])

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        def finish_part(i: int) -> tuple[PyTree, PyTree]:
            view = part_view(client, i)
            shape = jax.eval_shape(lambda: parts[i].finish(view)[1])
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
            active = (client.round.number > rounds).astype(jnp.int32) == i
            return lax.cond(active, lambda: parts[i].finish(view), lambda: (view.state, zeros))

        states, uploads = zip(finish_part(0), finish_part(1), strict=True)
        return states, uploads

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

    return combine_states(*parts)._replace(
        weigh=weigh,
        supervised=supervised,
        penalty=penalty,
        trainable=trainable if any(part.trainable for part in parts) else None,
        send=send,
        finish=finish,
        combine=combine if any(part.combine for part in parts) else None,
        merge=merge,
    )
