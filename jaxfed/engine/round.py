"""One round of federated training as two pure functions, each compiled once.

`train` runs on every device for the clients assigned to it. Their parameters are stacked on an axis
of L lanes, which run local steps in a loop (see `stacking`). When a client's steps are done, its
update is added to the device's weighted sum and its lane takes the next client (see `lanes`). A
lane without a client continues to compute, and nothing reads its values, so no step needs a mask.
Devices do not communicate.

`merge` adds up the sums of all devices, the only communication of the two, and applies the server's
step.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from jaxfed.engine.devices import AXIS, REPLICATED, SPLIT, make_mesh, map_devices
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
from jaxfed.engine.stacking import Lanes, Stacking, map_range, row, set_row, stacking
from jaxfed.engine.types import RoundInputs, RoundMetrics, ServerState, Sums, Trained
from jaxfed.methods.method import CohortView, CombineView, MergeView, Method, ServerView
from jaxfed.types import Array, ClientInfo, Model, PyTree


class Round(NamedTuple):
    """The two functions of a round; each is pure and free of Python control flow on values."""

    # (inputs, states [D, M, ...] of the clients in the order of the schedule, schedule) -> Trained
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
    shift: Callable[[Array, Array], Array] | None = None,
) -> Round:
    """Build the functions of one round.

    Args:
      model: the network.
      method: the federated method.
      settings: of local training.
      augment: (key, raw x [B, ...]) -> x, for training batches.
      normalise: raw x [B, ...] -> x, for batches that are not augmented.
      tune: (traced hyper-parameters of `Tuned`) -> the method, if the hyper-parameters differ
        between experiments.
      mesh: the devices that train, from `devices.make_mesh`; None for the first device.
      stack: `STACKED` or `UNROLLED`; None for the backend's default.
      shift: (raw x [B, ...], client []) -> raw x, for all batches of clients.

    Returns:
      The functions.
    """
    context = Context(model, method, settings, augment, normalise, tune, stack or stacking(), shift)
    mesh = mesh or make_mesh(1)
    return Round(
        train=map_devices(partial(train, context), mesh, (REPLICATED, SPLIT, SPLIT)),
        merge=map_devices(partial(merge, context), mesh, (REPLICATED, SPLIT), REPLICATED),
    )


# Profiles and the compilation cache show the names `train` and `merge`.
def train(context: Context, inputs: RoundInputs, states: PyTree, schedule: Schedule) -> Trained:
    """`Round.train` on one device; `states` and `schedule` have its axis of length 1."""
    device, lanes = start_lanes(context, inputs, states, schedule)
    initial = context.stack.from_stack(lanes), _initial_results(context, device, lanes)
    finish_next = partial(_finish_next, context, device)
    _, trained = lax.fori_loop(0, device.schedule.clients, finish_next, initial)
    return jax.tree.map(lambda leaf: leaf[None], trained)


def start_lanes(
    context: Context, inputs: RoundInputs, states: PyTree, schedule: Schedule
) -> tuple[DeviceInputs, Lane]:
    """The inputs of a device, and its stacked lanes [L, ...] before the first local step."""
    states, schedule = row((states, schedule), 0)
    experiments = len(inputs.cohort.clients)
    shared, clients = map_range(partial(_open_round, context, inputs), experiments)
    clients = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), clients)
    device = DeviceInputs(inputs, shared, clients, states, schedule)
    return device, jax.vmap(partial(start_client, context, device))(jnp.asarray(schedule.first))


def _open_round(
    context: Context, inputs: RoundInputs, x: Array | int
) -> tuple[PyTree, SampledClients]:
    """The values that experiment x's server shares, and its clients before they train."""
    # The images have no axis of experiments.
    own = row(inputs._replace(data=inputs.data._replace(x=())), x)
    method, (clients, epochs) = context.method_of(own.tuned), own.cohort
    size, label_counts = own.data.size[clients], own.data.label_counts[clients]
    steps = epochs * steps_per_epoch(size, context.batch_size)
    share, weight = weights_of(context, inputs, x)
    # A client's random stream depends on the seed, the round and its id, not on its lane.
    round_key = jax.random.fold_in(own.keys, own.server.round)
    shared = share_values(context, inputs, x) if inputs.shared is None else own.shared
    infos = ClientInfo(label_counts, size, clients)
    static = jax.vmap(method.prepare)(infos)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(round_key, clients)
    return shared, SampledClients(clients, infos, static, steps, keys, share, weight)


def share_values(context: Context, inputs: RoundInputs, x: Array | int) -> PyTree:
    """What experiment x's server shares with the clients of the round."""
    server, tuned, auxiliary = row((inputs.server, inputs.tuned, inputs.data.auxiliary), x)
    apply = bind_stats(context.model.evaluate, server.stats)
    view = ServerView(
        params=server.params,
        stats=server.stats,
        state=server.method,
        predict=lambda x: predict(apply, server.params, x),
        auxiliary=auxiliary,
        round=round_info(context, inputs, x),
    )
    return context.method_of(tuned).share(view)


def weights_of(context: Context, inputs: RoundInputs, x: Array | int) -> tuple[Array, Array]:
    """Shares [S] of experiment x's clients by --aggregation, and the weights of their updates."""
    clients, epochs = row(inputs.cohort, x)
    arrived = epochs > 0
    size = arrived * inputs.data.size[x, clients]
    label_counts = arrived[:, None] * inputs.data.label_counts[x, clients]
    # A client without examples has no update to average.
    share = size if context.settings.aggregation == 'size' else size > 0
    share = share / jnp.maximum(jnp.sum(share), 1)
    steps = epochs * steps_per_epoch(size, context.batch_size)
    method, info = context.method_of(row(inputs.tuned, x)), round_info(context, inputs, x)
    return share, method.weigh(CohortView(share, size, label_counts, steps, info))


def _initial_results(context: Context, device: DeviceInputs, lanes: Lane) -> Trained:
    """Zero sums, the states before the round, and zeros for the local models."""
    server, experiments = device.round.server, len(device.round.cohort.clients)

    def zeros(tree: PyTree, *axes: int) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((*axes, *leaf.shape), leaf.dtype), tree)

    finish = partial(finish_client, context, device, jnp.int32(0))
    _, _, upload = jax.eval_shape(finish, row(lanes, 0))
    update, stats = zeros(server.params), zeros(server.stats)
    if context.method.combine:  # each client's update at its place
        places = device.round.cohort.clients.shape
        update = zeros(row(server.params, 0), *places)
    sums = Sums(update, stats, zeros(upload, experiments), *jnp.zeros((2, experiments)))
    model = row((server.params, server.stats), 0) if context.settings.keep_models else ()
    return Trained(sums, device.states, zeros(model, len(device.schedule.slot)))


def _finish_next(
    context: Context, device: DeviceInputs, position: Array, carry: tuple[Lanes, Trained]
) -> tuple[Lanes, Trained]:
    """Runs local steps until the client at `position` is done, and starts the next in its lane."""
    (lanes, (sums, states, models)), schedule, stack = carry, device.schedule, context.stack
    lanes = run_steps(context, device, schedule.steps[position], lanes)
    slot, following = schedule.slot[position], schedule.next[position]
    x = device.experiment(slot)
    done = stack.get(lanes, schedule.lane[position])
    update, state, upload = finish_client(context, device, position, done)
    start = partial(start_client, context, device)
    lane = lax.cond(following >= 0, start, lambda _: done, following)
    server, total = row((device.round.server, sums), x)

    def add(total: PyTree, weight: Array, change: PyTree) -> PyTree:
        return jax.tree.map(lambda t, c: t + weight * c, total, change)

    if context.method.combine:
        place = slot % device.round.cohort.clients.shape[1]
        updates = set_row(total.update, place, update)
    else:
        updates = add(total.update, device.clients.weight[slot], update)
    change = jax.tree.map(jnp.subtract, done.stats, server.stats)
    epochs = device.round.cohort.epochs.reshape(-1)[slot]
    # The loss of a client that cannot reach the model must not look as if the model had diverged.
    survives = context.method.survives_clients(server.stats)
    counts = jnp.isfinite(done.loss) if survives else jnp.bool_(True)
    total = Sums(
        update=updates,
        stats=add(total.stats, device.clients.share[slot], change),
        uploads=jax.tree.map(jnp.add, total.uploads, upload),
        loss=total.loss + jnp.where(counts, done.loss, 0.0),
        examples=total.examples + jnp.where(counts, epochs * done.info.size, 0),
    )
    model: PyTree = ()
    if context.settings.keep_models:
        personal = context.method_of(row(device.round.tuned, x)).personal
        model = personal(done.params) if personal else done.params, done.stats
    return stack.put(lanes, schedule.lane[position], lane), Trained(
        sums=set_row(sums, x, total),
        states=set_row(states, position, state),
        models=set_row(models, position, model),
    )


def run_steps(context: Context, device: DeviceInputs, steps: Array | int, lanes: Lanes) -> Lanes:
    """Runs local steps of all lanes."""
    step = partial(local_step, context, device)
    origins: tuple[Lanes, ...] = ()
    if len(device.round.cohort.clients) == 1:
        step = partial(step, origin=device.origin(jnp.int32(0)))
    else:
        # Gathered before the loop: XLA then moves the computations that depend on them alone there.
        origins = (context.stack.map(lambda lane: device.origin(lane.slot), lanes),)
    return lax.fori_loop(0, steps, lambda _, lanes: context.stack.map(step, lanes, *origins), lanes)


def merge(context: Context, inputs: RoundInputs, sums: Sums) -> tuple[ServerState, RoundMetrics]:
    """`Round.merge` on one device; `sums` has its axis of length 1."""
    totals = lax.psum(row(sums, 0), AXIS)
    merge_one = partial(_merge_experiment, context, inputs, totals)
    return map_range(merge_one, len(inputs.cohort.clients))


def _merge_experiment(
    context: Context, inputs: RoundInputs, totals: Sums, x: Array | int
) -> tuple[ServerState, RoundMetrics]:
    """The step of experiment x's server."""
    before, tuned, (clients, epochs), total = row(
        (inputs.server, inputs.tuned, inputs.cohort, totals), x
    )
    method, info, update = context.method_of(tuned), round_info(context, inputs, x), total.update
    arrived = (epochs > 0) & (inputs.data.size[x, clients] > 0)
    if method.combine:
        _, weights = weights_of(context, inputs, x)
        update = method.combine(CombineView(update, weights, arrived, info))
    round_key = jax.random.fold_in(inputs.keys[x], before.round)
    update, method_state = method.merge(
        MergeView(
            update=update,
            params=before.params,
            stats=before.stats,
            state=before.method,
            uploads=total.uploads,
            key=jax.random.fold_in(round_key, 0x73657276),
            round=info,
        )
    )
    after = ServerState(
        params=optax.apply_updates(before.params, update),
        method=method_state,
        round=before.round + 1,
        stats=jax.tree.map(jnp.add, before.stats, total.stats),
    )
    # An experiment without an update does not change, unless its method says so.
    changes = jnp.any(arrived)
    if method.always_merges:
        changes = jnp.bool_(True) if tuned.running is None else tuned.running > 0
    server = jax.tree.map(lambda new, old: jnp.where(changes, new, old), after, before)
    server = server._replace(round=after.round)
    loss = total.loss / jnp.maximum(total.examples, 1)
    loss = jnp.where(jnp.any(arrived) & (total.examples == 0), jnp.nan, loss)
    return server, RoundMetrics(loss)
