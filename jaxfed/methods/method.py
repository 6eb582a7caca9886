"""A federated method as a value: a tuple of pure hooks, in the manner of an optax transformation.

A method is written for ONE client; the engine maps its hooks over the stacked clients. Every hook
has a neutral default, so `Method()` is FedAvg, and `chain` combines methods.

One round, in the order in which the hooks run:

    shared            = share(server)          once, on the server
    weights           = weigh(cohort)          once, for all clients of the round
    begun             = begin(client)          a client, before its local training
    mean(supervised(view)) + penalty(view)     every local step; the engine differentiates it
    state, upload     = finish(client)         a client, after its local training
    update, state     = merge(aggregate)       once, on the server
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.types import Array, Batch, ClientInfo, Model, Outputs, PyTree


class RoundInfo(NamedTuple):
    """The settings of a round that a method may need."""

    number: Array  # [] int32, 1 for the first round
    learning_rate: Array  # [] float32, of the clients' optimizer in this round
    momentum: Any  # of the clients' optimizer; traced where experiments differ in it
    num_clients: int  # N
    cohort_size: Array  # [] int32, clients of the round whose updates arrive; S if none is lost


class ServerView(NamedTuple):
    """What `share` sees."""

    params: PyTree  # global parameters
    stats: PyTree  # and batch statistics, () for a network without
    state: PyTree  # this method's server state
    predict: Callable[[Array], Array]  # x [A, H, W, channels] -> logits [A, C], global parameters
    auxiliary: Batch | None  # the server's own class-balanced examples, if the method asked
    round: RoundInfo


class LocalView(NamedTuple):
    """What a local objective sees in one step of one client."""

    params: PyTree  # local parameters, the ones that are differentiated
    outputs: Outputs  # of the local parameters on this batch
    batch: Batch
    global_params: PyTree  # what the client started its round from
    # (params, x, stats=the global ones) -> Outputs, in evaluation mode
    apply: Callable[..., Outputs]
    info: ClientInfo
    static: PyTree  # from `prepare`
    state: PyTree  # this method's state of this client, as it was before the round
    shared: PyTree  # from `share`
    begun: PyTree  # from `begin`
    round: RoundInfo

    @property
    def teacher(self) -> Outputs:
        """Outputs of the global parameters on this batch, without gradient.

        Nobody pays for a teacher that is not used, nor twice for one used by two parts: the
        compiler removes the first and merges the second.
        """
        return jax.lax.stop_gradient(self.apply(self.global_params, self.batch.x))

    def mean(self, values: Array) -> Array:
        """Mean over the real examples of the batch.

        Args:
          values: [B], one an example.

        Returns:
          [] the mean, 0 if there is no real example.
        """
        mask = self.batch.mask
        return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


class ClientView(NamedTuple):
    """What `begin` (before local training) and `finish` (after it) see of one client."""

    params: PyTree  # local parameters; in `begin` equal to the global ones
    stats: PyTree  # local batch statistics; in `begin` the global ones
    global_params: PyTree
    apply: Callable[..., Outputs]  # as in `LocalView`
    # fold(f, initial): f(carry, Batch) -> carry over the client's own examples, each once, in a
    # fixed order, normalised and not augmented.
    fold: Callable[[Callable[[PyTree, Batch], PyTree], PyTree], PyTree]
    info: ClientInfo
    static: PyTree
    state: PyTree
    shared: PyTree
    begun: PyTree  # in `begin` an empty tuple
    steps: Array  # [] int32, local steps of this client in this round
    round: RoundInfo


class CohortView(NamedTuple):
    """What `weigh` sees of the round's clients."""

    weights: Array  # [S] float32, from --aggregation or the part before; 0 where lost
    size: Array  # [S] int32
    label_counts: Array  # [S, C] int32
    steps: Array  # [S] int32, 0 where the update is lost
    round: RoundInfo


class MergeView(NamedTuple):
    """What `merge` sees."""

    update: PyTree  # sum_i weight_i (w_i - w_g), or what the part before made of it
    params: PyTree  # global parameters before the update
    stats: PyTree  # and batch statistics, which are averaged whatever the update is
    state: PyTree  # this method's server state
    uploads: PyTree  # sum over the round's clients of their uploads
    round: RoundInfo


def _supervised(view: LocalView) -> Array:
    return losses.cross_entropy(view.outputs.logits, view.batch.y)


def _no_penalty(view: LocalView) -> Array:
    return jnp.zeros(())


class Method(NamedTuple):
    """The hooks of a federated method; what is left out is FedAvg's.

    `supervised` REPLACES the cross-entropy and returns one value an example, `penalty` is ADDED to
    its mean; so parts combine without counting the supervised term twice.
    """

    # (params, batch statistics) -> (server state, state of one client before its first round)
    init: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]] = lambda params, stats: ((), ())
    # ClientInfo -> what is constant for a client
    prepare: Callable[[ClientInfo], PyTree] = lambda info: ()
    share: Callable[[ServerView], PyTree] = lambda server: ()
    weigh: Callable[[CohortView], Array] = lambda cohort: cohort.weights
    begin: Callable[[ClientView], PyTree] = lambda client: ()
    supervised: Callable[[LocalView], Array] = _supervised  # -> [B]
    penalty: Callable[[LocalView], Array] = _no_penalty  # -> []
    # -> (the client's new state, its upload)
    finish: Callable[[ClientView], tuple[PyTree, PyTree]] = lambda client: (client.state, ())
    # -> (update, server state)
    merge: Callable[[MergeView], tuple[PyTree, PyTree]] = lambda merge: (merge.update, merge.state)
    # network -> the network that this method trains
    adapt: Callable[[Model], Model] = lambda model: model
    # upload -> what of it a client has to send, where the server could compute the rest
    sent: Callable[[PyTree], PyTree] = lambda upload: upload
    auxiliary: int = 0  # examples a class that the server needs by default, 0 for none


_OWN = ('static', 'state', 'shared', 'begun', 'uploads')


def part_of(view: Any, i: int) -> Any:
    """The view as part `i` of a combination sees it: of each tuple of parts, its own entry.

    Args:
      view: any of the views.
      i: number of the part.

    Returns:
      The view.
    """
    own = {name: getattr(view, name)[i] for name in _OWN if name in view._fields}
    return view._replace(**own)


def chain(*parts: Method) -> Method:
    """Combine methods into one.

    Penalties add up; weights, the server's update and the network pass through the parts from left
    to right; every other hook runs for each part on its own, with states kept as a tuple of the
    parts'.

    Args:
      *parts: the methods, in the order in which they treat the server's update.

    Returns:
      The combined method.

    Raises:
      ValueError: if no part is given, or two parts replace the supervised loss.
    """
    if not parts:
        raise ValueError('chain() needs at least one method.')
    replacing = [part.supervised for part in parts if part.supervised is not _supervised]
    if len(replacing) > 1:
        raise ValueError(
            f'{len(replacing)} of the combined methods replace the cross-entropy by a loss of '
            'their own, so they do not add up; keep one of them.'
        )
    indexed = tuple(enumerate(parts))

    def init(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
        states = [part.init(params, stats) for part in parts]
        return tuple(server for server, _ in states), tuple(client for _, client in states)

    def weigh(cohort: CohortView) -> Array:
        for part in parts:
            cohort = cohort._replace(weights=part.weigh(cohort))
        return cohort.weights

    def begin(client: ClientView) -> PyTree:
        # `begun` does not exist yet, so there is nothing of it to hand out.
        client = client._replace(begun=((),) * len(parts))
        return tuple(part.begin(part_of(client, i)) for i, part in indexed)

    def penalty(view: LocalView) -> Array:
        return sum((part.penalty(part_of(view, i)) for i, part in indexed), jnp.zeros(()))

    def supervised(view: LocalView) -> Array:
        i = next(i for i, part in indexed if part.supervised is not _supervised)
        return parts[i].supervised(part_of(view, i))

    def finish(client: ClientView) -> tuple[PyTree, PyTree]:
        done = [part.finish(part_of(client, i)) for i, part in indexed]
        return tuple(state for state, _ in done), tuple(upload for _, upload in done)

    def adapt(model: Model) -> Model:
        for part in parts:
            model = part.adapt(model)
        return model

    def merge(view: MergeView) -> tuple[PyTree, PyTree]:
        states = []
        for i, part in indexed:
            update, state = part.merge(part_of(view, i))
            view = view._replace(update=update)
            states.append(state)
        return view.update, tuple(states)

    return Method(
        init=init,
        prepare=lambda info: tuple(part.prepare(info) for part in parts),
        share=lambda server: tuple(part.share(part_of(server, i)) for i, part in indexed),
        weigh=weigh,
        begin=begin,
        supervised=supervised if replacing else _supervised,
        penalty=penalty,
        finish=finish,
        merge=merge,
        adapt=adapt,
        sent=lambda upload: tuple(part.sent(upload[i]) for i, part in indexed),
        auxiliary=max(part.auxiliary for part in parts),
    )
