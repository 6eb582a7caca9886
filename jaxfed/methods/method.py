"""A federated method as a value: a tuple of pure hooks, like an optax transformation.

A method is written for ONE client; the engine maps its hooks over the stacked clients. Every hook
has a neutral default, so `Method()` is FedAvg, and `chain` combines methods.

One round, in the order in which the hooks run:

    shared            = share(server)          once, on the server
    weights           = weigh(cohort)          once, for all clients of the round
    constants         = prepare(info)          each client
    params, stats     = receive(client)        each client, where its local training starts, if set
    begun             = begin(client)          each client, before its local training
    mean(supervised(view)) + penalty(view)     every local step; the engine differentiates it
    mask              = trainable(view)        every local step, if set
    update            = send(client)           each client, after its local training
    state, upload     = finish(client)         each client, after its local training
    update            = combine(view)          once, on the server; if not set, the weighted sum
    update, state     = merge(view)            once, on the server

Every device computes what is said to happen on the server, and `prepare` for all clients of the
round, so both should be cheap.
A round in which no update is sent changes only the number of the round, except `merge` with noise
or delayed updates.
Outside of the rounds:

    server, client    = init(params, stats)    once: the first states
    network           = adapt(model)           once: the network that is trained
    params            = personal(params)       when local models are evaluated, if set
    sent, own, message_size                    once, for the costs; `own` says what stays

The facts after the hooks let `chain` refuse combinations that would be wrong.
"""

import inspect
import math
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfed import losses
from jaxfed.internal.messages import printable
from jaxfed.types import Array, Batch, ClientInfo, Model, Outputs, PyTree


class RoundInfo(NamedTuple):
    """The settings of a round."""

    number: Array  # [] int32, 1 for the first round
    learning_rate: Array  # [] float32, of the clients' optimizer in this round
    momentum: Any  # of the clients' optimizer; traced if experiments differ in it
    num_clients: int  # N
    clients_per_round: int  # S
    local_epochs: int  # E
    cohort_size: Array  # [] int32, clients whose update is not lost, also without examples
    expected_size: Any  # S (1 - dropout), its mean over rounds without --over_selection


class MessageSize(NamedTuple):
    """The size of the form in which a client sends its update."""

    numbers: int
    bits: float = 32  # of each number
    kept: int | None = None  # numbers that are sent with their places; None for all, without
    other: float = 0.0  # bytes of norms and the like

    @property
    def bytes(self) -> int:
        """The bytes of the message, with or without places of 32 bits, rounded up."""
        bits = self.numbers * self.bits
        if self.kept is not None:
            bits = min(bits, self.kept * (self.bits + 32))
        return math.ceil(bits / 8 + self.other)


class Privacy(NamedTuple):
    """The noise that a method adds to the sum of the clients' updates."""

    noise: Any  # standard deviation in multiples of the norm to which updates are clipped
    delta: Any  # probability with which the bound epsilon may fail


class ServerView(NamedTuple):
    """The input of `share`."""

    params: PyTree  # global parameters
    stats: PyTree  # global batch statistics, () for a network without
    state: PyTree  # this method's server state
    predict: Callable[[Array], Array]  # x [A, H, W, channels] -> logits [A, C], global parameters
    auxiliary: Batch | None  # class-balanced examples on the server, if `Method.auxiliary` > 0
    round: RoundInfo


class LocalView(NamedTuple):
    """The input of `supervised`, `penalty` and `trainable`, in a local step of one client."""

    params: PyTree  # local parameters; the engine differentiates the loss with respect to them
    outputs: Outputs  # of the local parameters on this batch
    batch: Batch
    global_params: PyTree  # at the start of the round; with `receive` those that it returned
    # (params, x, stats=the global ones, or those of `receive`) -> Outputs, in evaluation mode
    apply: Callable[..., Outputs]
    # the same without gradient; clients with equal params are one batch (`engine.fixed`)
    evaluate: Callable[..., Outputs]
    info: ClientInfo
    static: PyTree  # from `prepare`
    state: PyTree  # this method's state of this client, from its previous round
    shared: PyTree  # from `share`
    begun: PyTree  # from `begin`
    epoch: Array  # [] int32, from 0
    round: RoundInfo

    @property
    def teacher(self) -> Outputs:
        """Outputs of the global parameters on this batch, without gradient.

        An unused teacher costs nothing: the compiler removes it. Parts that use it share one
        evaluation.
        """
        return self.evaluate(self.global_params, self.batch.x)

    def mean(self, values: Array) -> Array:
        """Computes the mean over the real examples of the batch.

        Args:
          values: [B], one for each example.

        Returns:
          [], the mean; 0 if there is no real example.

        Raises:
          ValueError: if the values have another shape.
        """
        mask = self.batch.mask
        if jnp.shape(values) != mask.shape:
            raise ValueError(
                f'view.mean must get one value for each example, shape {list(mask.shape)}, got '
                f'{list(jnp.shape(values))}.'
            )
        return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


class ClientView(NamedTuple):
    """The input of `receive` and `begin` before local training, `send` and `finish` after it."""

    params: PyTree  # local parameters; in `receive` the global ones
    stats: PyTree  # local batch statistics; in `receive` the global ones
    global_params: PyTree  # with `receive` those that it returned
    # params - the server's parameters, or what the previous part sends; () before local training
    update: PyTree
    apply: Callable[..., Outputs]  # as in `LocalView`
    # fold(f, initial) with f(carry, Batch) -> carry: each example of the client once, in a fixed
    # order, normalised, not augmented
    fold: Callable[[Callable[[PyTree, Batch], PyTree], PyTree], PyTree]
    info: ClientInfo
    static: PyTree
    state: PyTree
    shared: PyTree
    begun: PyTree  # () before `begin`
    steps: Array  # [] int32, batches of this client in this round
    key: Array  # [] random key of this client and round
    round: RoundInfo


class CohortView(NamedTuple):
    """The input of `weigh`, for all clients of the round."""

    weights: Array  # [S] float32, from --aggregation or the previous part; 0 where lost
    size: Array  # [S] int32; 0 where lost
    label_counts: Array  # [S, C] int32; 0 where lost
    steps: Array  # [S] int32, batches; 0 where lost
    round: RoundInfo


class CombineView(NamedTuple):
    """The input of `combine`."""

    updates: PyTree  # [S, ...] what each client sends; 0 where lost
    weights: Array  # [S] float32, from `weigh`; 0 where lost
    arrived: Array  # [S] bool, False where lost, or without examples
    round: RoundInfo


class MergeView(NamedTuple):
    """The input of `merge`."""

    update: PyTree  # sum_i weight_i update_i, from `combine`, or from the previous part
    params: PyTree  # global parameters before the update
    stats: PyTree  # global batch statistics; the engine averages them
    state: PyTree  # this method's server state
    uploads: PyTree  # sum over the round's clients of their uploads
    key: Array  # [] random key of the server and round
    round: RoundInfo


def weighted_sum(view: CombineView) -> PyTree:
    """Sums the updates of a cohort with their weights, as the engine does without `combine`."""

    def add(rows: Array) -> Array:
        return jnp.tensordot(view.weights, rows, axes=1, precision='highest')

    return jax.tree.map(add, view.updates)


def _supervised(view: LocalView) -> Array:
    return losses.cross_entropy(view.outputs.logits, view.batch.y)


class Method(NamedTuple):
    """The hooks of a federated method; the defaults are FedAvg's.

    `supervised` REPLACES the cross-entropy and returns one value an example. `penalty` is ADDED to
    the mean of `supervised`, so a combination counts the supervised term once.
    """

    # (params, batch statistics) -> (server state, state of one client before its first round)
    init: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]] = lambda params, stats: ((), ())
    # ClientInfo -> constants of a client
    prepare: Callable[[ClientInfo], PyTree] = lambda info: ()
    share: Callable[[ServerView], PyTree] = lambda server: ()
    weigh: Callable[[CohortView], Array] = lambda cohort: cohort.weights
    # -> (params, stats) with which local training starts; None for the global ones
    receive: Callable[[ClientView], tuple[PyTree, PyTree]] | None = None
    begin: Callable[[ClientView], PyTree] = lambda client: ()
    supervised: Callable[[LocalView], Array] = _supervised  # -> [B]
    penalty: Callable[[LocalView], Array] = lambda view: jnp.zeros(())  # -> []
    # -> a bool for each array of the parameters, whether this step may change it; None for all
    trainable: Callable[[LocalView], PyTree] | None = None
    send: Callable[[ClientView], PyTree] = lambda client: client.update  # what the client sends
    # -> (the client's new state, its upload)
    finish: Callable[[ClientView], tuple[PyTree, PyTree]] = lambda client: (client.state, ())
    # -> update; None for the weighted sum. With it every device keeps the updates of the cohort.
    combine: Callable[[CombineView], PyTree] | None = None
    # -> (update, server state)
    merge: Callable[[MergeView], tuple[PyTree, PyTree]] = lambda view: (view.update, view.state)
    # network -> the network that this method trains
    adapt: Callable[[Model], Model] = lambda model: model
    # params -> the parameters with which the client itself predicts; None for the same
    personal: Callable[[PyTree], PyTree] | None = None
    # upload -> the part that a client sends; the server can compute the rest
    sent: Callable[[PyTree], PyTree] = lambda upload: upload
    # (params, stats) -> two trees of bools, whether each array stays with the client; None for none
    own: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]] | None = None
    # (shapes of the sent arrays, size of their form so far) -> size in which a client sends them
    message_size: Callable[[PyTree, MessageSize], MessageSize] = lambda update, size: size
    auxiliary: int = 0  # examples of each class on the server by default
    equal_weights: bool = False  # whether `weigh` drops the weights of earlier parts
    counts_steps: bool = False  # whether it reads the local steps as those of SGD with momentum
    uploads: bool = False  # whether the server needs more of a client than its update
    reads_server: bool = False  # whether it evaluates the global model or a mean of such models
    alters_messages: bool = False  # whether it compresses, hides, attacks or combines updates
    ignores_weights: bool = False  # whether `combine` does not read the weights
    delays: bool = False  # whether updates reach the server in later rounds
    # of a method whose noise must be the last change of the update
    privacy: Privacy | None = None

    def survives_clients(self, stats: PyTree) -> bool:
        """Whether clients whose parameters are not finite do not reach the model.

        Not so if a robust sum is set to tolerate none of them.

        Args:
          stats: batch statistics of the network, which are averaged as they are.
        """
        robust = self.combine is not None or self.privacy is not None
        return robust and not jax.tree.leaves(stats)

    @property
    def has_local_models(self) -> bool:
        """Whether each client has a model of its own, by which the method is judged."""
        return self.personal is not None or self.own is not None

    @property
    def always_merges(self) -> bool:
        """Whether `merge` runs in a round in which no update is sent, too."""
        return self.delays or self.privacy is not None


_OPTIONAL = ('receive', 'trainable', 'combine', 'personal', 'own')  # hooks that may be None
# hook -> its parameters, as in error messages
_PARAMETERS = {
    'init': 'params, stats',
    'prepare': 'info',
    'share': 'server',
    'weigh': 'cohort',
    'receive': 'client',
    'begin': 'client',
    'supervised': 'view',
    'penalty': 'view',
    'trainable': 'view',
    'send': 'client',
    'finish': 'client',
    'combine': 'view',
    'merge': 'view',
    'adapt': 'model',
    'personal': 'params',
    'sent': 'upload',
    'own': 'params, stats',
    'message_size': 'update, size',
}


def check_method(method: Any, rule: str = 'method must be') -> None:
    """Checks that a value is a method whose hooks are functions of the expected parameters.

    Args:
      method: the value.
      rule: the beginning of the message for a value that is not a method.

    Raises:
      ValueError: if the value is not a `Method`, a hook is not a function or has other parameters,
        or `auxiliary` is not an integer of at least 0; the message names the hook and its form.
    """
    if not isinstance(method, Method):
        hint = ''
        if isinstance(method, str):
            hint = '; the name of a method belongs in Config(method=...)'
        elif callable(method):
            hint = '; call the function'
        raise ValueError(f'{rule} a jaxfed.Method, got {_name_of(method)}{hint}.')
    for hook, parameters in _PARAMETERS.items():
        function, form = getattr(method, hook), f'{hook}({parameters})'
        if function is None and hook in _OPTIONAL:
            continue
        if not callable(function):
            raise ValueError(f'{hook} must be a function {form}, got {_name_of(function)}.')
        try:
            signature = inspect.signature(function)
        except ValueError:  # some functions of C have none
            continue
        try:
            signature.bind(*parameters.split(', '))
        except TypeError:
            raise ValueError(f'{hook} must be a function {form}, not {hook}{signature}.') from None
    auxiliary = method.auxiliary
    # Traced numbers were checked before.
    if not isinstance(auxiliary, jax.Array) and not (type(auxiliary) is int and auxiliary >= 0):
        raise ValueError(f'auxiliary must be an integer of at least 0, got {_name_of(auxiliary)}.')


def _name_of(value: Any) -> str:
    """Returns the name of a function, else a short form of the value in one line."""
    return getattr(value, '__name__', None) or printable(reprlib.repr(value))
