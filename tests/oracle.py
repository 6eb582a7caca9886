"""Federated training as plain loops over rounds, clients and batches, to compare with.

It uses only one part of the engine, the random streams: the key that orders a client's epoch.
Batches are cut exactly, without padding or mask; the optimizers are written out.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed import losses
from jaxfed.data.augment import normalise
from jaxfed.engine.local import epoch_order
from jaxfed.engine.types import TrainingData
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    CombineView,
    LocalView,
    MergeView,
    RoundInfo,
    ServerView,
)
from jaxfed.models.norm import EPSILON
from jaxfed.runs.client_images import shift_of
from jaxfed.runs.experiment import cohort_of
from jaxfed.runs.learning_rate import learning_rate
from jaxfed.runs.placement import auxiliary_batch
from jaxfed.runs.prepare import initial_state, local_settings
from jaxfed.runs.seeds import seed_of
from jaxfed.types import Batch, ClientInfo

# Numbers of a round that are constants of a program.
COUNTS = 'num_clients', 'clients_per_round', 'local_epochs'


def run_experiment(experiment, noise=0.0):
    """An experiment from its first round to its last.

    Args:
      experiment: from `set_up`.
      noise: standard deviation of a relative change of the initial parameters, and of a change of
        each gradient relative to its largest element, as sums that cancel have.

    Returns:
      (server, clients' states [N, ...], [(train loss or None, test loss) of each round]).
    """
    config, dealt = experiment.config, experiment.dealt
    model, method = experiment.model, experiment.method
    to_input = functools.partial(normalise, mean=experiment.mean, std=experiment.std)
    server, of_client = initial_state(config, model, method)
    rng = np.random.default_rng(0)

    def disturb(gradient, examples):
        # The deviation of one example from its mean is rounding, which normalisation enlarges.
        change = noise * EPSILON**-0.5 if model.stats and examples == 1 else noise
        largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient))
        scale = np.float32(change * largest)
        return jax.tree.map(lambda g: g + scale * rng.normal(size=g.shape).astype('f'), gradient)

    if noise:
        factors = jax.tree.map(lambda p: 1 + noise * rng.normal(size=p.shape), server.params)
        params = jax.tree.map(lambda p, f: p * f.astype(np.float32), server.params, factors)
        server = server._replace(params=params)
    states = jax.tree.map(lambda s: jnp.stack([s] * config.num_clients), of_client)
    longest = max(map(len, dealt.partition))
    settings = local_settings(config, longest=longest, image_shape=experiment.input_shape)
    x_test, y_test = to_input(jnp.asarray(dealt.dataset.x_test)), dealt.dataset.y_test
    recorded = []
    for number in range(1, config.rounds + 1):
        clients, epochs = cohort_of(experiment, number)
        arrived = np.flatnonzero(epochs)
        loss = 0.0
        if arrived.size or method.always_merges:
            # Where nobody arrives, client 0 stands for the shapes; it does not train.
            cohort = clients[arrived] if arrived.size else clients[:1]
            params, stats, state, rows, loss = run_round(
                model, method, settings, to_input, server, cohort,
                jax.tree.map(lambda s, c=cohort: s[c], states),
                jnp.float32(learning_rate(config, number)),
                jax.random.key(seed_of(config, 'batches')), training_data(dealt, to_input),
                epochs=epochs[arrived] if arrived.size else epochs[:1],
                clients_per_round=config.clients_per_round, shift=shift_of(config),
                disturb=disturb if noise else None,
            )  # fmt: skip
            if dealt.size[clients[arrived]].any() or method.always_merges:
                server = server._replace(params=params, method=state, stats=stats)
            states = jax.tree.map(lambda s, r, c=cohort: s.at[c].set(r), states, rows)
        server = server._replace(round=server.round + 1)
        logits = model.evaluate(server.params, x_test, server.stats).logits
        test_loss = float(losses.cross_entropy(logits, y_test).mean())
        recorded.append((loss if arrived.size else None, test_loss))
    return server, states, recorded


def training_data(dealt, to_input):
    """The clients' examples and those of the server, without the axis of experiments."""
    size = dealt.size.astype(np.int32)
    leaves = (
        dealt.dataset.x_train, dealt.dataset.y_train, np.concatenate(dealt.partition),
        (np.cumsum(size) - size).astype(np.int32), size, dealt.label_counts.astype(np.int32),
    )  # fmt: skip
    return TrainingData(*map(jnp.asarray, leaves), auxiliary_batch(dealt, to_input))


def run_round(
    model,
    method,
    settings,
    normalise,
    server,
    cohort,
    states,
    learning_rate,
    key,
    data,
    epochs=None,
    clients_per_round=None,
    shift=None,
    disturb=None,
):
    """A round with the engine's meaning; returns (params, stats, method state, states, loss).

    The cohort has the clients whose update arrives, while `clients_per_round` counts all. A client
    of 0 `epochs` changes nothing. `disturb` changes the gradients.
    """
    params, server_state, number = server.params, server.method, int(server.round) + 1
    x, y, global_stats = data.x, data.y, server.stats
    clients_per_round = clients_per_round or len(cohort)
    epochs = np.full(len(cohort), settings.local_epochs) if epochs is None else np.asarray(epochs)
    arrived = epochs > 0
    order, start, size = (np.asarray(a) for a in (data.order, data.start, data.size))
    info_of_round = RoundInfo(
        jnp.int32(number), learning_rate, settings.momentum, len(size), clients_per_round,
        settings.local_epochs, jnp.int32(arrived.sum()),
        clients_per_round * (1 - settings.dropout),
    )  # fmt: skip

    def evaluate(w, inputs, stats=global_stats):
        return model.evaluate(w, inputs, stats)

    def bound(of_client):
        return lambda w, inputs, stats=of_client: model.evaluate(w, inputs, stats)

    shared = method.share(
        ServerView(
            params,
            global_stats,
            server_state,
            lambda inputs: evaluate(params, inputs).logits,
            data.auxiliary,
            info_of_round,
        )
    )
    sizes = size[cohort] * arrived
    steps = np.array([e * -(-n // settings.batch_size) for e, n in zip(epochs, sizes)], int)
    shares = sizes if settings.aggregation == 'size' else sizes > 0
    weights = shares = shares / max(shares.sum(), 1)
    weights = method.weigh(
        CohortView(
            jnp.asarray(weights, jnp.float32),
            jnp.asarray(sizes),
            data.label_counts[cohort],
            jnp.asarray(steps),
            info_of_round,
        )
    )
    update = jax.tree.map(jnp.zeros_like, params)
    mean_stats = global_stats
    updates, uploads, new_states, losses_of = [], None, [], np.zeros(len(cohort))
    for slot, client in enumerate(cohort):
        examples = order[start[client] : start[client] + size[client]]
        info = ClientInfo(data.label_counts[client], data.size[client], jnp.int32(client))
        static, state = method.prepare(info), jax.tree.map(lambda s, i=slot: s[i], states)

        def batches_of(examples, client=client):
            for begin in range(0, len(examples), settings.batch_size):
                chosen = examples[begin : begin + settings.batch_size]
                images = shift(x[chosen], jnp.int32(client)) if shift else x[chosen]
                yield Batch(normalise(images), y[chosen], jnp.ones(len(chosen), bool))

        def fold(f, carry, examples=examples, batches_of=batches_of):
            for batch in batches_of(examples):
                carry = f(carry, batch)
            return carry

        client_key = jax.random.fold_in(jax.random.fold_in(key, server.round), client)

        def view(
            w, stats, begun, update=(), origin=(params, global_stats), fold=fold, info=info,
            static=static, state=state, slot=slot, client_key=client_key,
        ):  # fmt: skip
            return ClientView(
                w, stats, origin[0], update, bound(origin[1]), fold, info, static, state, shared,
                begun, jnp.asarray(steps[slot]), jax.random.fold_in(client_key, 0x73656E64),
                info_of_round,
            )  # fmt: skip

        origin = params, global_stats
        if method.receive:
            origin = method.receive(view(*origin, ()))
        w, stats = origin
        begun = method.begin(view(w, stats, (), origin=origin))

        context = Context(origin, info, static, state, shared, begun, info_of_round)
        order_key, _ = jax.random.split(client_key)
        optimizer = Optimizer(settings, learning_rate, w)
        for epoch in range(epochs[slot]):
            shuffled = epoch_order(
                jax.random.fold_in(order_key, epoch), jnp.asarray(size[client]), settings.longest
            )
            shuffled = examples[np.asarray(shuffled)[: size[client]]]
            assert sorted(shuffled) == sorted(examples)
            for batch in batches_of(shuffled):
                mask = jax.tree.map(lambda _: True, w)
                if method.trainable:
                    mask = method.trainable(local_view(model, w, stats, batch, epoch, context))
                loss, stats, gradient = differentiate(
                    model, method, w, stats, batch, epoch, context
                )
                losses_of[slot] += float(loss) * len(batch.y)
                if disturb:
                    gradient = disturb(gradient, len(batch.y))
                w = optimizer.step(gradient, w, mask)
        after = view(w, stats, begun, jax.tree.map(jnp.subtract, w, params), origin)
        sent = method.send(after)
        updates.append(sent)
        new_state, upload = method.finish(after)
        state = new_state if arrived[slot] else state
        upload = jax.tree.map(lambda leaf, a=arrived[slot]: a * leaf, upload)
        mean_stats = jax.tree.map(
            lambda m, s, g, a=shares[slot]: m + a * (s - g), mean_stats, stats, global_stats
        )
        new_states.append(state)
        uploads = upload if uploads is None else jax.tree.map(jnp.add, uploads, upload)
        update = jax.tree.map(lambda u, s, a=weights[slot]: u + a * s, update, sent)
    if method.combine:
        lost = clients_per_round - len(cohort)
        rows = jax.tree.map(lambda *rows: padded(jnp.stack(rows), lost), *updates)
        arrived = padded(jnp.asarray(sizes > 0), lost)
        update = method.combine(CombineView(rows, padded(weights, lost), arrived, info_of_round))
    server_key = jax.random.fold_in(jax.random.fold_in(key, server.round), 0x73657276)
    update, server_state = method.merge(
        MergeView(update, params, global_stats, server_state, uploads, server_key, info_of_round)
    )
    params = jax.tree.map(jnp.add, params, update)
    states = jax.tree.map(lambda *rows: jnp.stack(rows), *new_states)
    return (
        params,
        mean_stats,
        server_state,
        states,
        mean_loss(method, losses_of, epochs * sizes),
    )


def mean_loss(method, sums, examples):
    """Over all examples; if the method survives clients that diverge, over those of the others."""
    trained = examples > 0
    if method.combine or method.privacy:
        trained &= np.isfinite(sums)
        if examples.any() and not trained.any():
            return np.nan
    return sums[trained].sum() / max(examples[trained].sum(), 1)


class Context(NamedTuple):
    """What a client's local steps read and do not change."""

    origin: Any  # (params, stats) with which they begin
    info: Any
    static: Any
    state: Any
    shared: Any
    begun: Any
    round: RoundInfo


def local_view(model, params, stats, batch, epoch, context):
    """What the method sees in a local step."""
    (origin, of_origin), *rest, round_info = context

    def apply(w, inputs, stats=of_origin):
        return model.evaluate(w, inputs, stats)

    def evaluate(*arguments):
        return jax.lax.stop_gradient(apply(*arguments))

    outputs = model.train(params, batch.x, stats, batch.mask)
    views = params, outputs, batch, origin, apply, evaluate
    return LocalView(*views, *rest, jnp.int32(epoch), round_info)


def differentiate(model, method, params, stats, batch, epoch, context):
    """A local step's (loss, new batch statistics, gradient)."""
    counts = {name: getattr(context.round, name) for name in COUNTS}
    # A network with its initial statistics has no hash; whether it has any is enough.
    hashable = model._replace(stats=bool(model.stats))
    compiled = compiled_gradient(hashable, method, tuple(counts.items()))
    traced = context._replace(round=context.round._replace(**dict.fromkeys(COUNTS)))
    (loss, stats), gradient = compiled(params, stats, batch, epoch, traced)
    return loss, stats, gradient


@functools.lru_cache(maxsize=8)
def compiled_gradient(model, method, counts):
    """`differentiate` as a program, which the steps with batches of one size share."""

    def objective(params, stats, batch, epoch, context):
        context = context._replace(round=context.round._replace(**dict(counts)))
        view = local_view(model, params, stats, batch, epoch, context)
        loss = jnp.mean(method.supervised(view)) + method.penalty(view)
        return loss, view.outputs.stats

    return jax.jit(jax.value_and_grad(objective, has_aux=True))


def padded(rows, number):
    """Rows with a number of zeros after them, for clients that are lost."""
    return jnp.pad(rows, [(0, number)] + [(0, 0)] * (rows.ndim - 1))


class Optimizer:
    """The local optimizers written out, for the arrays where the mask is True."""

    def __init__(self, settings, learning_rate, params):
        self.settings, self.learning_rate = settings, learning_rate
        self.momentum = jax.tree.map(jnp.zeros_like, params)
        self.square, self.sum, self.batches = self.momentum, self.momentum, 0
        self.steps = jax.tree.map(lambda _: 0, params)  # in which an array trains

    def step(self, gradient, params, mask):
        """The parameters after a batch with this gradient."""
        every = self.settings.accumulate_steps
        gradient = jax.tree.map(lambda g, keep: g if keep else 0 * g, gradient, mask)
        self.sum = jax.tree.map(lambda s, g: s + g / every, self.sum, gradient)
        self.batches += 1
        if self.batches % every:
            return params
        self.steps = jax.tree.map(lambda n, keep: n + int(keep), self.steps, mask)
        before = self.momentum, self.square
        change = self.change(self.sum, params)
        after = self.momentum, self.square
        self.momentum, self.square = (
            jax.tree.map(lambda new, old, keep: new if keep else old, *pair, mask)
            for pair in zip(after, before)
        )
        self.sum = jax.tree.map(jnp.zeros_like, params)
        return jax.tree.map(lambda p, c, keep: p - c if keep else p, params, change, mask)

    def change(self, gradient, params):
        """What the step subtracts."""
        s = self.settings
        if s.clip_norm:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
            scale = s.clip_norm / max(norm, s.clip_norm)
            gradient = jax.tree.map(lambda g: g * scale, gradient)
        gradient = jax.tree.map(lambda g, p: g + s.weight_decay * p, gradient, params)
        rho = 0.9 if s.optimizer == 'adam' else s.momentum
        self.momentum = jax.tree.map(lambda m, g: rho * m + g, self.momentum, gradient)
        if s.optimizer == 'sgd':
            direction = self.momentum
        elif s.optimizer == 'nesterov':
            direction = jax.tree.map(lambda m, g: rho * m + g, self.momentum, gradient)
        elif s.optimizer == 'adam':
            decayed = lambda v, g: 0.999 * v + 0.001 * g**2  # noqa: E731
            self.square = jax.tree.map(decayed, self.square, gradient)

            # In float32 as in optax: float64 changes `second` by 2e-5, so that `topk` would choose
            # others of nearly equal entries.
            def adam(m, v, number):
                number = max(number, 1)  # an array that has not trained yet has no step
                beta1, beta2 = jnp.float32(0.9), jnp.float32(0.999)
                first, second = 0.1 / (1 - beta1**number), 1 / (1 - beta2**number)
                return first * m / (jnp.sqrt(second * v) + 1e-8)

            direction = jax.tree.map(adam, self.momentum, self.square, self.steps)
        return jax.tree.map(lambda d: self.learning_rate * d, direction)
