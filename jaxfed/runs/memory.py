"""The memory that an experiment needs, and what lowers it."""

import contextlib
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from jaxfed.engine import distributed
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.round import Round, ServerState, TrainingData
from jaxfed.methods.costs import size_of
from jaxfed.metrics.measures import needs, parse_measures
from jaxfed.models import options
from jaxfed.runs.evaluate import Tests
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.feed import WAVES, TooLarge
from jaxfed.types import PyTree


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
    row = size_of(client_states) * distributed.process_count() // clients
    # All that were in a round, and two copies of a round's; of local models three if measured.
    rows = min(clients, config.rounds * cohort_size) // distributed.process_count()
    stay += row * (rows + 2 * cohort_size)
    # A checkpoint is a copy of all rows, also of those that are still zero; the first of several
    # processes brings them together before it is made.
    copies_of_all = 2 if distributed.process_count() > 1 else 1
    stay += copies_of_all * row * clients if config.checkpoint_every else 0
    if config.local_eval_every:
        weights = jax.eval_shape(model.init, jax.random.key(0)), model.stats
        copies = 3 if 'models' in needs(parse_measures(config.measure)) else 2
        stay += copies * cohort_size * size_of(weights)
    return inside + stay // len(mesh.local_devices)


def size_in_words(size: float) -> str:
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
