"""From an experiment to programs that are ready to run: data on the devices, lanes, compilation."""

import contextlib
import functools
import gc
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxfed import client_states as states_of
from jaxfed import hosts
from jaxfed.config import Config
from jaxfed.costs import size_of
from jaxfed.data.augment import make_augment, normalise, parse_augment
from jaxfed.data.statistics import channel_statistics
from jaxfed.devices import make_mesh, memory, replicate
from jaxfed.evaluation import Tests, compile_tests
from jaxfed.execution import compile_round, peak_memory
from jaxfed.experiment import Experiment, client_steps, stream
from jaxfed.lanes import choose_lanes
from jaxfed.metrics.measures import needs, parse_measures
from jaxfed.models import options
from jaxfed.round import LocalSettings, Round, ServerState, TrainingData, make_round
from jaxfed.streaming import WAVES, Feed, make_feed
from jaxfed.types import Array, PyTree

# Where a CPU is one device, a few clients side by side fill its cores; more only take memory and
# compile longer. Where each core is a device, one client at a time keeps it busy.
CPU_LANES = 8


class TooLarge(ValueError):
    """An experiment needs more memory than its devices have."""


class Prepared(NamedTuple):
    """An experiment ready to run."""

    mesh: Mesh
    lanes: int  # of each device
    feed: Feed
    streams: bool  # whether images come in waves
    programs: Round  # compiled
    tests: Tests
    server: ServerState  # before the first round
    client_states: PyTree  # [N, ...] on the host
    key: Array  # of batches
    needed: int  # bytes of memory on each device
    available: float
    compile_seconds: float


def prepare(experiment: Experiment) -> Prepared:
    """Put the data on the devices, choose the number of lanes and compile.

    Args:
      experiment: from `set_up`.

    Returns:
      All that training needs.

    Raises:
      TooLarge: if it does not fit into the devices' memory.
    """
    began = time.perf_counter()
    config, method, model = experiment.config, experiment.method, experiment.model
    dataset = experiment.dealt.dataset
    mesh = make_mesh(config.devices, most=config.clients_per_round // max(config.lanes, 1))
    mean, std = channel_statistics(dataset.x_train)
    augment = make_augment(parse_augment(config.augment), mean=mean, std=std)
    to_input = functools.partial(normalise, mean=mean, std=std)
    settings = LocalSettings(
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        aggregation=config.aggregation,
        longest=max(len(part) for part in experiment.dealt.partition),
        keep_models=config.local_eval_every > 0,
    )
    params = model.init(jax.random.key(stream(config.seed, 'initialisation')))
    server_state, client_state = method.init(params, model.stats)
    started = ServerState(params, server_state, jnp.zeros((), jnp.int32), model.stats)
    # Every client's state lives on a host; a round's rows travel.
    client_states = states_of.create(client_state, config.num_clients)
    lanes = config.lanes or choose_lanes(
        client_steps(experiment),
        cohort_size=config.clients_per_round,
        most=most_lanes(config, mesh.size),
        devices=mesh.size,
    )
    with memory_errors(experiment, mesh, lanes):
        server = replicate(started, mesh)
        key = replicate(jax.random.key(stream(config.seed, 'batches')), mesh)
        feed, streams = make_feed(experiment, mesh, to_input)
        while True:
            parts = make_round(model, method, settings, augment, to_input, mesh=mesh)
            # Any round does, but one in which nobody trains.
            first = next(round_ for round_ in feed(lanes, 1) if round_.cohort.epochs.any())
            plan, data = next(first.waves)
            programs = compile_round(
                parts, mesh, server, client_states, first.cohort, plan, first.learning_rate, key,
                data,
            )  # fmt: skip
            tests = compile_tests(
                experiment, mesh, server, first.cohort.clients, plan, to_input, lanes=lanes
            )
            # The programs say how much memory their lanes take, most of which grows with them.
            needed = needed_memory(experiment, mesh, programs, tests, client_states, data, streams)
            needed = -int(hosts.least(-needed))  # the most of all processes
            available = memory(mesh)
            if config.lanes or needed <= available or lanes == 1:
                break
            lanes = max(1, min(lanes - 1, int(lanes * available / needed)))
    if needed > available:
        raise TooLarge(
            f'training needs about {in_words(needed)} of memory on each of {mesh.size} device(s), '
            f'which have {in_words(available)}: {advice(experiment, mesh, lanes, streams=streams)}.'
        )
    # JAX lets go of arrays that it shares with NumPy, as of a wave's images, when Python collects.
    del first, data
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
        key=key,
        needed=needed,
        available=available,
        compile_seconds=time.perf_counter() - began,
    )


def most_lanes(config: Config, devices: int) -> int:
    """The largest number of lanes worth having on each device.

    Args:
      config: the settings.
      devices: how many.

    Returns:
      The number.
    """
    if jax.default_backend() != 'cpu':
        return config.clients_per_round
    return CPU_LANES if devices == 1 else 1


def needed_memory(
    experiment: Experiment,
    mesh: Mesh,
    programs: Round,
    tests: Tests,
    client_states: PyTree,
    data: TrainingData,
    streams: bool,
) -> int:
    """Memory in bytes that training and evaluation need on each device.

    It is what the larger of the programs takes, and what stays there: images and, on a CPU, whose
    devices share one memory with the host, the clients' states and the local models to evaluate.

    Args:
      experiment: from `set_up`.
      mesh: the devices.
      programs: of the round, compiled.
      tests: compiled.
      client_states: [N, ...].
      data: training data.
      streams: whether images come in waves.

    Returns:
      The bytes, without those of the interpreter and the compiler.
    """
    config = experiment.config
    tested = experiment.dealt.dataset.x_test.nbytes
    # Every program takes images as an argument, which are counted once, with all others.
    inside = max(
        peak_memory(programs.train) - data.x.nbytes,
        tests.memory,
    )
    stay = data.x.nbytes * (WAVES if streams else 1) + tested
    if mesh.devices.flat[0].platform != 'cpu':
        return inside + stay
    row = size_of(client_states) * hosts.count() // config.num_clients
    # All that were in a round, and two copies of a round's; of local models three if measured.
    rows = min(config.num_clients, config.rounds * config.clients_per_round) // hosts.count()
    stay += row * (rows + 2 * config.clients_per_round)
    # A checkpoint is a copy of all rows, also of those that are still zero.
    stay += row * config.num_clients if config.checkpoint_every else 0
    if config.local_eval_every:
        model = experiment.model
        weights = jax.eval_shape(model.init, jax.random.key(0)), model.stats
        copies = 3 if 'models' in needs(parse_measures(config.measure)) else 2
        stay += copies * config.clients_per_round * size_of(weights)
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
