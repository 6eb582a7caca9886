"""Local training: the lane of a client, its optimizer, its batches and one local step.

Every function is traced as part of `Round.train`, for one client. A `position` numbers the clients
of the device (see `lanes.Schedule`), a `slot` the clients of all cohorts, and `x` is the experiment
(see `types`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxfed.engine.fixed import evaluate_fixed
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.optimizers import local_optimizer
from jaxfed.engine.stacking import Stacking, row
from jaxfed.engine.types import RoundInputs, ServerState, Tuned
from jaxfed.methods.hooks import check_hooks
from jaxfed.methods.method import ClientView, LocalView, Method, RoundInfo
from jaxfed.types import Array, Batch, ClientInfo, Model, Outputs, PyTree


class LocalSettings(NamedTuple):
    """Settings of local training."""

    local_epochs: int  # E
    batch_size: int
    momentum: float
    weight_decay: float
    aggregation: str  # 'size' or 'uniform'
    longest: int  # examples of the largest client, or more
    image_shape: tuple[int, ...]  # height, width, channels
    keep_models: bool = False  # whether a round returns the local models
    optimizer: str = 'sgd'  # and as `local_optimizer`:
    clip_norm: float = 0.0
    accumulate_steps: int = 1
    dropout: float = 0.0  # probability that a client's update is lost, for `RoundInfo`


class Context(NamedTuple):
    """The constants of a round's trace."""

    model: Model
    method: Method
    settings: LocalSettings
    augment: Callable[[Array, Array], Array]  # (key, raw x [B, ...]) -> x, for training batches
    normalise: Callable[[Array], Array]  # raw x [B, ...] -> x, for other batches
    tune: Callable[[PyTree], Method] | None  # hyper-parameters -> method; None if constant
    stack: Stacking
    # (raw x, client) -> raw x, see `make_shift`
    shift: Callable[[Array, Array], Array] | None = None

    @property
    def batch_size(self) -> int:
        """Examples of a batch, at most those of the largest client."""
        return min(self.settings.batch_size, self.settings.longest)

    def method_of(self, tuned: Tuned) -> Method:
        """The method with the hyper-parameters of an experiment, with checked hooks."""
        return check_hooks(self.tune(tuned.hyperparameters) if self.tune else self.method)

    def momentum_of(self, tuned: Tuned) -> Any:
        """The momentum of an experiment's local optimizer."""
        return self.settings.momentum if tuned.momentum is None else tuned.momentum

    def optimizer_of(self, tuned: Tuned) -> optax.GradientTransformation:
        """The local optimizer of an experiment."""
        decay = self.settings.weight_decay if tuned.weight_decay is None else tuned.weight_decay
        momentum = self.momentum_of(tuned)
        return local_optimizer(
            self.settings.optimizer,
            tuned.learning_rate,
            momentum=momentum,
            weight_decay=decay,
            clip_norm=self.settings.clip_norm,
            accumulate_steps=self.settings.accumulate_steps,
            each_array=self.method.trainable is not None,
        )


class SampledClients(NamedTuple):
    """The cohort before its local training, [S, ...] or, by slot, [X S, ...]."""

    id: Array  # [S] int32
    info: ClientInfo  # [S, ...]
    static: PyTree  # [S, ...] from the method's `prepare`
    steps: Array  # [S] int32, batches in this round
    key: Array  # [S] random keys
    share: Array  # [S] float32, weight of the batch statistics
    weight: Array  # [S] float32, weight of the update


class DeviceInputs(NamedTuple):
    """The inputs of the clients of one device."""

    round: RoundInputs  # [X, ...]
    shared: PyTree  # [X, ...] from the method's `share`
    clients: SampledClients  # [X S, ...]
    states: PyTree  # [M, ...] before the round
    schedule: Schedule  # of this device: [M], [L]

    def experiment(self, slot: Array) -> Array | int:
        """The experiment of a slot; the constant 0 if there is only one, to gather nothing."""
        experiments, cohort_size = self.round.cohort.clients.shape
        return slot // cohort_size if experiments > 1 else 0

    def origin(self, slot: Array) -> tuple[ServerState, Tuned, PyTree]:
        """The server's state, tuned numbers and shared values of a client's experiment."""
        return row((self.round.server, self.round.tuned, self.shared), self.experiment(slot))


class Lane(NamedTuple):
    """A client in training: one entry of the stacked axis of L lanes."""

    params: PyTree
    stats: PyTree
    optimizer: optax.OptState
    slot: Array  # [] int32
    info: ClientInfo
    static: PyTree  # from `prepare`
    state: PyTree  # the method's state of the client before the round
    begun: PyTree  # from `begin`
    start: tuple[PyTree, PyTree] | tuple[()]  # from `receive`; () without
    order: Array  # [E, longest] int32, the client's examples in the order of each epoch
    key: Array  # [] random key of augmentation
    step: Array  # [] int32, batches done
    loss: Array  # [] float32, sum of the objective over examples


def steps_per_epoch(size: Any, batch_size: int) -> Any:
    """Batches in one epoch of `size` examples, ceil(n / B); a number or an array."""
    return -(-size // batch_size)


def epoch_order(key: Array, size: Array, longest: int) -> Array:
    """Positions 0..size-1 in random order, then the others up to `longest`; [longest] int32."""
    draw = jax.random.uniform(key, (longest,))
    return jnp.argsort(jnp.where(jnp.arange(longest) < size, draw, jnp.inf)).astype(jnp.int32)


def round_info(context: Context, inputs: RoundInputs, x: Array | int) -> RoundInfo:
    """The settings of experiment x's round, for the method."""
    tuned, sampled = row(inputs.tuned, x), inputs.cohort.clients.shape[1]
    dropout = context.settings.dropout if tuned.dropout is None else tuned.dropout
    return RoundInfo(
        number=inputs.server.round[x] + 1,
        learning_rate=tuned.learning_rate,
        momentum=context.momentum_of(tuned),
        num_clients=inputs.data.size.shape[1],
        clients_per_round=sampled,
        local_epochs=context.settings.local_epochs,
        cohort_size=jnp.sum(inputs.cohort.epochs[x] > 0),
        expected_size=sampled * (1 - dropout),
    )


def bind_stats(evaluate: Callable[..., Outputs], stats: PyTree) -> Callable[..., Outputs]:
    """The evaluation (params, x, stats) -> Outputs with `stats` as default."""

    def apply(params: PyTree, x: Array, stats: PyTree = stats) -> Outputs:
        return evaluate(params, x, stats)

    return apply


def start_client(context: Context, device: DeviceInputs, position: Array) -> Lane:
    """The lane of a client before its first local step."""
    slot, settings = device.schedule.slot[position], context.settings
    server, tuned, _ = device.origin(slot)
    order_key, augment_key = jax.random.split(device.clients.key[slot])
    epochs = jnp.arange(settings.local_epochs)
    epoch_keys = jax.vmap(jax.random.fold_in, (None, 0))(order_key, epochs)
    size = device.clients.info.size[slot]
    order = jax.vmap(epoch_order, (0, None, None))(epoch_keys, size, settings.longest)
    method = context.method_of(tuned)
    params, stats = start = server.params, server.stats
    view = _view_client(context, device, position, start, start, ())
    if method.receive:
        params, stats = start = method.receive(view)
        view = _view_client(context, device, position, start, start, ())
    return Lane(
        params=params,
        stats=stats,
        optimizer=context.optimizer_of(tuned).init(params),
        slot=slot,
        info=view.info,
        static=view.static,
        state=view.state,
        begun=method.begin(view),
        start=start if method.receive else (),
        order=_examples(context, device, slot)[order],
        key=augment_key,
        step=jnp.zeros((), jnp.int32),
        loss=jnp.zeros(()),
    )


def finish_client(
    context: Context, device: DeviceInputs, position: Array, lane: Lane
) -> tuple[PyTree, PyTree, PyTree]:
    """The update, the new state and the upload of a client whose local steps are done."""
    server, tuned, _ = device.origin(lane.slot)
    start = lane.start or (server.params, server.stats)
    view = _view_client(context, device, position, (lane.params, lane.stats), start, lane.begun)
    view = view._replace(update=jax.tree.map(jnp.subtract, lane.params, server.params))
    method = context.method_of(tuned)
    return method.send(view), *method.finish(view)


def local_step(
    context: Context, device: DeviceInputs, lane: Lane, origin: tuple[ServerState, Tuned, PyTree]
) -> Lane:
    """One step of the local optimizer on one batch; `origin` is that of the lane's client."""
    server, tuned, shared = origin
    global_params, stats = lane.start or (server.params, server.stats)
    method, batch = context.method_of(tuned), _draw_batch(context, device, lane)
    key = _network_key(lane) if context.model.random else None

    def view_of(params: PyTree) -> LocalView:
        outputs = context.model.train(params, batch.x, lane.stats, batch.mask, key)
        return LocalView(
            params=params,
            outputs=outputs,
            batch=batch,
            global_params=global_params,
            apply=bind_stats(context.model.evaluate, stats),
            evaluate=bind_stats(partial(evaluate_fixed, context.model), stats),
            info=lane.info,
            static=lane.static,
            state=lane.state,
            shared=shared,
            begun=lane.begun,
            epoch=_epoch(context, lane),
            round=round_info(context, device.round, device.experiment(lane.slot)),
        )

    def objective(params: PyTree) -> tuple[Array, PyTree]:
        view = view_of(params)
        return view.mean(method.supervised(view)) + method.penalty(view), view.outputs.stats

    (loss, new_stats), gradient = jax.value_and_grad(objective, has_aux=True)(lane.params)
    masked = {}
    if method.trainable:
        mask = method.trainable(view_of(lane.params))
        # Other arrays do not count for --clip_norm.
        gradient = jax.tree.map(lambda keep, g: jnp.where(keep, g, 0), mask, gradient)
        masked['mask'] = mask
    updates, optimizer = context.optimizer_of(tuned).update(
        gradient, lane.optimizer, lane.params, **masked
    )
    return lane._replace(
        params=optax.apply_updates(lane.params, updates),
        stats=new_stats,
        optimizer=optimizer,
        step=lane.step + 1,
        loss=lane.loss + loss * jnp.sum(batch.mask),
    )


def _view_client(
    context: Context, device: DeviceInputs, position: Array, model: tuple[PyTree, PyTree],
    start: tuple[PyTree, PyTree], begun: PyTree,
) -> ClientView:  # fmt: skip
    """The method's view of a client, from its parameters and statistics, now and at the start."""
    slot = device.schedule.slot[position]
    client, (_, _, shared) = row(device.clients, slot), device.origin(slot)
    batch_size = context.batch_size
    x, examples = device.experiment(slot), _examples(context, device, slot)

    def fold(f: Callable[[PyTree, Batch], PyTree], initial: PyTree) -> PyTree:
        def add_batch(i: Array, carry: PyTree) -> PyTree:
            places = i * batch_size + jnp.arange(batch_size)
            batch = _batch(context, context.normalise, device, x, examples, places, client.info)
            return f(carry, batch)

        return lax.fori_loop(0, steps_per_epoch(client.info.size, batch_size), add_batch, initial)

    return ClientView(
        params=model[0],
        stats=model[1],
        global_params=start[0],
        apply=bind_stats(context.model.evaluate, start[1]),
        fold=fold,
        info=client.info,
        static=client.static,
        state=row(device.states, position),
        update=(),
        shared=shared,
        begun=begun,
        steps=client.steps,
        key=jax.random.fold_in(client.key, 0x73656E64),
        round=round_info(context, device.round, x),
    )


def _examples(context: Context, device: DeviceInputs, slot: Array) -> Array:
    """The indices of a client's images, then of other clients' up to `longest`; [longest] int32."""
    x, data = device.experiment(slot), device.round.data
    first, within = data.start[x, device.clients.id[slot]], jnp.arange(context.settings.longest)
    return data.order[x, jnp.minimum(first + within, data.order.shape[1] - 1)]


def _draw_batch(context: Context, device: DeviceInputs, lane: Lane) -> Batch:
    """The training batch of a lane's next step."""
    batch_size, epoch = context.batch_size, _epoch(context, lane)
    places = lane.step % _per_epoch(context, lane) * batch_size + jnp.arange(batch_size)
    augment = partial(context.augment, jax.random.fold_in(lane.key, lane.step))
    x = device.experiment(lane.slot)
    return _batch(context, augment, device, x, lane.order[epoch], places, lane.info)


def _per_epoch(context: Context, lane: Lane) -> Array:
    """Local steps of an epoch of the lane's client, at least 1."""
    return jnp.maximum(steps_per_epoch(lane.info.size, context.batch_size), 1)


def _epoch(context: Context, lane: Lane) -> Array:
    """The epoch of a lane's next step, from 0."""
    return jnp.minimum(lane.step // _per_epoch(context, lane), context.settings.local_epochs - 1)


def _network_key(lane: Lane) -> Array:
    """The random key of the network in a lane's next step, for instance of its dropout."""
    # Augmentation derives its keys from the same one, by small numbers.
    return jax.random.fold_in(jax.random.fold_in(lane.key, lane.step), 0x6E657477)


def _batch(
    context: Context, prepare: Callable[[Array], Array], device: DeviceInputs, x: Array | int,
    order: Array, places: Array, client: ClientInfo,
) -> Batch:  # fmt: skip
    """The client's images at `places` [B] of `order` [longest]; those from its size are masked."""
    # Its last image pads the batch: a masked image of another client that overflows is 0 * inf.
    rows, data = order[jnp.minimum(places, jnp.maximum(client.size, 1) - 1)], device.round.data
    images = data.x[rows].reshape(len(rows), *context.settings.image_shape)
    if context.shift:
        images = context.shift(images, client.id)
    # Otherwise a GPU prepares a pixel again wherever it is read. A CPU drops the barrier.
    prepared = lax.optimization_barrier(prepare(images))
    return Batch(prepared, data.y[x, rows], places < client.size)
