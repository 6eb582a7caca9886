"""The programs of a Flower run, the same on the server and on the clients."""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.config import Config
from jaxfed.data.augment import make_augment, normalise, parse_augment
from jaxfed.engine.lanes import schedule
from jaxfed.engine.remote import RemoteRound, make_remote_round
from jaxfed.engine.types import RoundInputs, ServerState, Sums, TrainingData, Tuned
from jaxfed.flower.messages import Facts
from jaxfed.runs.client_images import shift_of
from jaxfed.runs.experiment import build_method, build_model
from jaxfed.runs.prepare import initial_state, local_settings
from jaxfed.types import Batch, Cohort, PyTree, example_inputs


class Programs(NamedTuple):
    """The programs of a run and what they exchange."""

    round: RemoteRound  # jitted
    sent: tuple[PyTree, PyTree, PyTree]  # shapes: parameters, statistics, `share` [1, ...]
    client_state: PyTree  # [1, 1, ...] of a client before its first round, NumPy
    sums: Sums  # shapes: what a client answers


def make_programs(config: Config, facts: Facts) -> Programs:
    """Make the programs of a run; nothing is compiled before it is used."""
    _, method = build_method(config)
    height, width, channels = facts.input_shape
    shape = height, width, channels
    # The server sends the parameters; only it has the file of --init_from.
    plain = dataclasses.replace(config, init_from=None)
    _, model = build_model(plain, method, shape, facts.num_classes, facts.vocabulary)
    mean, std = (np.array(values, np.float32) for values in (facts.mean, facts.std))
    made = make_remote_round(
        model,
        method,
        local_settings(config, longest=facts.longest, image_shape=shape),
        make_augment(
            parse_augment(config.augment), mean=mean, std=std, batch_size=config.batch_size
        ),
        partial(normalise, mean=mean, std=std),
        shift=shift_of(config),
    )
    server, client = initial_state(config, model, method)
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], client)
    inputs = jax.eval_shape(lambda: _any_inputs(config, facts, server))
    shared = jax.eval_shape(made.share, inputs)
    sent = inputs.server.params, inputs.server.stats, shared
    trained = jax.eval_shape(
        made.train, inputs._replace(shared=shared), state, schedule([1], lanes=1)
    )
    sums = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), trained.sums)
    jitted: list[Any] = [jax.jit(program) for program in made]
    return Programs(RemoteRound(*jitted), sent, state, sums)


def _any_inputs(config: Config, facts: Facts, server: ServerState) -> RoundInputs:
    """Inputs of a round in the right shapes."""
    cohort = jnp.zeros((1, config.clients_per_round), jnp.int32)
    sizes = jnp.zeros((1, config.num_clients), jnp.int32)
    order = jnp.zeros((1, facts.longest), jnp.int32)
    x = example_inputs(facts.auxiliary, tuple(facts.input_shape), facts.vocabulary)
    y = jnp.zeros((1, facts.auxiliary), jnp.int32)
    batch = Batch(jnp.zeros((1, *x.shape), x.dtype), y, y == 0)
    rows = jnp.zeros((facts.longest, math.prod(facts.input_shape)), x.dtype)
    return RoundInputs(
        server=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], server),
        cohort=Cohort(cohort, cohort),
        tuned=Tuned(jnp.zeros(1)),
        keys=jax.random.key(0)[None],
        data=TrainingData(
            rows, order, order, sizes, sizes,
            jnp.zeros((*sizes.shape, facts.num_classes), jnp.int32),
            batch if facts.auxiliary else None,
        ),
    )  # fmt: skip
