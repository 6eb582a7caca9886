"""One round of federated training as two pure functions, made to be jitted once.

`train` runs on every device for the clients assigned to it. Their parameters are stacked on an axis
of L lanes, which run local steps in a loop (see `stacking`). When a client's steps are done, its
update is added to the device's weighted sum and its lane takes the next client (see `lanes`). A
lane without a client goes on computing values that nothing reads, so no step needs a mask for it.
Devices do not communicate.

`merge` adds up the sums of all devices, the only communication of a round, and takes the server's
step.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxfed.engine.devices import AXIS, make_mesh
from jaxfed.engine.evaluation import predict
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.local import (
    Context,
    DeviceInputs,
    Lane,
    LocalSettings,
    SampledClients,
    bind_stats,
    finish_client,
    local_step,
    round_info,
    start_client,
    steps_per_epoch,
)
from jaxfed.engine.stacking import Lanes, Stacking, each, row, set_row, stacking
from jaxfed.engine.types import RoundInputs, RoundMetrics, ServerState, Sums, Trained
from jaxfed.engine.types import TrainingData as TrainingData
from jaxfed.engine.types import Tuned as Tuned
from jaxfed.methods.method import CohortView, MergeView, Method, ServerView
from jaxfed.types import Array, ClientInfo, Model, PyTree


class Round(NamedTuple):
    """The two functions of a round; each is pure and free of Python control flow on values."""

    # (inputs, states [D, M, ...] of the clients as the schedule places them, schedule) -> Trained
    train: Callable[[RoundInputs, PyTree, Schedule], Trained]
    # (inputs, sums [D, X, ...]) -> (server, metrics)
    merge: Callable[[RoundInputs, Sums], tuple[ServerState, RoundMetrics]]


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
      tune: (traced hyper-parameters of `Tuned`) -> the method with them, if experiments differ in
        some.
      mesh: the devices that train, from `devices.make_mesh`; None for the first device.
      stack: how lanes are held; None for the default of the backend.

    Returns:
      The functions.
    """
    context = Context(model, method, settings, augment, normalise, tune, stack or stacking())
    split, same = PartitionSpec(AXIS), PartitionSpec()
    on_devices = functools.partial(jax.shard_map, mesh=mesh or make_mesh(1), check_vma=False)

    # Functions of these names, which profiles and the compilation cache show.
    def train(inputs: RoundInputs, states: PyTree, schedule: Schedule) -> Trained:
        return _train(context, inputs, states, schedule)

    def merge(inputs: RoundInputs, sums: Sums) -> tuple[ServerState, RoundMetrics]:
        return _merge(context, inputs, sums)

    return Round(
        train=on_devices(train, in_specs=(same, split, split), out_specs=split),
        merge=on_devices(merge, in_specs=(same, split), out_specs=same),
    )


def _train(context: Context, inputs: RoundInputs, states: PyTree, schedule: Schedule) -> Trained:
    """`Round.train` on one device, which holds an axis of length 1 of what is split."""
    states, schedule = row(states, 0), row(schedule, 0)
    open_one = functools.partial(_open_round, context, inputs)
    shared, clients = each(open_one, len(inputs.cohort.clients))
    clients = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), clients)
    device = DeviceInputs(inputs, shared, clients, states, schedule)
    lanes = jax.vmap(functools.partial(start_client, context, device))(jnp.asarray(schedule.first))
    initial = context.stack.from_stack(lanes), _nothing_trained(context, device, lanes)
    finish_next = functools.partial(_finish_next, context, device)
    _, trained = lax.fori_loop(0, schedule.clients, finish_next, initial)
    return jax.tree.map(lambda leaf: leaf[None], trained)


def _open_round(
    context: Context, inputs: RoundInputs, x: Array | int
) -> tuple[PyTree, SampledClients]:
    """What experiment x's server shares, and its clients before they train."""
    data = inputs.data._replace(x=())
    server, (clients, epochs), tuned, key, data = row(inputs._replace(data=data), x)
    method, info = context.method_of(tuned), round_info(context, inputs, x)
    size, label_counts = data.size[clients], data.label_counts[clients]
    steps = epochs * steps_per_epoch(size, context.batch_size)
    # A client's random stream depends on the seed, the round and its id, not on its lane.
    round_key = jax.random.fold_in(key, server.round)
    apply = bind_stats(context.model, server.stats)
    shared = method.share(
        ServerView(
            params=server.params,
            stats=server.stats,
            state=server.method,
            predict=lambda x: predict(apply, server.params, x),
            auxiliary=data.auxiliary,
            round=info,
        )
    )
    share = (epochs > 0) * (size if context.settings.aggregation == 'size' else 1)
    share = share / jnp.maximum(jnp.sum(share), 1)
    weight = method.weigh(
        CohortView(weights=share, size=size, label_counts=label_counts, steps=steps, round=info)
    )
    infos = ClientInfo(label_counts, size)
    static = jax.vmap(method.prepare)(infos)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(round_key, clients)
    return shared, SampledClients(clients, infos, static, steps, keys, share, weight)


def _nothing_trained(context: Context, device: DeviceInputs, lanes: Lane) -> Trained:
    """Zero sums and room for the clients' states and models, before any client has finished."""
    server, experiments = device.round.server, len(device.round.cohort.clients)

    def zeros(tree: PyTree, *axes: int) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((*axes, *leaf.shape), leaf.dtype), tree)

    finish = functools.partial(finish_client, context, device, jnp.int32(0))
    _, upload = jax.eval_shape(finish, row(lanes, 0))
    sums = Sums(
        update=zeros(server.params),
        stats=zeros(server.stats),
        uploads=zeros(upload, experiments),
        loss=jnp.zeros(experiments),
    )
    model = row((server.params, server.stats), 0) if context.settings.keep_models else ()
    return Trained(sums, device.states, zeros(model, len(device.schedule.slot)))


def _finish_next(
    context: Context, device: DeviceInputs, position: Array, carry: tuple[Lanes, Trained]
) -> tuple[Lanes, Trained]:
    """Runs local steps until the client at a position is done, and starts the next in its lane."""
    (lanes, (sums, states, models)), schedule, stack = carry, device.schedule, context.stack
    lanes = _run_steps(context, device, schedule.steps[position], lanes)
    slot, following = schedule.slot[position], schedule.next[position]
    x = device.experiment(slot)
    done = stack.get(lanes, schedule.lane[position])
    state, upload = finish_client(context, device, position, done)
    start = functools.partial(start_client, context, device)
    lane = lax.cond(following >= 0, start, lambda _: done, following)
    server, total = row(device.round.server, x), row(sums, x)

    def add(total: PyTree, weight: Array, after: PyTree, before: PyTree) -> PyTree:
        return jax.tree.map(lambda t, a, b: t + weight * (a - b), total, after, before)

    total = Sums(
        update=add(total.update, device.clients.weight[slot], done.params, server.params),
        stats=add(total.stats, device.clients.share[slot], done.stats, server.stats),
        uploads=jax.tree.map(jnp.add, total.uploads, upload),
        loss=total.loss + done.loss,
    )
    model = (done.params, done.stats) if context.settings.keep_models else ()
    return stack.put(lanes, schedule.lane[position], lane), Trained(
        sums=set_row(sums, x, total),
        states=set_row(states, position, state),
        models=set_row(models, position, model),
    )


def _run_steps(context: Context, device: DeviceInputs, steps: Array, lanes: Lanes) -> Lanes:
    """Runs local steps of all lanes."""
    step = functools.partial(local_step, context, device)
    extra: tuple[Lanes, ...] = ()
    if len(device.round.cohort.clients) == 1:
        step = functools.partial(step, origin=device.origin(jnp.int32(0)))
    else:
        # Gathered before the loop, so that what depends on it alone is computed there, too.
        extra = (context.stack.map(lambda lane: device.origin(lane.slot), lanes),)
    return lax.fori_loop(0, steps, lambda _, lanes: context.stack.map(step, lanes, *extra), lanes)


def _merge(context: Context, inputs: RoundInputs, sums: Sums) -> tuple[ServerState, RoundMetrics]:
    """`Round.merge` on one device, which holds an axis of length 1 of the sums."""
    totals = lax.psum(row(sums, 0), AXIS)
    merge_one = functools.partial(_merge_experiment, context, inputs, totals)
    return each(merge_one, len(inputs.cohort.clients))


def _merge_experiment(
    context: Context, inputs: RoundInputs, totals: Sums, x: Array | int
) -> tuple[ServerState, RoundMetrics]:
    """The step of experiment x's server."""
    before, tuned, (clients, epochs), total = row(
        (inputs.server, inputs.tuned, inputs.cohort, totals), x
    )
    update, method_state = context.method_of(tuned).merge(
        MergeView(
            update=total.update,
            params=before.params,
            stats=before.stats,
            state=before.method,
            uploads=total.uploads,
            round=round_info(context, inputs, x),
        )
    )
    after = ServerState(
        params=optax.apply_updates(before.params, update),
        method=method_state,
        round=before.round + 1,
        stats=jax.tree.map(jnp.add, before.stats, total.stats),
    )
    # An experiment whose clients are all lost stays as it is.
    arrived = jnp.any(epochs > 0)
    examples = jnp.maximum(jnp.sum(epochs * inputs.data.size[x, clients]), 1)
    return (
        jax.tree.map(lambda new, old: jnp.where(arrived, new, old), after, before),
        RoundMetrics(train_loss=total.loss / examples),
    )
