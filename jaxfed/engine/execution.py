"""A round as the host runs it: clients' states go to the devices that train them, and come back."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import fetch, replicate, split
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.round import Round, RoundMetrics, ServerState, TrainingData, Tuned
from jaxfed.types import Array, Cohort, PyTree


def compile_round(
    parts: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    plan: Schedule,
    tuned: Tuned,
    keys: Array,
    data: TrainingData,
) -> Round:
    """Compile the functions of a round.

    Args:
      parts: from `make_round`.
      mesh: the same.
      server: and all others: of any round, as for `run_waves`.
      client_states: see there.
      cohort: see there.
      plan: see there.
      tuned: see there.
      keys: see there.
      data: see there.

    Returns:
      The compiled functions.
    """
    states, placed, sampled, own = _place(mesh, client_states, cohort, plan, tuned, data)
    train = jax.jit(parts.train).lower(server, sampled, states, placed, own, keys, data).compile()
    merge = jax.jit(parts.merge).lower(server, sampled, train.out_info.sums, own, data).compile()
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


def run_waves(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    waves: Iterable[tuple[Schedule, TrainingData]],
    tuned: Tuned,
    keys: Array,
    *,
    keep: bool = True,
) -> tuple[ServerState, RoundMetrics | None, list[tuple[Schedule, PyTree]]]:
    """Run a round of X experiments, some of the clients after others.

    Where no client's update arrives, there is no wave and the server stays as it is.

    Args:
      programs: the functions of the round, compiled or jitted.
      mesh: the devices that they run on.
      server: [X, ...], replicated on them, as are `keys` and the data.
      client_states: from `client_states.create`, this process's rows of the states of all clients
        of one experiment after another. Those of the cohort are replaced in place.
      cohort: [X, S].
      waves: schedules whose slots together are those of the cohort, each with the data of its
        clients.
      tuned: [X] arrays.
      keys: [X] of batches.
      keep: whether to give the local models.

    Returns:
      (server, metrics or None, the schedule of each wave and its clients' local models). The models
      are NumPy arrays, without room for others: (parameters, batch statistics), [n, ...] in the
      order of the used places of the schedule; () if the programs or `keep` do not give them.
    """
    sums: Any = None
    models: list[tuple[Schedule, PyTree]] = []
    for plan, data in waves:
        states, placed, sampled, own = _place(mesh, client_states, cohort, plan, tuned, data)
        trained = programs.train(server, sampled, states, placed, own, keys, data)
        # A CPU's devices do not wait for each other inside a program: XLA ends the process when
        # they do so for 40 seconds, and clients are unequal.
        jax.block_until_ready(trained.sums)
        distributed.meet('wave')
        sums = jax.tree.map(jnp.add, sums, trained.sums) if models else trained.sums
        used = plan.used
        rows = state_rows(cohort, plan.slot, data.size.shape[1])
        states_of.put(client_states, rows, used, trained.states, mesh)
        kept = trained.models if keep else ()
        models.append((plan, jax.tree.map(lambda leaf, used=used: fetch(leaf)[used], kept)))
    if not models:
        return server, None, models
    server, metrics = programs.merge(server, sampled, sums, own, data)
    return server, metrics, models


def state_rows(cohort: Cohort, slots: np.ndarray, num_clients: int) -> np.ndarray:
    """Where the states of clients are.

    x N + i of client i of experiment x

    Args:
      cohort: [X, S].
      slots: places in the cohort, x S + s, of any shape.
      num_clients: N.

    Returns:
      Rows of the clients' states, of the same shape.
    """
    experiment, place = np.divmod(slots, cohort.clients.shape[1])
    return experiment * num_clients + cohort.clients[experiment, place]


def alone(
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    plan: Schedule,
    learning_rate: float,
    key: Array,
    data: TrainingData,
) -> tuple[ServerState, PyTree, Cohort, Schedule, Tuned, Array, TrainingData]:
    """What `run_round` takes after the mesh, of an experiment that has a program for itself.

    Args:
      server: [...].
      client_states: [N, ...].
      cohort: [S].
      plan: of the cohort.
      learning_rate: of the clients in this round.
      key: of batches.
      data: its training data.

    Returns:
      The same, with an axis X = 1 in front where there has to be one.
    """
    server, cohort, key, own = jax.tree.map(
        lambda leaf: leaf[None], (server, cohort, key, data._replace(x=()))
    )
    tuned = Tuned(np.array([learning_rate]))
    return server, client_states, cohort, plan, tuned, key, own._replace(x=data.x)


def run_round(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    plan: Schedule,
    tuned: Tuned,
    keys: Array,
    data: TrainingData,
) -> tuple[ServerState, RoundMetrics, PyTree]:
    """Run a round in one piece.

    Args:
      programs: as for `run_waves`, like all that is not named here.
      mesh: see there.
      server: see there.
      client_states: see there.
      cohort: see there.
      plan: of the cohort, from `lanes.schedule`.
      tuned: see there.
      keys: see there.
      data: the training data.

    Returns:
      (server, metrics, the local models as for `run_waves`).
    """
    server, metrics, models = run_waves(
        programs, mesh, server, client_states, cohort, [(plan, data)], tuned, keys
    )
    assert metrics is not None
    return server, metrics, models[0][1]


def _place(
    mesh: Mesh, client_states: PyTree, cohort: Cohort, plan: Schedule, tuned: Tuned,
    data: TrainingData,
) -> tuple[PyTree, Schedule, Cohort, Tuned]:  # fmt: skip
    """The arguments that change from round to round, on the devices that need them."""
    rows = state_rows(cohort, plan.slot, data.size.shape[1])
    states = states_of.take(client_states, rows, plan.used, mesh)
    placed = split(plan, mesh)
    own = jax.tree.map(lambda value: np.asarray(value, np.float32), tuned)
    return states, placed, *replicate((cohort, own), mesh)
