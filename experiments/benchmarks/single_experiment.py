"""Rounds of one experiment in one wave, for programs that time the engine itself."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine.execution import run_waves
from jaxfed.engine.lanes import Schedule
from jaxfed.engine.round import Round, RoundMetrics, ServerState, TrainingData, Tuned
from jaxfed.types import Array, Cohort, PyTree


def round_arguments(
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    schedule: Schedule,
    learning_rate: float,
    key: Array,
    data: TrainingData,
) -> tuple[ServerState, PyTree, Cohort, Schedule, Tuned, Array, TrainingData]:
    """The arguments of `compile_round` and `run_round`, with an axis of one experiment."""
    server, cohort, keys, stacked = jax.tree.map(
        lambda leaf: leaf[None], (server, cohort, key, data._replace(x=()))
    )
    tuned = Tuned(np.array([learning_rate]))
    return server, client_states, cohort, schedule, tuned, keys, stacked._replace(x=data.x)


def run_round(
    programs: Round,
    mesh: Mesh,
    server: ServerState,
    client_states: PyTree,
    cohort: Cohort,
    schedule: Schedule,
    tuned: Tuned,
    keys: Array,
    data: TrainingData,
) -> tuple[ServerState, RoundMetrics | None, Any]:
    """Runs a round in one wave; arguments and results as of `execution.run_waves`."""
    return run_waves(programs, mesh, server, client_states, cohort, [(schedule, data)], tuned, keys)
