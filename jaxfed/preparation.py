"""From experiments to programs that are ready to run: data on the devices, lanes, compilation.

One experiment, or several that share a program (see `sharing`).
"""

import contextlib
import functools
import gc
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed import client_states as states_of
from jaxfed import hosts
from jaxfed.costs import size_of
from jaxfed.data.augment import make_augment, normalise, parse_augment
from jaxfed.data.statistics import channel_statistics
from jaxfed.devices import make_mesh, memory, replicate
from jaxfed.evaluation import Tests, compile_tests
from jaxfed.execution import compile_round, peak_memory
from jaxfed.experiment import Experiment, client_steps, seed_of
from jaxfed.lanes import choose_lanes
from jaxfed.metrics.measures import needs, parse_measures
from jaxfed.models import options
from jaxfed.round import LocalSettings, Round, ServerState, TrainingData, make_round
from jaxfed.sharing import tune
from jaxfed.streaming import WAVES, Feed, TooLarge, make_feed
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
            f'the states of --num_clients={config.num_clients} clients take {in_words(size)} of '
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
            model, method, settings, augment, to_input, tune=tune(experiments), mesh=mesh
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
            needed = -int(hosts.least('memory needed', -needed))  # the most of all processes
            available = memory(mesh)
            if config.lanes or needed <= available or lanes == 1:
                break
            lanes = max(1, min(lanes - 1, int(lanes * available / needed)))
    if needed > available:
        raise TooLarge(
            f'training needs about {in_words(needed)} of memory on each of {mesh.size} device(s), '
            f'which have {in_words(available)}: {advice(first, mesh, lanes, streams=streams)}.'
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


def needed_memory(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    programs: Round,
    tests: Tests,
    server: ServerState,
    client_states: PyTree,
    data: TrainingData,
    streams: bool,
) -> int:
    """Memory in bytes that training and evaluation need on each device.

    It is what the larger of the programs takes, and what stays there: images and, on a CPU, whose
    devices share one memory with the host, the clients' states and the local models to evaluate.

    Args:
      experiments: X from `set_up`.
      mesh: the devices.
      programs: of the round, compiled.
      tests: compiled, of any of them.
      server: [X, ...].
      client_states: [X N, ...].
      data: training data.
      streams: whether images come in waves.

    Returns:
      The bytes, without those of the interpreter and the compiler.
    """
    config, model = experiments[0].config, experiments[0].model
    cohort_size = len(experiments) * config.clients_per_round
    clients = len(experiments) * config.num_clients
    tested = sum(
        {id(e.dealt.dataset.x_test): e.dealt.dataset.x_test.nbytes for e in experiments}.values()
    )
    # Programs take images as an argument, which are counted once, with all others.
    inside = max(
        peak_memory(programs.train) - data.x.nbytes,
        peak_memory(programs.merge),
        tests.memory,
    )
    # Each experiment's server, before a round and after it, is taken out of those of all.
    inside += 2 * size_of((server.params, server.stats, server.method))
    stay = data.x.nbytes * (WAVES if streams else 1) + tested
    if mesh.devices.flat[0].platform != 'cpu':
        return inside + stay
    row = size_of(client_states) * hosts.count() // clients
    # All that were in a round, and two copies of a round's; of local models three if measured.
    rows = min(clients, config.rounds * cohort_size) // hosts.count()
    stay += row * (rows + 2 * cohort_size)
    # A checkpoint is a copy of all rows, also of those that are still zero; the first of several
    # processes brings them together before it is made.
    copies_of_all = 2 if hosts.count() > 1 else 1
    stay += copies_of_all * row * clients if config.checkpoint_every else 0
    if config.local_eval_every:
        weights = jax.eval_shape(model.init, jax.random.key(0)), model.stats
        copies = 3 if 'models' in needs(parse_measures(config.measure)) else 2
        stay += copies * cohort_size * size_of(weights)
    return inside + stay // len(mesh.local_devices)


def in_words(size: float) -> str:
    """A number of bytes as a person reads it.

    Args:
      size: in bytes.

    Returns:
      For instance '1.5 GiB'.
    """
    return f'{size / 2**30:.1f} GiB' if size >= 2**30 else f'{size / 2**20:.0f} MiB'


def advice(experiment: Experiment, mesh: Mesh, lanes: int, *, streams: bool = True) -> str:
    """What to lower so that an experiment fits.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      lanes: of each.
      streams: whether images come in waves.

    Returns:
      Flags, in words.
    """
    config = experiment.config
    ways = [f'lower --batch_size={config.batch_size}'] if config.batch_size > 1 else []
    if 'remat' in options(config.model) and not config.remat:
        ways.append('give --remat')
    if lanes > 1:
        ways.append(f'lower --lanes={lanes}')
    if mesh.size > 1 and mesh.devices.flat[0].platform == 'cpu':
        ways.append(f'lower --devices={mesh.size}, because the cores share the memory')
    if config.local_eval_every:
        ways.append('leave --local_eval_every out')
    if not streams:
        ways.append('give --stream=on')
    if config.checkpoint_every:
        ways.append('give --checkpoint_every=0 where clients have a state')
    ways.append(f'lower --clients_per_round={config.clients_per_round}')
    return ', or '.join([*ways, 'choose a smaller --model'])


@contextlib.contextmanager
def memory_errors(experiment: Experiment, mesh: Mesh, lanes: int) -> Iterator[None]:
    """Turns XLA's message of exhausted memory into one that says what to lower.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      lanes: of each.

    Yields:
      Nothing.

    Raises:
      TooLarge: when memory does not suffice.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        first = str(error).splitlines()[0]
        raise TooLarge(
            f"the devices' memory does not suffice ({first}): {advice(experiment, mesh, lanes)}."
        ) from error
