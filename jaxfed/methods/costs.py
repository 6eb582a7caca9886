"""Costs of a method beyond FedAvg, from the shapes of the values that its hooks exchange."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfed.methods.hooks import check_carry
from jaxfed.methods.method import (
    ClientView,
    LocalView,
    MessageSize,
    Method,
    RoundInfo,
    ServerView,
)
from jaxfed.types import Array, Batch, ClientInfo, Model, PyTree, example_inputs


class MethodCost(NamedTuple):
    """Costs for one client and round; FedAvg sends only the parameters, down and up."""

    parameter_bytes: int  # of the network as FedAvg trains it, including batch statistics
    upload_bytes: int
    download_bytes: int
    upload: float  # relative to FedAvg's
    download: float
    client_state_bytes: int  # kept by a client between rounds
    server_state_bytes: int  # kept by the server in addition to the parameters
    forward_passes: int  # a local step, in addition to the local model's
    data_passes: int  # over the client's examples, in addition to local training
    auxiliary: int  # examples of each class on the server


def size_of(tree: PyTree) -> int:
    """Returns the bytes of all arrays of a tree.

    Args:
      tree: arrays, or shapes from `jax.eval_shape`.

    Returns:
      The bytes.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def method_cost(
    method: Method,
    network: Model,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int = 0,
) -> MethodCost:
    """Derives a method's costs from an abstract evaluation, without computing.

    Args:
      method: the method.
      network: the network, before the method adapts it.
      input_shape: height, width and channels of an image.
      num_classes: C.
      vocabulary: number of token ids, 0 for other inputs.

    Returns:
      The costs.
    """
    model = method.adapt(network)
    teachers: list[PyTree] = []  # the parameters with which a batch is evaluated
    folds: list[Any] = []
    exchange = partial(_exchange, method, model, teachers, folds)

    def shape(*sides: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sides, dtype)

    params = jax.eval_shape(model.init, jax.random.key(0))
    examples = 2 * num_classes
    x = example_inputs(examples, input_shape, vocabulary)
    batch = Batch(x, shape(examples), shape(examples, dtype=jnp.bool_))
    info = ClientInfo(shape(num_classes), shape(), shape())
    server_state, client_state, download, upload = map(
        size_of, jax.eval_shape(exchange, params, model.stats, batch, info, shape())
    )
    base = size_of((jax.eval_shape(network.init, jax.random.key(0)), network.stats))
    common, stats = _sent(method, params, model.stats)
    numbers = MessageSize(sum(leaf.size for leaf in common))
    sent = method.message_size(common, numbers).bytes + size_of(stats) + upload
    received = size_of((common, stats)) + download
    return MethodCost(
        parameter_bytes=base,
        upload_bytes=sent,
        download_bytes=received,
        upload=sent / base,
        download=received / base,
        client_state_bytes=client_state,
        server_state_bytes=server_state,
        forward_passes=len(teachers),
        data_passes=len(set(folds)),
        auxiliary=method.auxiliary,
    )


def _exchange(
    method: Method, model: Model, teachers: list[PyTree], folds: list[Any], params: PyTree,
    stats: PyTree, batch: Batch, info: ClientInfo, number: Array,
) -> tuple[PyTree, PyTree, PyTree, PyTree]:  # fmt: skip
    """The server state, client state, download and upload; notes evaluations and data passes."""
    server_state, client_state = method.init(params, stats)
    # A state that is the initial parameters must not pass for the global ones.
    client_state = jax.tree.map(lambda leaf: leaf, client_state)
    round_info = RoundInfo(number, jnp.float32(1), 0.9, 2, 2, 2, number, 2)

    def evaluate(w: PyTree, x: Array, stats: PyTree = stats) -> Any:
        return model.evaluate(w, x, stats)

    def apply(w: PyTree, x: Array, stats: PyTree = stats) -> Any:
        if not any(w is teacher for teacher in teachers):
            teachers.append(w)
        return model.evaluate(w, x, stats)

    def fold(f: Any, initial: PyTree) -> PyTree:
        folds.append(getattr(f, '__code__', f))  # a switch traces its parts twice
        carry = f(initial, batch)
        check_carry(carry, initial)
        return carry

    auxiliary = batch if method.auxiliary else None
    server = ServerView(
        params, stats, server_state, lambda x: evaluate(params, x).logits, auxiliary, round_info
    )
    shared = method.share(server)
    common = {
        'params': params,
        'global_params': params,
        'info': info,
        'static': method.prepare(info),
        'state': client_state,
        'shared': shared,
        'round': round_info,
    }
    client = ClientView(
        **common, stats=stats, apply=evaluate, fold=fold, update=params, begun=(),
        steps=number, key=jax.random.key(0),
    )  # fmt: skip
    client = client._replace(begun=method.begin(client))
    outputs = model.train(params, batch.x, stats, batch.mask, jax.random.key(0))
    view = LocalView(
        **common, outputs=outputs, batch=batch, apply=apply, evaluate=apply, begun=client.begun,
        epoch=number,
    )  # fmt: skip
    method.supervised(view)
    method.penalty(view)
    _, upload = method.finish(client)
    return server_state, client_state, shared, method.sent(upload)


def _sent(method: Method, params: PyTree, stats: PyTree) -> tuple[list[Any], list[Any]]:
    """The arrays of parameters and of batch statistics that do not stay with the clients."""

    def rest(tree: PyTree, own: PyTree) -> list[Any]:
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(own), strict=True)
        return [leaf for leaf, stays in pairs if not stays]

    if method.own is None:
        return jax.tree.leaves(params), jax.tree.leaves(stats)
    own_params, own_stats = method.own(params, stats)
    return rest(params, own_params), rest(stats, own_stats)
