"""One round of federated training as two pure functions, made to be jitted once an experiment.

`train` runs on every device for the clients dealt to it. Their parameters are stacked on an axis of
L lanes. All lanes run local steps together, mapped over lanes inside a loop over steps (see
`stacking`); when a client's steps are done, its update is added to the device's weighted sum and
its lane takes the next client (see `lanes`). A lane without a client goes on computing what nobody
reads, so no step needs a mask for it. Devices do not talk to each other.

`merge` adds the sums of all devices up, the round's only communication, and takes the server's
step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxfed.devices import AXIS, make_mesh
from jaxfed.lanes import Schedule
from jaxfed.method import (
    ClientView,
    CohortView,
    LocalView,
    MergeView,
    Method,
    RoundInfo,
    ServerView,
)
from jaxfed.metrics.accuracy import predict
from jaxfed.stacking import Stacking, row, set_row, stacking
from jaxfed.types import Array, Batch, ClientInfo, Cohort, Model, Outputs, PyTree


class TrainingData(NamedTuple):
    """All clients' examples on the device, held once; clients are stacked by index only."""

    x: Array  # [n, H, W, channels] uint8 or float32, in the file's own units
    y: Array  # [n] int32
    order: Array  # [n] int32, examples grouped by client
    start: Array  # [N] int32, where a client's group begins in `order`
    size: Array  # [N] int32
    label_counts: Array  # [N, C] int32
    auxiliary: Batch | None = None  # the server's own examples, normalised


class ServerState(NamedTuple):
    """What the server keeps from round to round."""

    params: PyTree
    method: PyTree  # the method's server state
    round: Array  # [] int32, rounds done
    stats: PyTree = ()  # batch statistics, of a network that has them


class LocalSettings(NamedTuple):
    """What the clients do in a round."""

    local_epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    aggregation: str  # 'size' or 'uniform'
    longest: int  # examples of the largest client
    keep_models: bool = False  # whether a round gives the local models


class RoundMetrics(NamedTuple):
    """Numbers of a round."""

    train_loss: Array  # [] mean of the local objective over all examples trained on


class Sums(NamedTuple):
    """What the clients that have finished leave, summed up."""

    update: PyTree  # weighted sum of their updates
    stats: PyTree  # weighted sum of the changes of their batch statistics
    uploads: PyTree  # sum of what they send besides
    loss: Array  # [] sum of the local objective over all examples trained on


class Trained(NamedTuple):
    """What `train` gives: D devices, M positions on each, as in `lanes.Schedule`."""

    sums: Sums  # [D, ...] of each device
    states: PyTree  # [D, M, ...] the clients' new states
    models: PyTree  # [D, M, ...] their parameters and batch statistics, () unless they are kept


class Round(NamedTuple):
    """The two functions of a round; each is pure and free of Python control flow on values."""

    # (server, cohort, states [D, M, ...] of the clients as `schedule` places them,
    # schedule, learning_rate, key, data) -> Trained
    train: Callable[..., Trained]
    # (server, cohort, sums, learning_rate, data) -> (server, metrics)
    merge: Callable[..., tuple[ServerState, RoundMetrics]]


class _Client(NamedTuple):
    """What a lane knows of the client it trains."""

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
    learning_rate: float | Array, *, momentum: float, weight_decay: float
) -> optax.GradientTransformation:
    """SGD as PyTorch defines it, with coupled weight decay and heavy-ball momentum.

    g = grad + weight_decay w; m = momentum m + g; w = w - learning_rate m

    Args:
      learning_rate: step size, may be traced.
      momentum: in [0, 1); 0 keeps no buffer.
      weight_decay: >= 0.

    Returns:
      The optax transformation.
    """
    sgd = optax.sgd(learning_rate, momentum=momentum or None)
    return optax.chain(optax.add_decayed_weights(weight_decay), sgd) if weight_decay else sgd


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


def make_round(
    model: Model,
    method: Method,
    settings: LocalSettings,
    augment: Callable[[Array, Array], Array],
    normalise: Callable[[Array], Array],
    *,
    mesh: Mesh | None = None,
    stack: Stacking | None = None,
) -> Round:
    """Build the functions of one round.

    Args:
      model: the network.
      method: the federated method.
      settings: of local training.
      augment: (key, raw x [B, ...]) -> x, for training batches.
      normalise: raw x [B, ...] -> x, for batches that are not augmented.
      mesh: the devices that train, from `devices.make_mesh`; None for the first one.
      stack: how lanes are held; None for what suits the default backend.

    Returns:
      The functions.
    """
    mesh = mesh or make_mesh(1)
    stack = stack or stacking()
    epochs = settings.local_epochs
    batch_size = min(settings.batch_size, settings.longest)

    def cut_batch(order: Array, position: Array, size: Array) -> tuple[Array, Array]:
        mask = position < size
        return order[jnp.minimum(position, settings.longest - 1)], mask

    def describe(
        server: ServerState, cohort: Cohort, learning_rate: Array, data: TrainingData
    ) -> RoundInfo:
        return RoundInfo(
            number=server.round + 1,
            learning_rate=learning_rate,
            momentum=settings.momentum,
            num_clients=data.size.shape[0],
            cohort_size=jnp.sum(cohort.epochs > 0),
        )

    def train(
        server: ServerState,
        cohort: Cohort,
        client_states: PyTree,
        schedule: Schedule,
        learning_rate: Array,
        key: Array,
        data: TrainingData,
    ) -> Trained:
        # This device's share of what is dealt to the devices.
        client_states, schedule = row(client_states, 0), row(schedule, 0)
        optimizer = local_optimizer(
            learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        round_info = describe(server, cohort, learning_rate, data)
        infos = ClientInfo(data.label_counts[cohort.clients], data.size[cohort.clients])
        steps = cohort.epochs * steps_per_epoch(infos.size, batch_size)
        # A client's random stream depends on the seed, the round and its id, not on its lane.
        round_key = jax.random.fold_in(key, server.round)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(round_key, cohort.clients)
        statics = jax.vmap(method.prepare)(infos)

        def apply(params: PyTree, x: Array, stats: PyTree = server.stats) -> Outputs:
            return model.evaluate(params, x, stats)

        shared = method.share(
            ServerView(
                params=server.params,
                stats=server.stats,
                state=server.method,
                predict=lambda x: predict(apply, server.params, x),
                auxiliary=data.auxiliary,
                round=round_info,
            )
        )
        arrives = cohort.epochs > 0
        shares = arrives * (infos.size if settings.aggregation == 'size' else 1)
        shares = shares / jnp.maximum(jnp.sum(shares), 1)
        weights = method.weigh(
            CohortView(
                weights=shares,
                size=infos.size,
                label_counts=infos.label_counts,
                steps=steps,
                round=round_info,
            )
        )

        def own_example(slot: Array) -> Array:
            begin, within = data.start[cohort.clients[slot]], jnp.arange(settings.longest)
            return data.order[jnp.minimum(begin + within, data.y.shape[0] - 1)]

        def view_client(
            position: Array, params: PyTree, stats: PyTree, begun: PyTree
        ) -> ClientView:
            slot = schedule.slot[position]
            size = infos.size[slot]
            examples = own_example(slot)

            def fold(f: Callable[[PyTree, Batch], PyTree], initial: PyTree) -> PyTree:
                def body(i: Array, carry: PyTree) -> PyTree:
                    position = i * batch_size + jnp.arange(batch_size)
                    example, mask = cut_batch(examples, position, size)
                    return f(carry, Batch(normalise(data.x[example]), data.y[example], mask))

                return lax.fori_loop(0, steps_per_epoch(size, batch_size), body, initial)

            return ClientView(
                params=params,
                stats=stats,
                global_params=server.params,
                apply=apply,
                fold=fold,
                info=row(infos, slot),
                static=row(statics, slot),
                state=row(client_states, position),
                shared=shared,
                begun=begun,
                steps=steps[slot],
                round=round_info,
            )

        def view_done(position: Array, lane: _Lane) -> ClientView:
            return view_client(position, lane.params, lane.stats, lane.client.begun)

        def start(position: Array) -> _Lane:
            slot = schedule.slot[position]
            order_key, augment_key = jax.random.split(keys[slot])
            epoch_keys = jax.vmap(jax.random.fold_in, (None, 0))(order_key, jnp.arange(epochs))
            order = jax.vmap(epoch_order, (0, None, None))(
                epoch_keys, infos.size[slot], settings.longest
            )
            view = view_client(position, server.params, server.stats, ())
            return _Lane(
                params=server.params,
                stats=server.stats,
                optimizer=optimizer.init(server.params),
                client=_Client(
                    info=view.info,
                    static=view.static,
                    state=view.state,
                    begun=method.begin(view),
                    order=own_example(slot)[order],
                    key=augment_key,
                ),
                step=jnp.zeros((), jnp.int32),
                loss=jnp.zeros(()),
            )

        def draw_batch(client: _Client, step: Array) -> Batch:
            per_epoch = jnp.maximum(steps_per_epoch(client.info.size, batch_size), 1)
            epoch = jnp.minimum(step // per_epoch, epochs - 1)
            position = step % per_epoch * batch_size + jnp.arange(batch_size)
            example, mask = cut_batch(client.order[epoch], position, client.info.size)
            key = jax.random.fold_in(client.key, step)
            return Batch(augment(key, data.x[example]), data.y[example], mask)

        def local_step(lane: _Lane) -> _Lane:
            client = lane.client
            batch = draw_batch(client, lane.step)

            def objective(params: PyTree) -> tuple[Array, PyTree]:
                outputs = model.train(params, batch.x, lane.stats, batch.mask)
                view = LocalView(
                    params=params,
                    outputs=outputs,
                    batch=batch,
                    global_params=server.params,
                    apply=apply,
                    info=client.info,
                    static=client.static,
                    state=client.state,
                    shared=shared,
                    begun=client.begun,
                    round=round_info,
                )
                loss = view.mean(method.supervised(view)) + method.penalty(view)
                return loss, outputs.stats

            differentiate = jax.value_and_grad(objective, has_aux=True)
            (loss, stats), gradient = differentiate(lane.params)
            updates, optimizer_state = optimizer.update(gradient, lane.optimizer, lane.params)
            return _Lane(
                params=optax.apply_updates(lane.params, updates),
                stats=stats,
                optimizer=optimizer_state,
                client=client,
                step=lane.step + 1,
                loss=lane.loss + loss * jnp.sum(batch.mask),
            )

        def event(position: Array, carry: tuple) -> tuple:
            lanes, sums, states, models = carry
            lanes = lax.fori_loop(
                0, schedule.steps[position], lambda _, lanes: stack.map(local_step, lanes), lanes
            )
            slot, following = schedule.slot[position], schedule.next[position]
            done = stack.get(lanes, schedule.lane[position])
            state, upload = method.finish(view_done(position, done))
            lane = lax.cond(following >= 0, start, lambda _: done, following)

            def add(total: PyTree, weight: Array, now: PyTree, before: PyTree) -> PyTree:
                return jax.tree.map(lambda t, w, w_g: t + weight * (w - w_g), total, now, before)

            sums = Sums(
                update=add(sums.update, weights[slot], done.params, server.params),
                stats=add(sums.stats, shares[slot], done.stats, server.stats),
                uploads=jax.tree.map(jnp.add, sums.uploads, upload),
                loss=sums.loss + done.loss,
            )
            model_ = (done.params, done.stats)
            return (
                stack.put(lanes, schedule.lane[position], lane),
                sums,
                set_row(states, position, state),
                set_row(models, position, model_) if settings.keep_models else (),
            )

        started = jax.vmap(start)(jnp.asarray(schedule.first))
        upload = jax.eval_shape(
            lambda lane: method.finish(view_done(jnp.int32(0), lane))[1], row(started, 0)
        )
        sums = Sums(
            update=optax.tree.zeros_like(server.params),
            stats=optax.tree.zeros_like(server.stats),
            uploads=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), upload),
            loss=jnp.zeros(()),
        )
        kept = jax.tree.map(
            lambda leaf: jnp.zeros((*schedule.slot.shape, *leaf.shape), leaf.dtype),
            (server.params, server.stats),
        )
        initial = (
            stack.from_stack(started),
            sums,
            client_states,
            kept if settings.keep_models else (),
        )
        _, *trained = lax.fori_loop(0, schedule.clients, event, initial)
        return jax.tree.map(lambda leaf: leaf[None], Trained(*trained))

    def merge(
        server: ServerState, cohort: Cohort, sums: Sums, learning_rate: Array, data: TrainingData
    ) -> tuple[ServerState, RoundMetrics]:
        total = lax.psum(row(sums, 0), AXIS)
        update, method_state = method.merge(
            MergeView(
                update=total.update,
                params=server.params,
                stats=server.stats,
                state=server.method,
                uploads=total.uploads,
                round=describe(server, cohort, learning_rate, data),
            )
        )
        params = optax.apply_updates(server.params, update)
        stats = jax.tree.map(jnp.add, server.stats, total.stats)
        examples = jnp.maximum(jnp.sum(cohort.epochs * data.size[cohort.clients]), 1)
        return (
            ServerState(params, method_state, server.round + 1, stats),
            RoundMetrics(train_loss=total.loss / examples),
        )

    split, same = PartitionSpec(AXIS), PartitionSpec()
    over_devices = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    return Round(
        train=over_devices(
            train, in_specs=(same, same, split, split, same, same, same), out_specs=split
        ),
        merge=over_devices(merge, in_specs=(same, same, split, same, same), out_specs=same),
    )
