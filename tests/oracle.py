"""One round of federated training as plain loops over clients and batches, to compare with.

It uses only one part of the engine, the random streams: the key that orders a client's epoch.
Batches are cut exactly, without padding or mask; SGD is written out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.engine.local import epoch_order
from jaxfed.methods.method import (
    ClientView,
    CohortView,
    CombineView,
    LocalView,
    MergeView,
    RoundInfo,
    ServerView,
)
from jaxfed.types import Batch, ClientInfo


def batches(x, y, examples, batch_size):
    for begin in range(0, len(examples), batch_size):
        chosen = examples[begin : begin + batch_size]
        yield Batch(x[chosen], y[chosen], jnp.ones(len(chosen), bool))


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
):
    """A round with the engine's meaning; returns (params, stats, method state, states, loss)."""
    params, server_state, number = server.params, server.method, int(server.round) + 1
    x, y, global_stats = normalise(data.x), data.y, server.stats
    order, start, size = (np.asarray(a) for a in (data.order, data.start, data.size))
    info_of_round = RoundInfo(
        jnp.int32(number), learning_rate, settings.momentum, len(size), len(cohort),
        settings.local_epochs, jnp.int32(len(cohort)), len(cohort) * (1 - settings.dropout),
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
    sizes = size[cohort]
    epochs = epochs or [settings.local_epochs] * len(cohort)
    steps = np.array([e * -(-n // settings.batch_size) for e, n in zip(epochs, sizes)])
    weights = sizes / sizes.sum() if settings.aggregation == 'size' else np.ones(len(cohort))
    if settings.aggregation == 'uniform':
        weights = weights / len(cohort)
    shares = np.array(weights)
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
    mean_stats = jax.tree.map(jnp.zeros_like, global_stats)
    updates, uploads, new_states, loss_sum = [], None, [], 0.0
    for slot, client in enumerate(cohort):
        examples = order[start[client] : start[client] + size[client]]
        info = ClientInfo(data.label_counts[client], data.size[client], jnp.int32(client))
        static, state = method.prepare(info), jax.tree.map(lambda s, i=slot: s[i], states)

        def fold(f, carry, examples=examples):
            for batch in batches(x, y, examples, settings.batch_size):
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

        def local_view(
            w,
            stats,
            batch,
            epoch,
            info=info,
            static=static,
            state=state,
            begun=begun,
            origin=origin,
        ):
            outputs = model.train(w, batch.x, stats, batch.mask)
            return LocalView(
                w, outputs, batch, origin[0], bound(origin[1]), info, static, state, shared, begun,
                jnp.int32(epoch), info_of_round,
            )  # fmt: skip

        def objective(w, stats, batch, epoch, local_view=local_view):
            local = local_view(w, stats, batch, epoch)
            return jnp.mean(method.supervised(local)) + method.penalty(local), local.outputs.stats

        order_key, _ = jax.random.split(client_key)
        momentum = jax.tree.map(jnp.zeros_like, params)
        for epoch in range(epochs[slot]):
            shuffled = epoch_order(
                jax.random.fold_in(order_key, epoch), jnp.asarray(size[client]), settings.longest
            )
            shuffled = examples[np.asarray(shuffled)[: size[client]]]
            assert sorted(shuffled) == sorted(examples)
            for batch in batches(x, y, shuffled, settings.batch_size):
                differentiate = jax.value_and_grad(objective, has_aux=True)
                mask = jax.tree.map(lambda _: True, w)
                if method.trainable:
                    mask = method.trainable(local_view(w, stats, batch, epoch))
                (loss, stats), gradient = differentiate(w, stats, batch, epoch)
                loss_sum += float(loss) * len(batch.y)
                gradient = jax.tree.map(lambda g, p: g + settings.weight_decay * p, gradient, w)
                gradient = jax.tree.map(lambda g, keep: keep * g, gradient, mask)
                momentum = jax.tree.map(lambda m, g: settings.momentum * m + g, momentum, gradient)
                step = jax.tree.map(lambda m: learning_rate * m, momentum)
                w = jax.tree.map(lambda p, s, keep: p - s if keep else p, w, step, mask)
        after = view(w, stats, begun, jax.tree.map(jnp.subtract, w, params), origin)
        sent = method.send(after)
        updates.append(sent)
        state, upload = method.finish(after)
        mean_stats = jax.tree.map(lambda m, s, a=shares[slot]: m + a * s, mean_stats, stats)
        new_states.append(state)
        uploads = upload if uploads is None else jax.tree.map(jnp.add, uploads, upload)
        update = jax.tree.map(lambda u, s, a=weights[slot]: u + a * s, update, sent)
    if method.combine:
        updates = jax.tree.map(lambda *rows: jnp.stack(rows), *updates)
        arrived = jnp.ones(len(cohort), bool)
        update = method.combine(CombineView(updates, weights, arrived, info_of_round))
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
        loss_sum / np.dot(epochs, sizes),
    )
