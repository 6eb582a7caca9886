"""Combinations of methods, which are methods again."""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxfed.methods.hooks import check_hooks
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    LocalView,
    MergeView,
    MessageSize,
    Method,
    ServerView,
    check_method,
)
from jaxfed.types import Array, Model, PyTree

_NEUTRAL = Method()
_FACTS = (
    'equal_weights', 'counts_steps', 'uploads', 'reads_server', 'alters_messages',
    'ignores_weights', 'delays',
)  # fmt: skip
_CHANGING = ('weigh', 'supervised', 'send', 'merge', 'adapt')  # hooks that conflicts depend on
_BY_PART = ('static', 'state', 'shared', 'begun', 'uploads')


def part_view(view: Any, i: int) -> Any:
    """Selects the values of part `i` in a view of a combination, with a random key of its own.

    Values that are None, as in a view after the last round, stay so.
    """
    fields = {f: v[i] for f in _BY_PART if (v := getattr(view, f, None)) is not None}
    if getattr(view, 'key', None) is not None:
        fields['key'] = jax.random.fold_in(view.key, i)
    return view._replace(**fields)


def combine_states(*parts: Method) -> Method:
    """Combines the hooks that run outside of a round; states become tuples of states."""

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        server_states, client_states = zip(
            *(part.init(params, stats) for part in parts), strict=True
        )
        return server_states, client_states

    def adapt(model: Model) -> Model:
        for part in parts:
            model = part.adapt(model)
        return model

    def personal(params: PyTree) -> PyTree:
        for part in parts:
            params = part.personal(params) if part.personal else params
        return params

    def own(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        masks = [part.own(params, stats) for part in parts if part.own]
        kept = jax.tree.map(lambda *of_parts: sum(of_parts), *masks)
        if any(number > 1 for number in jax.tree.leaves(kept)):
            raise ValueError('two of the combined methods keep the same parameters; remove one.')
        return jax.tree.map(bool, kept)

    facts: dict[str, Any] = {name: any(getattr(p, name) for p in parts) for name in _FACTS}

    return Method(
        init=init,
        prepare=lambda info: tuple(part.prepare(info) for part in parts),
        adapt=adapt,
        personal=personal if any(part.personal for part in parts) else None,
        own=own if any(part.own for part in parts) else None,
        sent=lambda upload: tuple(part.sent(upload[i]) for i, part in enumerate(parts)),
        auxiliary=max(part.auxiliary for part in parts),
        privacy=next((part.privacy for part in parts if part.privacy), None),
        **facts,
    )


def neutral_hooks(parts: Sequence[Method]) -> dict[str, Any]:
    """The hooks that no part has, as the checks of other combinations compare them."""
    hooks = {name: getattr(_NEUTRAL, name) for name in _CHANGING}
    return {
        name: hook
        for name, hook in hooks.items()
        if all(getattr(part, name) is hook for part in parts)
    }


def _check(parts: Sequence[Method], names: Sequence[str]) -> None:
    """Raises the errors of `chain`."""
    if not parts:
        raise ValueError('chain() needs at least one method.')
    for part in parts:
        check_method(part, 'each argument of chain() must be')
    replacing = sum(part.supervised is not _NEUTRAL.supervised for part in parts)
    if replacing > 1:
        raise ValueError(
            f'{replacing} of the combined methods replace the cross-entropy, so they do not add '
            'up; keep one of them.'
        )
    combining = sum(part.combine is not None for part in parts)
    if combining > 1:
        raise ValueError(
            f'{combining} of the combined methods replace the weighted sum of updates; keep one '
            'of them.'
        )
    pairs = itertools.permutations(enumerate(zip(names, parts, strict=True)), 2)
    for (i, (a, part)), (j, (b, other)) in pairs:
        if conflict := next(_conflicts(a, part, b, other, later=j > i), None):
            raise ValueError(conflict)


def _conflicts(a: str, part: Method, b: str, other: Method, *, later: bool) -> Iterator[str]:
    """Yields why two parts, named a and b, do not combine; `later`: whether b follows a."""
    if part.delays and (other.delays or other.privacy or other.combine):
        yield f'{a} delays updates, but {b} needs those of one round; remove one.'
    if part.equal_weights and not later and other.weigh is not _NEUTRAL.weigh:
        yield (
            f'{a} weighs all clients equally, so the weights of {b} would have no effect; remove '
            'one of the two.'
        )
    if part.ignores_weights and other.weigh is not _NEUTRAL.weigh:
        yield f'{a} uses no weights, so those of {b} would have no effect; remove one of the two.'
    if part.alters_messages and other.uploads:
        yield f'{a} changes updates only, but {b} uploads more; remove one of the two.'
    if part.receive and other.reads_server:
        yield (
            f'{a} keeps parameters at the clients, but {b} evaluates the global model, which '
            'lacks them; remove one.'
        )
    if part.own and other.uploads:
        yield (
            f'{a} keeps parameters at the clients, but {b} uploads values that may cover them; '
            'remove one.'
        )
    if part.trainable and other.counts_steps:
        yield (
            f'{a} may train an array in some of the local steps, but {b} counts them all; '
            'remove one.'
        )
    if part.personal and other.own:
        yield f'{a} trains a model of each client, so {b} cannot keep a part of it; remove one.'
    if part.personal and later and other.adapt is not _NEUTRAL.adapt:
        yield f'{a} trains two models, so {b} must change the network before it.'
    if not (part.privacy or part.delays):
        return
    does = 'adds noise to' if part.privacy else 'delays'
    sends = other.send is not _NEUTRAL.send or other.weigh is not _NEUTRAL.weigh
    merges = other.merge is not _NEUTRAL.merge
    if sends and merges:
        yield f'{a} {does} what the clients send and its sum, and {b} changes both; remove one.'
    if sends and later:
        yield f'{a} {does} what the clients send, so {b} must come before it.'
    if merges and not later:
        yield f'{a} {does} the sum of updates, so {b} must come after it.'


def chain(*parts: Method, names: Sequence[str] = ()) -> Method:
    """Combines methods into one.

    Penalties add up, and a step changes the arrays that every part allows. Weights, received
    parameters, sent updates and their size, personal parameters, the server's update and the
    network pass through the parts from left to right. One part at most has `supervised`, and one
    `combine`. Every other hook runs for each part separately, with a tuple of the parts' states.

    Args:
      *parts: the methods, in the order in which they change the server's update.
      names: of the parts, for errors; by default their numbers.

    Returns:
      The combined method.

    Raises:
      ValueError: if there is no part, a part is not a valid method, two parts replace the
        supervised loss or combine updates, or a part would undo another one.
    """
    _check(parts, names or [f'method {i + 1}' for i in range(len(parts))])
    replacing = [i for i, part in enumerate(parts) if part.supervised is not _NEUTRAL.supervised]
    unchanged = neutral_hooks(parts)
    parts = tuple(map(check_hooks, parts))

    def weigh(cohort: CohortView) -> Array:
        for part in parts:
            cohort = cohort._replace(weights=part.weigh(cohort))
        return cohort.weights

    def begin(client: ClientView) -> PyTree:
        client = client._replace(begun=((),) * len(parts))
        return tuple(part.begin(part_view(client, i)) for i, part in enumerate(parts))

    def receive(client: ClientView) -> tuple[PyTree, PyTree]:
        client = client._replace(begun=((),) * len(parts))
        for i, part in enumerate(parts):
            if part.receive:
                params, stats = part.receive(part_view(client, i))
                client = client._replace(params=params, stats=stats)
        return client.params, client.stats

    def trainable(view: LocalView) -> PyTree:
        masks = [
            part.trainable(part_view(view, i)) for i, part in enumerate(parts) if part.trainable
        ]
        return jax.tree.map(lambda *of_parts: functools.reduce(operator.and_, of_parts), *masks)

    def send(client: ClientView) -> PyTree:
        for i, part in enumerate(parts):
            client = client._replace(update=part.send(part_view(client, i)))
        return client.update

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        states, uploads = [], []
        for i, part in enumerate(parts):
            view = part_view(client, i)
            state, upload = part.finish(view)
            states.append(state)
            uploads.append(upload)
            client = client._replace(update=part.send(view))  # as in `send`, which it shares
        return tuple(states), tuple(uploads)

    def penalty(view: LocalView) -> Array:
        penalties = (part.penalty(part_view(view, i)) for i, part in enumerate(parts))
        return sum(penalties, jnp.zeros(()))

    def supervised(view: LocalView) -> Array:
        (i,) = replacing
        return parts[i].supervised(part_view(view, i))

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        states = []
        for i, part in enumerate(parts):
            update, state = part.merge(part_view(view, i))
            view = view._replace(update=update)
            states.append(state)
        return view.update, tuple(states)

    def message_size(update: PyTree, size: MessageSize) -> MessageSize:
        for part in parts:
            size = part.message_size(update, size)
        return size

    def share(server: ServerView) -> PyTree:
        return tuple(part.share(part_view(server, i)) for i, part in enumerate(parts))

    combined = combine_states(*parts)._replace(
        share=share,
        begin=begin,
        message_size=message_size,
        weigh=weigh,
        receive=receive if any(part.receive for part in parts) else None,
        supervised=supervised,
        penalty=penalty,
        trainable=trainable if any(part.trainable for part in parts) else None,
        send=send,
        finish=finish,
        combine=next((part.combine for part in parts if part.combine), None),
        merge=merge,
    )
    return combined._replace(**unchanged)
