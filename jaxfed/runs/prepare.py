"""From experiments to programs that are ready to run: data on the devices, lanes, compilation.

One experiment, or several that share a program (see `sharing`).
"""

import functools
import gc
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.data.augment import make_augment, normalise, parse_augment
from jaxfed.data.statistics import channel_statistics
from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import make_mesh, memory, replicate
from jaxfed.engine.execution import compile_round
from jaxfed.engine.lanes import choose_lanes
from jaxfed.engine.local import LocalSettings
from jaxfed.engine.round import Round, ServerState, make_round
from jaxfed.methods.costs import size_of
from jaxfed.runs.evaluate import Tests, compile_tests
from jaxfed.runs.experiment import Experiment, client_steps
from jaxfed.runs.feed import Feed, TooLarge, make_feed
from jaxfed.runs.memory import advice, memory_errors, needed_memory, size_in_words
from jaxfed.runs.seeds import seed_of
from jaxfed.runs.shared_program import method_builder
from jaxfed.types import Array, PyTree

# Where a CPU is one device, a few clients side by side fill its cores; more only take memory and
# compile longer. Where each core is a device, one client at a time keeps it busy.
CPU_LANES = 8


class Prepared(NamedTuple):
    """Experiments ready to run."""

    mesh: Mesh
    lanes: int  # of each device
    feed: Feed
    streams: bool  # whether images come in waves
    programs: Round  # compiled
    tests: list[Tests]  # of each experiment
    server: ServerState  # [X, ...] before the first round
    client_states: PyTree  # [X N, ...] on the host
    keys: Array  # [X] of batches
    needed: int  # bytes of memory on each device
    available: float
    compile_seconds: float


def prepare(experiments: Sequence[Experiment]) -> Prepared:
    """Put the data on the devices, choose the number of lanes and compile.

    Args:
      experiments: X from `set_up`, that share a program.

    Returns:
      All that training needs.

    Raises:
      TooLarge: if it does not fit into the devices' memory.
    """
    began = time.perf_counter()
    first, count = experiments[0], len(experiments)
    config, method, model = first.config, first.method, first.model
    dataset, cohort_size = first.dealt.dataset, count * config.clients_per_round
    mesh = make_mesh(config.devices, most=cohort_size // max(config.lanes, 1))
    mean, std = channel_statistics(dataset.x_train)
    augment = make_augment(parse_augment(config.augment), mean=mean, std=std)
    to_input = functools.partial(normalise, mean=mean, std=std)
    settings = LocalSettings(
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        aggregation=config.aggregation,
        longest=max(len(part) for each in experiments for part in each.dealt.partition),
        keep_models=config.local_eval_every > 0,
    )
    begun = [begin(experiment) for experiment in experiments]
    started = jax.tree.map(lambda *leaves: np.stack(leaves), *(server for server, _ in begun))
    # Every client's state lives on a host; a round's rows travel.
    try:
        client_states = states_of.create([state for _, state in begun], config.num_clients)
    except MemoryError as error:
        size = count * config.num_clients * size_of(begun[0][1])
        raise TooLarge(
            f'the states of --num_clients={config.num_clients} clients take {size_in_words(size)} of '
            f"this machine's memory, where --method={config.method} keeps one of each; lower "
            '--num_clients, or choose a method without.'
        ) from error
    lanes = config.lanes or choose_lanes(
        [client_steps(experiment) for experiment in experiments],
        cohort_size=config.clients_per_round,
        most=most_lanes(cohort_size, mesh.size),
        devices=mesh.size,
    )
    with memory_errors(first, mesh, lanes):
        server = replicate(started, mesh)
        keys = replicate(
            jnp.stack([jax.random.key(seed_of(e.config, 'batches')) for e in experiments]), mesh
        )
        feed, streams = make_feed(experiments, mesh, to_input)
        parts = make_round(
            model, method, settings, augment, to_input, tune=method_builder(experiments), mesh=mesh
        )
        while True:
            # Any round does, but one in which nobody trains.
            opening = next(round_ for round_ in feed(lanes, 1) if round_.cohort.epochs.any())
            plan, data = next(opening.waves)
            programs = compile_round(
                parts, mesh, server, client_states, opening.cohort, plan, opening.tuned, keys, data
            )
            tests = compile_tests(experiments, mesh, server, to_input, lanes=lanes)
            # The programs say how much memory their lanes take, most of which grows with them.
            needed = needed_memory(
                experiments, mesh, programs, tests[0], server, client_states, data, streams
            )
            needed = -int(distributed.least('memory needed', -needed))  # the most of all processes
            available = memory(mesh)
            if config.lanes or needed <= available or lanes == 1:
                break
            lanes = max(1, min(lanes - 1, int(lanes * available / needed)))
    if needed > available:
        raise TooLarge(
            f'training needs about {size_in_words(needed)} of memory on each of {mesh.size} device(s), '
            f'which have {size_in_words(available)}: {advice(first, mesh, lanes, streams=streams)}.'
        )
    # JAX lets go of arrays that it shares with NumPy, as of a wave's images, when Python collects.
    del opening, data
    gc.collect()
    return Prepared(
        mesh=mesh,
        lanes=lanes,
        feed=feed,
        streams=streams,
        programs=programs,
        tests=tests,
        server=server,
        client_states=client_states,
        keys=keys,
        needed=needed,
        available=available,
        compile_seconds=time.perf_counter() - began,
    )


def begin(experiment: Experiment) -> tuple[ServerState, PyTree]:
    """What an experiment starts from.

    Args:
      experiment: from `set_up`.

    Returns:
      (server, state of one client).
    """
    model, method = experiment.model, experiment.method
    params = model.init(jax.random.key(seed_of(experiment.config, 'initialisation')))
    server, client = method.init(params, model.stats)
    return ServerState(params, server, jnp.zeros((), jnp.int32), model.stats), client


def most_lanes(cohort_size: int, devices: int) -> int:
    """The largest number of lanes worth having on each device.

    Args:
      cohort_size: clients in a round, of all experiments.
      devices: how many.

    Returns:
      The number.
    """
    if jax.default_backend() != 'cpu':
        return cohort_size
    return CPU_LANES if devices == 1 else 1
