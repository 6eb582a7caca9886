"""Runs a round from the host, which moves the clients' states to the devices and back."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import SPLIT, fetch, replicate, shapes, split
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.round import Round
from jaxfed.engine.types import RoundInputs, RoundMetrics, ServerState, TrainingData, Tuned
from jaxfed.internal.backend import lower, on_cpu
from jaxfed.types import Array, Cohort, PyTree


def lower_round(
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
    """Lowers the functions of a round for arguments of the shapes of these, see `run_waves`."""
    inputs = RoundInputs(server, *_replicate(mesh, cohort, tuned), keys, data)
    rows = state_rows(cohort, schedule.slot, data.size.shape[1])
    states = states_of.load_rows(client_states, rows, schedule.used, mesh)
    train = lower(functions.train, inputs, states, split(schedule, mesh))
    sums = shapes(train.out_info.sums, NamedSharding(mesh, SPLIT))
    return Round(train, lower(functions.merge, inputs, sums))


def peak_memory(program: Any) -> int:
    """Bytes of a compiled program on each device: arguments, results, temporaries."""
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
      mesh: the devices that run them.
      server: [X, ...], replicated on the devices, like `keys` and the data.
      client_states: from `client_states.create`, this process's rows of the states of all clients
        [X N, ...]. The rows of the cohort are replaced in place.
      cohort: [X, S].
      waves: schedules that divide the cohort's slots, each with the data of its clients; none if
        no client's update arrives and the method does not merge then.
      tuned: [X] arrays.
      keys: [X] random keys of batches.
      keep: whether to return the local models.

    Returns:
      (server, metrics, [(schedule, local models) of each wave]). The models are NumPy arrays of the
      used positions of the schedule: (parameters, batch statistics), [n, ...]; () if they are not
      kept. Without waves only the server's round changes, and the metrics are None.
    """
    sums: Any = None
    models: list[tuple[Schedule, PyTree]] = []
    replicated = _replicate(mesh, cohort, tuned)
    for schedule, data in waves:
        inputs = RoundInputs(server, *replicated, keys, data)
        rows, used = state_rows(cohort, schedule.slot, data.size.shape[1]), schedule.used
        states = states_of.load_rows(client_states, rows, used, mesh)
        trained = programs.train(inputs, states, split(schedule, mesh))
        if on_cpu():
            # Its devices must not wait for each other inside a program: XLA ends the process after
            # 40 seconds, and clients are unequal.
            jax.block_until_ready(trained.sums)
        distributed.barrier('wave')
        sums = trained.sums if sums is None else jax.tree.map(jnp.add, sums, trained.sums)
        states_of.store_rows(client_states, rows, used, trained.states, mesh)
        kept = trained.models if keep else ()
        models.append((schedule, jax.tree.map(lambda leaf, used=used: fetch(leaf)[used], kept)))
    if sums is None:
        return server._replace(round=server.round + 1), None, models
    # Of the last wave's inputs, `merge` reads only what is equal in all waves.
    server, metrics = distributed.run_collective(programs.merge, inputs, sums)
    return server, metrics, models


def state_rows(cohort: Cohort, slots: np.ndarray, num_clients: int) -> np.ndarray:
    """Rows x N + i of the clients' states, for client i of experiment x; as many as slots."""
    experiment, place = np.divmod(slots, cohort.clients.shape[1])
    return experiment * num_clients + cohort.clients[experiment, place]


def _replicate(mesh: Mesh, cohort: Cohort, tuned: Tuned) -> tuple[Cohort, Tuned]:
    numbers = jax.tree.map(lambda number: np.asarray(number, np.float32), tuned)
    return replicate((cohort, numbers), mesh)
