"""The memory that an experiment needs, and the settings that lower it."""

import contextlib
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from jaxfed.engine import distributed
from jaxfed.engine.execution import peak_memory
from jaxfed.engine.round import Round
from jaxfed.engine.types import ServerState, TrainingData
from jaxfed.methods.costs import size_of
from jaxfed.models import options
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.feed import WAVES, TooLarge
from jaxfed.runs.placement import in_memory
from jaxfed.types import PyTree

# Bytes that a CPU's convolutions allocate and XLA does not report, whatever the size of the program
# (docs/guarantees.md).
SCRATCH = 100 * 2**20


def needed_memory(
    experiments: Sequence[Experiment],
    mesh: Mesh,
    programs: Round,
    evaluation: int,
    server: ServerState,
    client_states: PyTree,
    data: TrainingData,
    streams: bool,
) -> int:
    """Bytes that training and evaluation need on each device, without interpreter and compiler.

    The memory of the larger program, and of images. On a CPU, whose devices share one memory with
    the host, also that of the clients' states and of the local models to evaluate.

    Args:
      experiments: X.
      mesh: the devices.
      programs: of the round, compiled.
      evaluation: bytes of the largest program of an evaluation on each device.
      server: [X, ...].
      client_states: this process's rows of [X N, ...].
      data: training data.
      streams: whether images are sent in waves.
    """
    config, model = experiments[0].config, experiments[0].model
    cohort_size = len(experiments) * config.clients_per_round
    clients = len(experiments) * config.num_clients
    test_images = {id(e.dealt.dataset.x_test): e.dealt.dataset.x_test.nbytes for e in experiments}
    # Images are an argument of each program, and counted once.
    images = size_of(data.x)
    inside = max(peak_memory(programs.train) - images, peak_memory(programs.merge), evaluation)
    # Each experiment's server state is copied from the stack, before and after a round.
    server_size = size_of((server.params, server.stats, server.method))
    inside += 2 * server_size
    stay = images * (WAVES if streams else 1) + sum(test_images.values())
    if mesh.devices.flat[0].platform != 'cpu':
        return inside + stay
    inside += min(inside, SCRATCH)
    stay += in_memory(e.dealt.dataset for e in experiments)
    row = size_of(client_states) * distributed.process_count() // clients
    # The rows written so far, and two copies of a round's rows.
    written = min(1.0, config.rounds * cohort_size / clients)
    # Of a state that does not start at zero, all rows are written before the first round.
    stay += sum(
        int(leaf.nbytes * (1.0 if leaf[:1].any() else written))
        for leaf in jax.tree.leaves(client_states)
    )
    stay += 2 * cohort_size * row
    if config.checkpoint_every:
        # A checkpoint copies all rows; the first of several processes gathers them before. The
        # state of the server is copied once more to be written.
        stay += (2 if distributed.process_count() > 1 else 1) * row * clients + 2 * server_size
    if config.local_eval_every:
        weights = jax.eval_shape(model.init, jax.random.key(0)), model.stats
        copies = 3 if 'models' in experiments[0].measures.needs else 2
        stay += copies * cohort_size * size_of(weights)
    return inside + stay // len(mesh.local_devices)


def size_in_words(size: float) -> str:
    """Bytes as text, for instance '1.5 GiB'."""
    return f'{size / 2**30:.1f} GiB' if size >= 2**30 else f'{size / 2**20:.0f} MiB'


def advice(experiment: Experiment, mesh: Mesh, lanes: int, *, streams: bool = True) -> str:
    """The settings that lower the memory of an experiment, joined by 'or'."""
    config = experiment.config
    shares_memory = mesh.size > 1 and mesh.devices.flat[0].platform == 'cpu'
    ways = {
        f'lower --batch_size={config.batch_size}': config.batch_size > 1,
        'set --remat': 'remat' in options(config.model) and not config.remat,
        f'lower --lanes={lanes}': lanes > 1,
        f'lower --devices={mesh.size}, because the cores share the memory': shares_memory,
        'omit --local_eval_every': config.local_eval_every,
        'set --stream=on': not streams,
        'set --checkpoint_every=0 if clients have a state': config.checkpoint_every,
        f'lower --clients_per_round={config.clients_per_round}': True,
        'choose a smaller --model': True,
    }
    return ', or '.join(way for way, applies in ways.items() if applies)


@contextlib.contextmanager
def memory_errors(experiment: Experiment, mesh: Mesh, lanes: int) -> Iterator[None]:
    """Replaces XLA's error of exhausted memory by TooLarge with advice."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        first = str(error).splitlines()[0]
        raise TooLarge(
            f'the devices are out of memory ({first}): {advice(experiment, mesh, lanes)}.'
        ) from error
