"""A round as the host runs it: clients' states go to the devices that train them, and come back."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxfed.devices import replicate, split
from jaxfed.lanes import Schedule
from jaxfed.round import Round, RoundMetrics, ServerState, TrainingData
from jaxfed.types import Array, PyTree


def compile_round(
    parts: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: np.ndarray,
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
    states, placed, ids, rate = _place(mesh, client_states, cohort, plan, learning_rate)
    train = jax.jit(parts.train).lower(server, ids, states, placed, rate, key, data).compile()
    merge = jax.jit(parts.merge).lower(server, ids, train.out_info.sums, rate, data).compile()
    return Round(train, merge)


def peak_memory(programs: Round) -> int:
    """Memory in bytes that training takes on each device.

    Args:
      programs: from `compile_round`.

    Returns:
      Arguments, results and what the program needs besides.
    """
    train: Any = programs.train
    told = train.memory_analysis()
    return int(told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes)


def run_round(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: np.ndarray,
    plan: Schedule,
    learning_rate: Any,
    key: Array,
    data: TrainingData,
) -> tuple[ServerState, RoundMetrics, PyTree]:
    """Run a round.

    Args:
      programs: the functions of the round, compiled or jitted.
      mesh: the devices that they run on.
      server: replicated on them, as are `key` and `data`.
      client_states: [N, ...] NumPy arrays, all clients' states. Those of the cohort are replaced
        in place.
      cohort: [S] int32 client ids.
      plan: of the cohort, from `lanes.schedule`.
      learning_rate: of the clients in this round.
      key: of batches.
      data: the training data.

    Returns:
      (server, metrics, local parameters [D, M, ...] if they are kept).
    """
    states, placed, ids, rate = _place(mesh, client_states, cohort, plan, learning_rate)
    trained = programs.train(server, ids, states, placed, rate, key, data)
    # A CPU's devices do not wait for each other inside a program: XLA ends the process when they
    # do so for 40 seconds, and clients are unequal.
    jax.block_until_ready(trained.sums)
    server, metrics = programs.merge(server, ids, trained.sums, rate, data)
    used = np.arange(plan.slot.shape[1]) < plan.clients[:, None]
    clients = cohort[plan.slot[used]]
    jax.tree.map(
        lambda every, rows: every.__setitem__(clients, np.asarray(rows)[used]),
        client_states,
        trained.states,
    )
    return server, metrics, trained.params


def _place(
    mesh: Mesh, client_states: PyTree, cohort: np.ndarray, plan: Schedule, learning_rate: Any
) -> tuple[PyTree, Schedule, Array, Array]:
    """The arguments that change from round to round, on the devices that need them."""
    states = jax.tree.map(lambda every: every[cohort[plan.slot]], client_states)
    states, placed = split((states, plan), mesh)
    ids, rate = replicate((cohort, np.float32(learning_rate)), mesh)
    return states, placed, ids, rate
