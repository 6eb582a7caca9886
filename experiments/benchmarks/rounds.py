"""Rounds of experiments that share a program, played one at a time, so that they can take turns."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.engine.execution import run_waves
from jaxfed.engine.round import ServerState
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.prepare import Prepared, prepare
from jaxfed.runs.rounds import train_and_evaluate
from jaxfed.runs.state import first_state, unstack


class Played(NamedTuple):
    """Experiments ready to be played."""

    prepared: Prepared
    play: Callable[[], float]  # the next round, with its evaluation where one is due; seconds
    train: Callable[[], float]  # the next round without evaluation; seconds
    test: Callable[[], float]  # evaluates every experiment's model on the test data; seconds
    server: Callable[[], ServerState]  # [X, ...] after the rounds so far


def ready(experiments: Sequence[Experiment]) -> Played:
    """Compiles the program of experiments.

    Args:
      experiments: X that can share a program, with as many rounds as are to be played.

    Returns:
      What plays them.

    Raises:
      TooLarge: if they do not fit into memory.
    """
    prepared = prepare(experiments)
    states = [first_state(experiments, prepared)]
    feed = prepared.feed(prepared.lanes, 1)

    def play_next() -> float:
        began = time.perf_counter()
        running = range(len(experiments))
        states[0], _ = train_and_evaluate(prepared, experiments, next(feed), states[0], running)
        jax.block_until_ready(states[0].server)
        return time.perf_counter() - began

    def train_next() -> float:
        began = time.perf_counter()
        planned, state = next(feed), states[0]
        server, _, _ = run_waves(
            prepared.programs, prepared.mesh, state.server, state.clients, planned.cohort,
            planned.waves, planned.tuned, prepared.keys, keep=False,
        )  # fmt: skip
        jax.block_until_ready(server)
        states[0] = state._replace(server=server)
        return time.perf_counter() - began

    def test() -> float:
        servers = unstack(states[0].server, len(experiments))
        began = time.perf_counter()
        for evaluator, server in zip(prepared.evaluators, servers, strict=True):
            evaluator.evaluate_global(server)
        return time.perf_counter() - began

    return Played(prepared, play_next, train_next, test, lambda: states[0].server)


def images_file(
    path: Path,
    *,
    examples: int,
    tested: int,
    shape: tuple[int, int, int],
    classes: int = 10,
    seed: int = 0,
) -> Path:
    """Writes random images and labels, every class as often as any other, for --dataset=npz.

    Args:
      path: of the file.
      examples: to train on.
      tested: to test with.
      shape: height, width and channels of an image.
      classes: C.
      seed: of the images.

    Returns:
      The path.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, n in (('train', examples), ('test', tested)):
        arrays[f'x_{name}'] = rng.integers(0, 256, (n, *shape), np.uint8)
        arrays[f'y_{name}'] = (np.arange(n) % classes).astype(np.int32)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
