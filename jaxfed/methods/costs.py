"""What a method costs beyond FedAvg, read off the shapes of what its hooks pass on."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxfed.methods.method import ClientView, LocalView, Method, RoundInfo, ServerView
from jaxfed.types import Array, Batch, ClientInfo, Model, PyTree


class Cost(NamedTuple):
    """Of one client and round; FedAvg sends the parameters down and up and nothing else."""

    parameter_bytes: int  # batch statistics with them
    upload_bytes: int
    download_bytes: int
    upload: float  # relative to FedAvg's
    download: float
    client_state_bytes: int  # that a client keeps between rounds
    server_state_bytes: int  # that the server keeps besides the parameters
    forward_passes: int  # a local step, besides the local model's own
    data_passes: int  # over the client's examples, besides local training
    auxiliary: int  # examples a class on the server


def size_of(tree: PyTree) -> int:
    """Bytes of all arrays of a tree, or of their shapes.

    Args:
      tree: arrays, or what `jax.eval_shape` tells of them.

    Returns:
      The bytes.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def method_cost(
    method: Method, model: Model, *, input_shape: tuple[int, ...], num_classes: int
) -> Cost:
    """Find out what a method costs; nothing is computed.

    Args:
      method: the method.
      model: the network, adapted by the method.
      input_shape: height, width and channels of an image.
      num_classes: C.

    Returns:
      The costs.
    """
    forward: set[int] = set()  # sets of parameters under which a batch is evaluated
    passes: list[None] = []

    def hooks(
        params: PyTree, stats: PyTree, batch: Batch, info: ClientInfo, number: Array
    ) -> tuple:
        server_state, client_state = method.init(params, stats)
        told = RoundInfo(number, jnp.float32(1), 0.9, num_clients=2, cohort_size=number)

        def evaluate(w: PyTree, x: Array, with_stats: PyTree = stats) -> Any:
            return model.evaluate(w, x, with_stats)

        def apply(w: PyTree, x: Array, with_stats: PyTree = stats) -> Any:
            forward.add(id(w))
            return evaluate(w, x, with_stats)

        def fold(f: Any, initial: PyTree) -> PyTree:
            passes.append(None)
            return f(initial, batch)

        shared = method.share(
            ServerView(
                params, stats, server_state, lambda x: evaluate(params, x).logits, batch, told
            )
        )
        client = ClientView(
            params=params,
            stats=stats,
            global_params=params,
            apply=evaluate,
            fold=fold,
            info=info,
            static=method.prepare(info),
            state=client_state,
            shared=shared,
            begun=(),
            steps=number,
            round=told,
        )
        client = client._replace(begun=method.begin(client))
        told_of = {
            name: getattr(client, name) for name in client._fields if name in LocalView._fields
        }
        outputs = model.train(params, batch.x, stats, batch.mask)
        told_of |= {'apply': apply, 'outputs': outputs, 'batch': batch}
        view = LocalView(**told_of)
        method.supervised(view)
        method.penalty(view)
        _, upload = method.finish(client)
        return server_state, client_state, shared, method.sent(upload)

    params = jax.eval_shape(model.init, jax.random.key(0))
    examples = 2 * num_classes

    def shape(*sides: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sides, dtype)

    x, mask = shape(examples, *input_shape, dtype=jnp.float32), shape(examples, dtype=jnp.bool_)
    batch, info = Batch(x, shape(examples), mask), ClientInfo(shape(num_classes), shape())
    shapes = jax.eval_shape(hooks, params, model.stats, batch, info, shape())
    server_state, client_state, shared, upload = shapes
    base = size_of((params, model.stats))
    up, down = base + size_of(upload), base + size_of(shared)
    return Cost(
        parameter_bytes=base,
        upload_bytes=up,
        download_bytes=down,
        upload=up / base,
        download=down / base,
        client_state_bytes=size_of(client_state),
        server_state_bytes=size_of(server_state),
        forward_passes=len(forward),
        data_passes=len(passes),
        auxiliary=method.auxiliary,
    )
