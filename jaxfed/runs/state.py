"""The state of training between rounds, and how it continues from a checkpoint."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import replicate
from jaxfed.engine.stacking import row
from jaxfed.engine.types import ServerState
from jaxfed.metrics.history import History, empty_history
from jaxfed.recording import log
from jaxfed.recording.checkpoints import Checkpoints, restore
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.prepare import Prepared
from jaxfed.types import PyTree

_take_row = jax.jit(row)


class State(NamedTuple):
    """The state of X experiments after a round.

    Checkpoints hold the leaves of all fields but `servers`, numbered in this order.
    """

    server: ServerState  # [X, ...]
    clients: PyTree  # this process's rows of [X N, ...], NumPy; changed in place by every round
    past: list[History]  # X
    recorded: np.ndarray  # [X] int32, recorded rounds of a stopped experiment, -1 if running
    diverged: np.ndarray  # [X] bool, whether it stopped in a round that is not recorded
    servers: Sequence[ServerState]  # X, copies of the rows of `server`


def first_state(experiments: Sequence[Experiment], prepared: Prepared) -> State:
    """The state before the first round."""
    dataset, count = experiments[0].dealt.dataset, len(experiments)
    past = [empty_history(dataset.num_classes, len(dataset.y_test)) for _ in experiments]
    recorded, diverged = np.full(count, -1, np.int32), np.zeros(count, bool)
    servers = unstack(prepared.server, count)
    return State(prepared.server, prepared.client_states, past, recorded, diverged, servers)


def unstack(server: ServerState, count: int) -> list[ServerState]:
    """Copies of the first `count` rows of [X, ...]."""
    return [_take_row(server, x) for x in range(count)]


def resume(
    experiments: Sequence[Experiment], prepared: Prepared, checkpoints: Checkpoints | None
) -> tuple[int, State]:
    """The rounds of the newest checkpoint and its state, or 0 and the first state.

    Args:
      experiments: X.
      prepared: from `prepare`.
      checkpoints: from `open_checkpoints`; None in processes after the first, which receive the
        state from it.
    """
    first, rows = first_state(experiments, prepared), client_rows(experiments)
    like = first._replace(clients=states_of.allocate(first.clients, rows), servers=())

    def check(done: int, state: State, lines: Sequence[str]) -> None:
        # After a power loss a checkpoint may be whole and the lines of its rounds torn.
        known: Sequence[str | None] = lines or [None] * len(experiments)
        for experiment, recorded, digest in zip(experiments, state.recorded, known, strict=True):
            log.read(experiment.workdir, recorded_rounds(done, recorded), digest)

    saved = restore(checkpoints, like, check) if checkpoints is not None else None
    done = int(
        distributed.broadcast_from_leader('checkpoint', lambda: str(saved.round if saved else 0))
    )
    if not done:
        return 0, first
    read = saved.state if saved else like._replace(clients=first.clients)
    state = states_of.broadcast(read._replace(clients=()))
    # Checkpoints of earlier versions did not count rounds without an update.
    counted = state.server._replace(round=np.full_like(state.server.round, done))
    server = replicate(counted, prepared.mesh)
    return done, State(
        server,
        states_of.scatter(read.clients, first.clients, rows),
        state.past,
        np.array(state.recorded),  # copies that can be written to
        np.array(state.diverged),
        unstack(server, len(experiments)),
    )


def recorded_rounds(done: int, recorded: int) -> int:
    """The recorded rounds of an experiment after `done` rounds; `recorded` as in `State`."""
    return done if recorded < 0 else int(recorded)


def collect(state: State, experiments: Sequence[Experiment]) -> State:
    """The content of a checkpoint: the state with the client rows of all processes."""
    clients = states_of.gather(state.clients, client_rows(experiments))
    return state._replace(clients=clients, servers=())


def client_rows(experiments: Sequence[Experiment]) -> int:
    """Rows X N of the clients' states of all processes."""
    return len(experiments) * experiments[0].config.num_clients
