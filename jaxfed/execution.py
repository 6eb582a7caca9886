"""A round as the host runs it: clients' states go to the devices that train them, and come back."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed import client_states as states_of
from jaxfed import hosts
from jaxfed.devices import fetch, replicate, split
from jaxfed.lanes import Schedule
from jaxfed.round import Round, RoundMetrics, ServerState, TrainingData
from jaxfed.types import Array, Cohort, PyTree


def compile_round(
    parts: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    plan: Schedule,
    learning_rate: Any,
    key: Array,
    data: TrainingData,
) -> Round:
    """Compile the functions of a round.

    Args:
      parts: from `make_round`.
      mesh: the same.
      server: and all others: of any round, as for `run_round`.
      client_states: see there.
      cohort: see there.
      plan: see there.
      learning_rate: see there.
      key: see there.
      data: see there.

    Returns:
      The compiled functions.
    """
    states, placed, sampled, rate = _place(mesh, client_states, cohort, plan, learning_rate)
    train = jax.jit(parts.train).lower(server, sampled, states, placed, rate, key, data).compile()
    merge = jax.jit(parts.merge).lower(server, sampled, train.out_info.sums, rate, data).compile()
    return Round(train, merge)


def peak_memory(program: Any) -> int:
    """Memory in bytes that a program takes on each device.

    Args:
      program: compiled.

    Returns:
      Arguments, results and what it needs besides.
    """
    told = program.memory_analysis()
    return int(told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes)


def run_round(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    plan: Schedule,
    learning_rate: Any,
    key: Array,
    data: TrainingData,
) -> tuple[ServerState, RoundMetrics, PyTree]:
    """Run a round in one piece.

    Args:
      programs: the functions of the round, compiled or jitted.
      mesh: the devices that they run on.
      server: replicated on them, as are `key` and `data`.
      client_states: from `client_states.create`, this process's rows of all clients' states. Those
        of the cohort are replaced in place.
      cohort: of S clients.
      plan: of the cohort, from `lanes.schedule`.
      learning_rate: of the clients in this round.
      key: of batches.
      data: the training data.

    Returns:
      (server, metrics, the local models as for `run_waves`).
    """
    server, metrics, models = run_waves(
        programs, mesh, server, client_states, cohort, [(plan, data)], learning_rate, key
    )
    assert metrics is not None
    return server, metrics, models[0][1]


def run_waves(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    waves: Iterable[tuple[Schedule, TrainingData]],
    learning_rate: Any,
    key: Array,
    *,
    keep: bool = True,
) -> tuple[ServerState, RoundMetrics | None, list[tuple[Schedule, PyTree]]]:
    """Run a round, some of its clients after others.

    Where no client's update arrives, there is no wave and the server stays as it is.

    Args:
      programs: as for `run_round`, like all that is not named here.
      mesh: see there.
      server: see there.
      client_states: see there.
      cohort: see there.
      waves: schedules whose slots together are those of the cohort, each with the data of its
        clients.
      learning_rate: see there.
      key: see there.
      keep: whether to give the local models.

    Returns:
      (server, metrics or None, the schedule of each wave and its clients' local models). The models
      are NumPy arrays, without room for others: (parameters, batch statistics), [n, ...] in the
      order of the used places of the schedule; () if the programs or `keep` do not give them.
    """
    sums: Any = None
    models: list[tuple[Schedule, PyTree]] = []
    for plan, data in waves:
        states, placed, sampled, rate = _place(mesh, client_states, cohort, plan, learning_rate)
        trained = programs.train(server, sampled, states, placed, rate, key, data)
        # A CPU's devices do not wait for each other inside a program: XLA ends the process when
        # they do so for 40 seconds, and clients are unequal.
        jax.block_until_ready(trained.sums)
        hosts.meet()
        sums = jax.tree.map(jnp.add, sums, trained.sums) if models else trained.sums
        used = plan.used
        states_of.put(client_states, cohort.clients[plan.slot], used, trained.states, mesh)
        own = trained.models if keep else ()
        models.append((plan, jax.tree.map(lambda rows, used=used: fetch(rows)[used], own)))
    if not models:
        return server, None, models
    server, metrics = programs.merge(server, sampled, sums, rate, data)
    return server, metrics, models


def _place(
    mesh: Mesh, client_states: PyTree, cohort: Cohort, plan: Schedule, learning_rate: Any
) -> tuple[PyTree, Schedule, Cohort, Array]:
    """The arguments that change from round to round, on the devices that need them."""
    states = states_of.take(client_states, cohort.clients[plan.slot], plan.used, mesh)
    placed = split(plan, mesh)
    sampled, rate = replicate((cohort, np.float32(learning_rate)), mesh)
    return states, placed, sampled, rate
