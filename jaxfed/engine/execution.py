"""A round as the host runs it: the states of its clients move to the devices that train them."""

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
from jaxfed.engine.round import Round
from jaxfed.engine.types import RoundInputs, RoundMetrics, ServerState, TrainingData, Tuned
from jaxfed.types import Array, Cohort, PyTree


def compile_round(
    functions: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    schedule: Schedule,
    tuned: Tuned,
    keys: Array,
    data: TrainingData,
) -> Round:
    """Compiles the functions of a round for the arguments of any round, as for `run_waves`."""
    inputs = RoundInputs(server, *_replicate(mesh, cohort, tuned), keys, data)
    states = _load_states(mesh, client_states, cohort, schedule, data)
    train = jax.jit(functions.train).lower(inputs, states, split(schedule, mesh)).compile()
    merge = jax.jit(functions.merge).lower(inputs, train.out_info.sums).compile()
    return Round(train, merge)


def peak_memory(program: Any) -> int:
    """Bytes that a compiled program takes on each device: arguments, results, temporaries."""
    sizes = program.memory_analysis()
    return int(sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes)


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
    """Runs a round of X experiments in waves of clients.

    Args:
      programs: the functions of the round, compiled or jitted.
      mesh: the devices that they run on.
      server: [X, ...], replicated on them, as are `keys` and the data.
      client_states: from `client_states.create`, this process's rows of the states of all clients
        of one experiment after another. Those of the cohort are replaced in place.
      cohort: [X, S].
      waves: schedules whose slots together are those of the cohort, each with the data of its
        clients; none if no client's update arrives.
      tuned: [X] arrays.
      keys: [X] of batches.
      keep: whether to return the local models.

    Returns:
      (server, metrics, the schedule of each wave and its clients' local models). The models are
      NumPy arrays of the used positions of the schedule: (parameters, batch statistics), [n, ...];
      () if the programs or `keep` leave them out. Without waves the server is unchanged and the
      metrics are None.
    """
    sums: Any = None
    models: list[tuple[Schedule, PyTree]] = []
    replicated = _replicate(mesh, cohort, tuned)
    for schedule, data in waves:
        inputs = RoundInputs(server, *replicated, keys, data)
        states = _load_states(mesh, client_states, cohort, schedule, data)
        trained = programs.train(inputs, states, split(schedule, mesh))
        # A CPU's devices must not wait for each other inside a program: XLA ends the process when
        # they do so for 40 seconds, and clients are unequal.
        jax.block_until_ready(trained.sums)
        distributed.barrier('wave')
        sums = jax.tree.map(jnp.add, sums, trained.sums) if models else trained.sums
        used = schedule.used
        rows = state_rows(cohort, schedule.slot, data.size.shape[1])
        states_of.store_rows(client_states, rows, used, trained.states, mesh)
        kept = trained.models if keep else ()
        models.append((schedule, jax.tree.map(lambda leaf, used=used: fetch(leaf)[used], kept)))
    if not models:
        return server, None, models
    server, metrics = distributed.run_collective(programs.merge, inputs, sums)
    return server, metrics, models


def state_rows(cohort: Cohort, slots: np.ndarray, num_clients: int) -> np.ndarray:
    """Rows of the clients' states, x N + i for client i of experiment x, of slots of any shape."""
    experiment, place = np.divmod(slots, cohort.clients.shape[1])
    return experiment * num_clients + cohort.clients[experiment, place]


def _load_states(
    mesh: Mesh, client_states: PyTree, cohort: Cohort, schedule: Schedule, data: TrainingData
) -> PyTree:
    rows = state_rows(cohort, schedule.slot, data.size.shape[1])
    return states_of.load_rows(client_states, rows, schedule.used, mesh)


def _replicate(mesh: Mesh, cohort: Cohort, tuned: Tuned) -> tuple[Cohort, Tuned]:
    numbers = jax.tree.map(lambda number: np.asarray(number, np.float32), tuned)
    return replicate((cohort, numbers), mesh)
