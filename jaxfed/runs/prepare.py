"""Preparation of experiments: data on the devices, lanes, compiled programs.

Several experiments can share a program, see `shared_program`.
"""

import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.config import Config
from jaxfed.data.augment import make_augment, normalise
from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import make_mesh, memory, replicate
from jaxfed.engine.execution import lower_round, run_waves
from jaxfed.engine.lanes import Schedule, choose_lanes
from jaxfed.engine.local import LocalSettings
from jaxfed.engine.round import Round, make_round
from jaxfed.engine.types import RoundMetrics, ServerState
from jaxfed.internal.backend import compile_all, on_cpu
from jaxfed.internal.console import counted
from jaxfed.methods.costs import size_of
from jaxfed.methods.hooks import hook_errors
from jaxfed.methods.method import Method
from jaxfed.runs.client_images import shift_of
from jaxfed.runs.evaluate import (
    EvaluationPrograms,
    Evaluator,
    evaluation_memory,
    lower_evaluation,
    make_evaluators,
    place_test_sets,
)
from jaxfed.runs.experiment import Experiment, client_steps
from jaxfed.runs.feed import Feed, PlannedRound, TooLarge, make_feed
from jaxfed.runs.memory import advice, memory_errors, needed_memory, size_in_words
from jaxfed.runs.seeds import seed_of
from jaxfed.runs.shared_program import method_builder
from jaxfed.types import Array, Model, PyTree

# If a CPU is one device, a few clients side by side fill its cores; more only need more memory and
# compile longer. If each core is a device, one client at a time keeps it busy.
CPU_LANES = 8


# (server, clients' states, round, keep local models) -> (server, metrics, local models), see
# `run_waves`. Clients that are lost get 0 local epochs in the cohort of the round.
RunRound = Callable[
    [ServerState, PyTree, PlannedRound, bool],
    tuple[ServerState, RoundMetrics | None, list[tuple[Schedule, PyTree]]],
]


class Compiled(NamedTuple):
    """The programs with a number of lanes."""

    programs: Round
    evaluation: EvaluationPrograms
    needed: int  # bytes of memory on each device


class Prepared(NamedTuple):
    """X experiments ready to run."""

    mesh: Mesh
    lanes: int  # of each device
    feed: Feed
    streams: bool  # whether images are sent in waves
    programs: Round  # compiled
    run: RunRound
    evaluation: EvaluationPrograms
    evaluators: list[Evaluator]  # X
    server: ServerState  # [X, ...] before the first round
    client_states: PyTree  # [X N, ...] on the host
    keys: Array  # [X] of batches
    needed: int  # bytes of memory on each device
    available: float
    compile_seconds: float


def prepare(experiments: Sequence[Experiment], mesh: Mesh | None = None) -> Prepared:
    """Put the data of experiments that share a program on the devices, choose lanes and compile.

    Args:
      experiments: X.
      mesh: the devices; None for those of the settings. For absent devices it only compiles.
    """
    began = time.perf_counter()
    first, config = experiments[0], experiments[0].config
    cohort_size = len(experiments) * config.clients_per_round
    mesh = mesh or make_mesh(config.devices, most=cohort_size // max(config.lanes, 1))
    to_input = functools.partial(normalise, mean=first.mean, std=first.std)
    start, client_states = initial_states(experiments)
    lanes = config.lanes or choose_lanes(
        [client_steps(experiment) for experiment in experiments],
        cohort_size=config.clients_per_round,
        most=most_lanes(cohort_size, mesh.size),
        devices=mesh.size,
    )
    with memory_errors(first, mesh, lanes):
        server = replicate(start, mesh)
        seeds = [seed_of(experiment.config, 'batches') for experiment in experiments]
        keys = replicate(jnp.stack([jax.random.key(seed) for seed in seeds]), mesh)
        feed, streams = make_feed(experiments, mesh, to_input)
        test_sets = place_test_sets(experiments, mesh)
    longest = max(len(part) for e in experiments for part in e.dealt.partition)
    settings = local_settings(config, longest=longest, image_shape=first.input_shape)
    augment = make_augment(
        first.augmentations, mean=first.mean, std=first.std, batch_size=config.batch_size
    )
    functions = make_round(
        first.model, first.method, settings, augment, to_input,
        tune=method_builder(experiments), mesh=mesh, shift=shift_of(config),
    )  # fmt: skip

    def compile_with(lanes: int) -> Compiled:
        # Any round in which a client trains.
        round_ = next(round_ for round_ in feed(lanes, 1) if round_.cohort.epochs.any())
        plan, data = next(round_.waves)
        with hook_errors():  # of hooks that need another shape than that of the checks
            lowered = lower_round(
                functions, mesh, server, client_states, round_.cohort, plan, round_.tuned, keys,
                data,
            )  # fmt: skip
        lowered_evaluation = lower_evaluation(
            experiments, mesh, server, test_sets[0], to_input, lanes
        )
        programs, evaluation = compile_all((lowered, lowered_evaluation))
        tests = evaluation_memory(evaluation, first.dealt.dataset.x_test.nbytes)
        needed = needed_memory(
            experiments, mesh, programs, tests, server, client_states, data, streams
        )
        # The most of all processes.
        return Compiled(programs, evaluation, -int(distributed.minimum('memory needed', -needed)))

    available = memory(mesh)
    lanes, (programs, evaluation, needed) = _compile_to_fit(
        compile_with, first, mesh, lanes, available
    )
    if needed > available:
        raise TooLarge(
            f'training needs about {size_in_words(needed)} of memory on each of '
            f'{counted(mesh.size, "device")} with {size_in_words(available)}: '
            f'{advice(first, mesh, lanes, streams=streams)}.'
        )
    evaluators = make_evaluators(experiments, mesh, evaluation, test_sets)

    def run(
        server: ServerState, client_states: PyTree, planned: PlannedRound, keep: bool
    ) -> tuple[ServerState, RoundMetrics | None, list[tuple[Schedule, PyTree]]]:
        return run_waves(
            programs, mesh, server, client_states, planned.cohort, planned.waves, planned.tuned,
            keys, keep=keep,
        )  # fmt: skip

    # JAX releases arrays that it shares with NumPy only when Python collects garbage.
    gc.collect()
    return Prepared(
        mesh, lanes, feed, streams, programs, run, evaluation, evaluators, server, client_states,
        keys, needed, available, compile_seconds=time.perf_counter() - began,
    )  # fmt: skip


def _compile_to_fit(
    compile_with: Callable[[int], Compiled],
    experiment: Experiment,
    mesh: Mesh,
    lanes: int,
    available: float,
) -> tuple[int, Compiled]:
    """Compile with fewer lanes until the programs fit into memory, unless --lanes is given.

    Only compiled programs show how much memory lanes need; most of it is proportional.

    Returns:
      (lanes, programs); those of one lane, or of --lanes, may be too large.
    """
    given = experiment.config.lanes
    while True:
        try:
            with memory_errors(experiment, mesh, lanes):
                compiled = compile_with(lanes)
        except TooLarge:  # by the compiler of a TPU
            if given or lanes == 1:
                raise
            lanes //= 2
            continue
        if given or compiled.needed <= available or lanes == 1:
            return lanes, compiled
        lanes = max(1, min(lanes - 1, int(lanes * available / compiled.needed)))


def initial_state(config: Config, model: Model, method: Method) -> tuple[ServerState, PyTree]:
    """The server and the state of a client before the first round."""
    params = model.init(jax.random.key(seed_of(config, 'initialisation')))
    state, client = method.init(params, model.stats)
    return ServerState(params, state, jnp.zeros((), jnp.int32), model.stats), client


def initial_states(experiments: Sequence[Experiment]) -> tuple[ServerState, PyTree]:
    """The server [X, ...] and the clients' states [X N, ...] before the first round, in NumPy."""
    pairs = [initial_state(e.config, e.model, e.method) for e in experiments]
    servers, clients = zip(*pairs, strict=True)
    server = jax.tree.map(lambda *leaves: np.stack(leaves), *servers)
    config = experiments[0].config
    try:
        # The clients' states stay on the hosts; only a round's rows are sent to the devices.
        return server, states_of.create(clients, config.num_clients)
    except MemoryError as error:
        size = len(experiments) * config.num_clients * size_of(clients[0])
        raise TooLarge(
            f'--method={config.method} keeps a state for each client, and all '
            f'--num_clients={config.num_clients} need {size_in_words(size)} of memory; lower '
            '--num_clients, or choose a method without client states.'
        ) from error


def local_settings(config: Config, *, longest: int, image_shape: tuple[int, ...]) -> LocalSettings:
    """The settings of the compiled local training, see there; `longest` is rounded up.

    Seeds and partitions whose largest clients round up to the same power of two share a program,
    which is compiled once if compiled programs are kept. Clients that fill no batch keep it small.
    """
    if longest > config.batch_size:
        longest = 1 << (longest - 1).bit_length()
    return LocalSettings(
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        dropout=config.dropout,
        aggregation=config.aggregation,
        longest=longest,
        image_shape=image_shape,
        keep_models=config.local_eval_every > 0,
        optimizer=str(config.optimizer),
        clip_norm=config.clip_norm,
        accumulate_steps=config.accumulate_steps,
    )


def most_lanes(cohort_size: int, devices: int) -> int:
    """The most lanes of a device that can save time, for all clients of a round."""
    if not on_cpu():
        # The bytes of a client-step hardly depend on the lanes, and more of them fill a device.
        return cohort_size
    return CPU_LANES if devices == 1 else 1


def memory_in_words(prepared: Prepared) -> str:
    """The needed and the available memory of prepared experiments, in words."""
    needed, available = size_in_words(prepared.needed), size_in_words(prepared.available)
    devices = counted(prepared.mesh.size, 'device')
    waves = ', images in waves' if prepared.streams else ''
    return f'about {needed} of {available} on each of {devices}{waves}'
