"""Compiled rounds on random images, which benchmarks train one at a time."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from jax.sharding import Mesh

from experiments.benchmarks.measuring.timing import seconds
from jaxfed import methods
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine import client_states
from jaxfed.engine.devices import replicate
from jaxfed.engine.execution import lower_round, peak_memory, run_waves
from jaxfed.engine.lanes import schedule
from jaxfed.engine.local import LocalSettings, steps_per_epoch
from jaxfed.engine.round import make_round
from jaxfed.engine.types import ServerState, TrainingData, Tuned
from jaxfed.internal.backend import compile_all
from jaxfed.models import MODELS
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.prepare import prepare
from jaxfed.runs.rounds import train_and_evaluate
from jaxfed.runs.state import first_state, unstack
from jaxfed.types import Cohort, Model, PyTree

SHAPE = (32, 32, 3)
CLASSES = 10
LEARNING_RATE = 0.01
MOMENTUM = 0.9
IMAGE_NETWORKS = [name for name in MODELS if name not in ('cnn1d', 'text')]


def check_networks(names: Sequence[str]) -> None:
    """Raises a UsageError for a network that is not for images."""
    for name in names:
        if name not in IMAGE_NETWORKS:
            raise app.UsageError(f'--models: {name!r} must be one of {", ".join(IMAGE_NETWORKS)}.')


class Trainer:
    """X experiments that share a program; its methods return the seconds that they take."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        """Compiles the program; `rounds` of the experiments limits the rounds that can be run."""
        self.experiments = experiments
        self.prepared = prepare(experiments)
        self.state = first_state(experiments, self.prepared)
        self._rounds = self.prepared.feed(self.prepared.lanes, 1)

    def run_round(self) -> float:
        """Runs the next round, with its evaluation if one is due."""
        return seconds(self._run_round)

    def train_round(self) -> float:
        """Trains the next round."""
        return seconds(self._train_round)

    def evaluate(self) -> float:
        """Evaluates the model of every experiment on the test data."""
        servers = unstack(self.state.server, len(self.experiments))

        def evaluate() -> None:
            for evaluator, server in zip(self.prepared.evaluators, servers, strict=True):
                jax.device_get(evaluator.evaluate_global(server))

        return seconds(evaluate)

    def _run_round(self) -> None:
        self.state, _ = train_and_evaluate(
            self.prepared, self.experiments, next(self._rounds), self.state,
            range(len(self.experiments)),
        )  # fmt: skip
        jax.block_until_ready(self.state.server)

    def _train_round(self) -> None:
        planned = next(self._rounds)
        server, _, _ = self.prepared.run(self.state.server, self.state.clients, planned, False)
        self.state = self.state._replace(server=jax.block_until_ready(server))


class CohortRound(NamedTuple):
    """The compiled first round of one experiment."""

    run: Callable[[], PyTree]  # trains it; returns the parameters after it, [1, ...]
    params: PyTree  # before it, [...]
    train: Any  # the compiled program of the local training

    @property
    def memory(self) -> int:
        """Bytes of the program on each device."""
        return peak_memory(self.train)


def compile_cohort(
    model: Model,
    sizes: np.ndarray,
    *,
    mesh: Mesh,
    lanes: int,
    batch_size: int,
    local_epochs: int = 1,
    method: str = 'fedavg',
    augment: tuple[str, ...] = (),
    weight_decay: float = 0.0,
) -> CohortRound:
    """Compiles a round of clients with `sizes` [S] random images, all of which take part."""
    clients = len(sizes)
    settings = LocalSettings(
        local_epochs=local_epochs, batch_size=batch_size, momentum=MOMENTUM,
        weight_decay=weight_decay, aggregation='size', longest=int(sizes.max()),
        image_shape=SHAPE,
    )  # fmt: skip
    mean, std = np.full(SHAPE[-1], 128.0, np.float32), np.full(SHAPE[-1], 64.0, np.float32)
    to_input = functools.partial(normalise, mean=mean, std=std)
    augmented = make_augment(augment, mean=mean, std=std)
    built = methods.build(methods.resolve(method, {}))
    parts = make_round(model, built, settings, augmented, to_input, mesh=mesh)
    params = model.init(jax.random.key(0))
    server_state, client_state = built.init(params, model.stats)
    server = ServerState(params, server_state, jnp.zeros((), jnp.int32), model.stats)
    server = jax.tree.map(lambda leaf: leaf[None], server)
    server, keys, data = replicate((server, jax.random.key(1)[None], random_data(sizes)), mesh)
    states = client_states.create([client_state], clients)
    ids = np.arange(clients, dtype=np.int32)[None]
    cohort = Cohort(ids, np.full_like(ids, local_epochs))
    steps = local_epochs * steps_per_epoch(sizes, batch_size)
    plan = schedule(steps, lanes=lanes, devices=mesh.size)
    tuned = Tuned(np.array([LEARNING_RATE]))
    lowered = lower_round(parts, mesh, server, states, cohort, plan, tuned, keys, data)
    programs = compile_all(lowered)

    def run() -> PyTree:
        after, _, _ = run_waves(
            programs, mesh, server, states, cohort, [(plan, data)], tuned, keys, keep=False
        )
        return jax.block_until_ready(after).params

    return CohortRound(run, params, programs.train)


def random_data(sizes: np.ndarray) -> TrainingData:
    """Random images and labels of clients with `sizes` [S] examples, of one experiment."""
    rng = np.random.default_rng(0)
    n, start = int(sizes.sum()), np.cumsum(sizes) - sizes
    x = rng.integers(0, 256, (n, math.prod(SHAPE)), np.uint8)
    drawn = rng.integers(0, CLASSES, n, np.int32)
    counts = [np.bincount(labels, minlength=CLASSES) for labels in np.split(drawn, start[1:])]
    y, order, start, size, label_counts = (
        jnp.asarray(array[None], jnp.int32)
        for array in (drawn, np.arange(n), start, sizes, np.stack(counts))
    )
    return TrainingData(x, y, order, start, size, label_counts)


def largest_difference(a: PyTree, b: PyTree) -> float:
    """Largest absolute difference of two trees of arrays."""
    differences = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - np.asarray(y)).max(), a, b)
    return float(np.max(jax.tree.leaves(differences)))


def write_images(path: Path, *, train: int, test: int) -> Path:
    """Writes random images with equally frequent labels for --dataset=npz; returns the path."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (('train', train), ('test', test)):
        arrays[f'x_{split}'] = rng.integers(0, 256, (n, *SHAPE), np.uint8)
        arrays[f'y_{split}'] = (np.arange(n) % CLASSES).astype(np.int32)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
