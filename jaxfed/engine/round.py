"""One round of federated training as two pure functions, made to be jitted once.

The round is one of X experiments that share the program, of one in most cases. What is an
experiment's own has a leading axis X, and a lane trains a client of any of them: the slot of client
s of experiment x is x S + s.

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

from jaxfed.engine.devices import AXIS, make_mesh
from jaxfed.engine.evaluation import predict
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local import (
    LocalSettings,
    _Client,
    _Lane,
    epoch_order,
    local_optimizer,
    steps_per_epoch,
)
from jaxfed.engine.stacking import Lanes, Stacking, each, row, set_row, stacking
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    LocalView,
    MergeView,
    Method,
    RoundInfo,
    ServerView,
)
from jaxfed.types import Array, Batch, ClientInfo, Cohort, Model, Outputs, PyTree


class TrainingData(NamedTuple):
    """All clients' examples on the device, held once; clients are stacked by index only.

    Images are those of all experiments; every other field has their axis X in a round.
    """

    x: Any  # [n, H, W, channels] uint8 or float32, in the file's own units
    y: Array  # [n] int32
    order: Array  # [m] int32, examples grouped by client
    start: Array  # [N] int32, where a client's group begins in `order`
    size: Array  # [N] int32
    label_counts: Array  # [N, C] int32
    auxiliary: Batch | None = None  # the server's own examples, normalised


class Tuned(NamedTuple):
    """Numbers that differ between the experiments of a program, or from round to round."""

    learning_rate: Any  # [] float32, of the clients' optimizer in this round
    momentum: Any = None  # [] float32, None for that of the settings
    weight_decay: Any = None  # the same
    hyperparameters: PyTree = ()  # name -> [] float32, for `tune`; () for those of the method


class ServerState(NamedTuple):
    """What the server keeps from round to round."""

    params: PyTree
    method: PyTree  # the method's server state
    round: Array  # [] int32, rounds done
    stats: PyTree = ()  # batch statistics, of a network that has them


class RoundMetrics(NamedTuple):
    """Numbers of a round."""

    train_loss: Array  # [X] mean of the local objective over all examples trained on


class Sums(NamedTuple):
    """What the clients that have finished leave, summed up."""

    update: PyTree  # [X, ...] weighted sum of their updates
    stats: PyTree  # [X, ...] weighted sum of the changes of their batch statistics
    uploads: PyTree  # [X, ...] sum of what they send besides
    loss: Array  # [X] sum of the local objective over all examples trained on


class Trained(NamedTuple):
    """What `train` gives: D devices, M positions on each, as in `lanes.Schedule`."""

    sums: Sums  # [D, X, ...] of each device
    states: PyTree  # [D, M, ...] the clients' new states
    models: PyTree  # [D, M, ...] their parameters and batch statistics, () unless they are kept


class Round(NamedTuple):
    """The two functions of a round; each is pure and free of Python control flow on values."""

    # (server, cohort, states [D, M, ...] of the clients as `schedule` places them, schedule, tuned,
    # keys [X], data) -> Trained
    train: Callable[..., Trained]
    # (server, cohort, sums, tuned, data) -> (server, metrics)
    merge: Callable[..., tuple[ServerState, RoundMetrics]]


class _Clients(NamedTuple):
    """What is known of an experiment's clients before they train, [S, ...]."""

    id: Array
    info: ClientInfo
    static: PyTree
    steps: Array
    key: Array
    share: Array  # of the batch statistics
    weight: Array  # of the update


def make_round(
    model: Model,
    method: Method,
    settings: LocalSettings,
    augment: Callable[[Array, Array], Array],
    normalise: Callable[[Array], Array],
    *,
    tune: Callable[[PyTree], Method] | None = None,
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
      tune: hyper-parameters -> the method with them, where experiments differ in some; they are
        those of `Tuned`, traced.
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

    def method_of(tuned: Tuned) -> Method:
        return tune(tuned.hyperparameters) if tune else method

    def momentum_of(tuned: Tuned) -> Any:
        return settings.momentum if tuned.momentum is None else tuned.momentum

    def optimizer_of(tuned: Tuned) -> optax.GradientTransformation:
        decay = settings.weight_decay if tuned.weight_decay is None else tuned.weight_decay
        return local_optimizer(tuned.learning_rate, momentum=momentum_of(tuned), weight_decay=decay)

    def describe(
        server: ServerState, epochs_done: Array, tuned: Tuned, data: TrainingData
    ) -> RoundInfo:
        return RoundInfo(
            number=server.round + 1,
            learning_rate=tuned.learning_rate,
            momentum=momentum_of(tuned),
            num_clients=data.size.shape[-1],
            cohort_size=jnp.sum(epochs_done > 0),
        )

    def apply_with(stats: PyTree) -> Callable[..., Outputs]:
        def apply(params: PyTree, x: Array, stats: PyTree = stats) -> Outputs:
            return model.evaluate(params, x, stats)

        return apply

    def open_round(
        given: tuple[ServerState, Cohort, Tuned, Array], data: TrainingData, round_info: RoundInfo
    ) -> tuple[PyTree, _Clients]:
        """What one experiment's server hands out, and what is known of its clients."""
        server, cohort, tuned, key = given
        own = method_of(tuned)
        infos = ClientInfo(data.label_counts[cohort.clients], data.size[cohort.clients])
        steps = cohort.epochs * steps_per_epoch(infos.size, batch_size)
        # A client's random stream depends on the seed, the round and its id, not on its lane.
        round_key = jax.random.fold_in(key, server.round)
        apply = apply_with(server.stats)
        shared = own.share(
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
        weights = own.weigh(
            CohortView(
                weights=shares,
                size=infos.size,
                label_counts=infos.label_counts,
                steps=steps,
                round=round_info,
            )
        )
        return shared, _Clients(
            id=cohort.clients,
            info=infos,
            static=jax.vmap(own.prepare)(infos),
            steps=steps,
            key=jax.vmap(jax.random.fold_in, (None, 0))(round_key, cohort.clients),
            share=shares,
            weight=weights,
        )

    def train(
        server: ServerState,
        cohort: Cohort,
        client_states: PyTree,
        schedule: Schedule,
        tuned: Tuned,
        keys: Array,
        data: TrainingData,
    ) -> Trained:
        # This device's share of what is dealt to the devices.
        client_states, schedule = row(client_states, 0), row(schedule, 0)
        experiments, cohort_size = cohort.clients.shape

        def info_of(x: Array | int) -> RoundInfo:
            return describe(row(server, x), cohort.epochs[x], row(tuned, x), data)

        def open_one(x: Array | int) -> tuple[PyTree, _Clients]:
            own = row((server, cohort, tuned, keys), x)
            return open_round(own, row(data._replace(x=()), x), info_of(x))

        shared, by_experiment = each(open_one, experiments)
        clients = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), by_experiment)

        def experiment_of(slot: Array) -> Array | int:
            # Known while tracing where there is one, so that nothing is looked up.
            return slot // cohort_size if experiments > 1 else 0

        def own_example(slot: Array) -> Array:
            x = experiment_of(slot)
            begin, within = data.start[x, clients.id[slot]], jnp.arange(settings.longest)
            return data.order[x, jnp.minimum(begin + within, data.order.shape[1] - 1)]

        def view_client(
            position: Array, params: PyTree, stats: PyTree, begun: PyTree
        ) -> ClientView:
            slot = schedule.slot[position]
            x, client = experiment_of(slot), row(clients, slot)
            size = client.info.size
            examples = own_example(slot)
            origin = row(server, x)

            def fold(f: Callable[[PyTree, Batch], PyTree], initial: PyTree) -> PyTree:
                def body(i: Array, carry: PyTree) -> PyTree:
                    position = i * batch_size + jnp.arange(batch_size)
                    example, mask = cut_batch(examples, position, size)
                    return f(carry, Batch(normalise(data.x[example]), data.y[x, example], mask))

                return lax.fori_loop(0, steps_per_epoch(size, batch_size), body, initial)

            return ClientView(
                params=params,
                stats=stats,
                global_params=origin.params,
                apply=apply_with(origin.stats),
                fold=fold,
                info=client.info,
                static=client.static,
                state=row(client_states, position),
                shared=row(shared, x),
                begun=begun,
                steps=client.steps,
                round=info_of(x),
            )

        def finish(position: Array, lane: _Lane) -> tuple[PyTree, PyTree]:
            own = method_of(row(tuned, experiment_of(lane.client.slot)))
            return own.finish(view_client(position, lane.params, lane.stats, lane.client.begun))

        def start(position: Array) -> _Lane:
            slot = schedule.slot[position]
            x = experiment_of(slot)
            origin, own = row(server, x), row(tuned, x)
            order_key, augment_key = jax.random.split(clients.key[slot])
            epoch_keys = jax.vmap(jax.random.fold_in, (None, 0))(order_key, jnp.arange(epochs))
            order = jax.vmap(epoch_order, (0, None, None))(
                epoch_keys, clients.info.size[slot], settings.longest
            )
            view = view_client(position, origin.params, origin.stats, ())
            return _Lane(
                params=origin.params,
                stats=origin.stats,
                optimizer=optimizer_of(own).init(origin.params),
                client=_Client(
                    slot=slot,
                    info=view.info,
                    static=view.static,
                    state=view.state,
                    begun=method_of(own).begin(view),
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
            y = data.y[experiment_of(client.slot), example]
            return Batch(augment(key, data.x[example]), y, mask)

        def handed_out(lane: _Lane) -> tuple[ServerState, Tuned, PyTree]:
            return row((server, tuned, shared), experiment_of(lane.client.slot))

        def local_step(lane: _Lane, handed: tuple[ServerState, Tuned, PyTree]) -> _Lane:
            client, (origin, own, common) = lane.client, handed
            hooks = method_of(own)
            batch = draw_batch(client, lane.step)

            def objective(params: PyTree) -> tuple[Array, PyTree]:
                outputs = model.train(params, batch.x, lane.stats, batch.mask)
                view = LocalView(
                    params=params,
                    outputs=outputs,
                    batch=batch,
                    global_params=origin.params,
                    apply=apply_with(origin.stats),
                    info=client.info,
                    static=client.static,
                    state=client.state,
                    shared=common,
                    begun=client.begun,
                    round=info_of(experiment_of(client.slot)),
                )
                loss = view.mean(hooks.supervised(view)) + hooks.penalty(view)
                return loss, outputs.stats

            differentiate = jax.value_and_grad(objective, has_aux=True)
            (loss, stats), gradient = differentiate(lane.params)
            updates, optimizer_state = optimizer_of(own).update(
                gradient, lane.optimizer, lane.params
            )
            return _Lane(
                params=optax.apply_updates(lane.params, updates),
                stats=stats,
                optimizer=optimizer_state,
                client=client,
                step=lane.step + 1,
                loss=lane.loss + loss * jnp.sum(batch.mask),
            )

        def run(steps: Array, lanes: Lanes) -> Lanes:
            if experiments == 1:
                handed = row((server, tuned, shared), 0)
                step = functools.partial(local_step, handed=handed)
                return lax.fori_loop(0, steps, lambda _, lanes: stack.map(step, lanes), lanes)
            # Looked up before the loop, so that what only depends on it stays out of it, too.
            each_handed = stack.map(handed_out, lanes)
            return lax.fori_loop(
                0, steps, lambda _, lanes: stack.map(local_step, lanes, each_handed), lanes
            )

        def event(position: Array, carry: tuple) -> tuple:
            lanes, sums, states, models = carry
            lanes = run(schedule.steps[position], lanes)
            slot, following = schedule.slot[position], schedule.next[position]
            x = experiment_of(slot)
            done = stack.get(lanes, schedule.lane[position])
            state, upload = finish(position, done)
            lane = lax.cond(following >= 0, start, lambda _: done, following)
            origin, total = row(server, x), row(sums, x)

            def add(total: PyTree, weight: Array, now: PyTree, before: PyTree) -> PyTree:
                return jax.tree.map(lambda t, w, w_g: t + weight * (w - w_g), total, now, before)

            total = Sums(
                update=add(total.update, clients.weight[slot], done.params, origin.params),
                stats=add(total.stats, clients.share[slot], done.stats, origin.stats),
                uploads=jax.tree.map(jnp.add, total.uploads, upload),
                loss=total.loss + done.loss,
            )
            model_ = (done.params, done.stats)
            return (
                stack.put(lanes, schedule.lane[position], lane),
                set_row(sums, x, total),
                set_row(states, position, state),
                set_row(models, position, model_) if settings.keep_models else (),
            )

        started = jax.vmap(start)(jnp.asarray(schedule.first))
        upload = jax.eval_shape(lambda lane: finish(jnp.int32(0), lane)[1], row(started, 0))
        sums = Sums(
            update=optax.tree.zeros_like(server.params),
            stats=optax.tree.zeros_like(server.stats),
            uploads=jax.tree.map(
                lambda leaf: jnp.zeros((experiments, *leaf.shape), leaf.dtype), upload
            ),
            loss=jnp.zeros(experiments),
        )
        kept = jax.tree.map(
            lambda leaf: jnp.zeros((*schedule.slot.shape, *leaf.shape[1:]), leaf.dtype),
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
        server: ServerState, cohort: Cohort, sums: Sums, tuned: Tuned, data: TrainingData
    ) -> tuple[ServerState, RoundMetrics]:
        totals = lax.psum(row(sums, 0), AXIS)

        def merge_one(x: Array | int) -> tuple[ServerState, RoundMetrics]:
            before, total, own, sampled = row((server, totals, tuned, cohort), x)
            update, method_state = method_of(own).merge(
                MergeView(
                    update=total.update,
                    params=before.params,
                    stats=before.stats,
                    state=before.method,
                    uploads=total.uploads,
                    round=describe(before, sampled.epochs, own, data),
                )
            )
            after = ServerState(
                params=optax.apply_updates(before.params, update),
                method=method_state,
                round=before.round + 1,
                stats=jax.tree.map(jnp.add, before.stats, total.stats),
            )
            # An experiment whose clients are all lost stays as it is, whatever others do.
            arrived = jnp.any(sampled.epochs > 0)
            examples = jnp.maximum(jnp.sum(sampled.epochs * data.size[x, sampled.clients]), 1)
            return (
                jax.tree.map(lambda new, old: jnp.where(arrived, new, old), after, before),
                RoundMetrics(train_loss=total.loss / examples),
            )

        return each(merge_one, cohort.clients.shape[0])

    split, same = PartitionSpec(AXIS), PartitionSpec()
    over_devices = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    return Round(
        train=over_devices(
            train, in_specs=(same, same, split, split, same, same, same), out_specs=split
        ),
        merge=over_devices(merge, in_specs=(same, same, split, same, same), out_specs=same),
    )
