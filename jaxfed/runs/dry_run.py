"""What an experiment would be, without training it: sizes, memory, and time from one round."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.config import Config, partition_values
from jaxfed.engine.devices import describe_devices
from jaxfed.engine.execution import run_waves
from jaxfed.engine.stacking import row
from jaxfed.internal import console
from jaxfed.methods import Part
from jaxfed.methods.costs import method_cost
from jaxfed.models import ops
from jaxfed.recording import display
from jaxfed.runs.evaluate import keep_own
from jaxfed.runs.experiment import Experiment, client_steps, cohort_steps, make_network
from jaxfed.runs.memory import memory_errors, size_in_words
from jaxfed.runs.prepare import Prepared, prepare
from jaxfed.runs.seeds import sample_cohort
from jaxfed.types import PyTree


class Timed(NamedTuple):
    """Seconds of the parts of one round."""

    training: float
    steps: int  # client-steps of the round
    evaluation: float
    local_evaluation: float  # 0 where local models are never evaluated


def show_plan(experiment: Experiment) -> None:
    """Print what an experiment would be: `--dry_run`.

    Args:
      experiment: from `look`; nothing is written to its work directory.

    Raises:
      TooLarge: if it does not fit into the devices' memory.
    """
    with console.status('compiling', quiet=False):
        prepared = prepare([experiment])
    errors = memory_errors(experiment, prepared.mesh, prepared.lanes)
    with console.status('one round', quiet=False), errors:
        timed = time_round(experiment, prepared)
    display.show_dry_run(describe_plan(experiment, prepared, timed), experiment.dealt.label_counts)
    console.say('nothing was trained and no work directory was made.', quiet=False)


def describe_plan(experiment: Experiment, prepared: Prepared, timed: Timed) -> dict[str, str]:
    """Says what an experiment would be.

    Args:
      experiment: from `look`.
      prepared: the same.
      timed: one round of it.

    Returns:
      What -> in words.
    """
    config, dealt = experiment.config, experiment.dealt
    dataset, mesh = dealt.dataset, prepared.mesh
    shape = dataset.x_train.shape[1:]
    size, steps = dealt.label_counts.sum(axis=1), client_steps(experiment)
    total = sum(
        int(cohort_steps(config, size, sample_cohort(config, size, round_)).sum())
        for round_ in range(1, config.rounds + 1)
    )
    cost = method_cost(
        experiment.method, experiment.model, input_shape=shape, num_classes=dataset.num_classes
    )
    evaluated = 'held-out training examples' if config.validation else 'test examples'
    apart = f', {len(dealt.auxiliary)} kept by the server' if len(dealt.auxiliary) else ''
    server = row(prepared.server, 0)
    stats = _numbers(server.stats)
    return {
        'dataset': f'{dataset.name}: {size.sum()} examples at the clients{apart}, '
        f'{len(dataset.y_test)} {evaluated}, {"x".join(map(str, shape))} {dataset.x_train.dtype}, '
        f'{dataset.num_classes} classes',
        'partition': f'{config.partition}{_settings(partition_values(config))}',
        'clients': f'{config.clients_per_round} of {config.num_clients} a round, chosen '
        f'{config.sampling}',
        'local steps': f'{_spread(steps)} a client and round (batch {config.batch_size}, '
        f'{config.local_epochs} epochs)',
        'rounds': f'{config.rounds}, {total} client-steps in all',
        'method': _method(config, experiment.parts),
        'cost': display.cost_in_words(cost._asdict()) or "no more than FedAvg's",
        'network': f'{config.model}, {_numbers(server.params)} parameters'
        + (f', {stats} batch statistics' if stats else ''),
        'convolutions': '\n'.join(
            f'{shape}: {way}' for shape, way in convolutions(experiment).items()
        )
        or 'none',
        'devices': f'{describe_devices(list(mesh.devices.flat))}; {prepared.lanes} client(s) side '
        'by side on each',
        'memory': f'about {size_in_words(prepared.needed)} of {size_in_words(prepared.available)} on each'
        + (', images in waves of clients' if prepared.streams else ''),
        'time': f'about {estimate(config, timed, total)} with evaluation, at '
        f'{timed.steps / timed.training:.0f} client-steps/s in one round; compiling took '
        f'{prepared.compile_seconds:.1f} s',
    }


def time_round(experiment: Experiment, prepared: Prepared) -> Timed:
    """Runs the first round in which somebody trains, and forgets it.

    Args:
      experiment: from `look`.
      prepared: the same; its clients' states are not to be used any more.

    Returns:
      The seconds it takes.
    """
    config, size = experiment.config, experiment.dealt.label_counts.sum(axis=1)
    rounds = prepared.feed(prepared.lanes, 1)
    _, cohort, tuned, waves = next(r for r in rounds if r.cohort.epochs.any())
    local = config.local_eval_every > 0
    (tests,) = prepared.tests
    ticks = [time.perf_counter()]
    server, _, models = run_waves(
        prepared.programs, prepared.mesh, prepared.server, prepared.client_states, cohort, waves,
        tuned, prepared.keys, keep=local,
    )  # fmt: skip
    before, after = jax.block_until_ready((row(prepared.server, 0), row(server, 0)))
    ticks.append(time.perf_counter())
    tests.of_global(after)
    ticks.append(time.perf_counter())
    if local:
        kept = keep_own(models, 0, config.clients_per_round)
        tests.of_locals(before, after, kept, cohort.clients[0])
    ticks.append(time.perf_counter())
    training, evaluation, local_evaluation = np.diff(ticks)
    steps = int(cohort_steps(config, size, row(cohort, 0)).sum())
    return Timed(training, steps, evaluation, local_evaluation if local else 0.0)


def estimate(config: Config, timed: Timed, steps: int) -> str:
    """How long training takes if all client-steps take as long as those of one round.

    Args:
      config: the settings.
      timed: the round.
      steps: client-steps of all rounds.

    Returns:
      The time in words.
    """
    seconds = timed.training / timed.steps * steps
    seconds += timed.evaluation * -(-config.rounds // config.eval_every)
    if config.local_eval_every:
        seconds += timed.local_evaluation * -(-config.rounds // config.local_eval_every)
    return console.time_in_words(seconds)


def convolutions(experiment: Experiment) -> dict[str, str]:
    """How each convolution of the network is computed, by its shape.

    Args:
      experiment: from `look`.

    Returns:
      Shape -> way.
    """
    config, dataset = experiment.config, experiment.dealt.dataset
    shape = dataset.x_train.shape[1:]
    conv, told = ops.observed(None if config.conv == 'auto' else config.conv)
    network = make_network(config, shape, dataset.num_classes, conv)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((config.batch_size, *shape), np.float32)
    jax.eval_shape(network.evaluate, params, x, network.stats)
    return told


def _numbers(tree: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _spread(values: np.ndarray) -> str:
    return f'{values.min()} / {np.median(values):g} / {values.max()} (min / median / max)'


def _settings(values: Mapping[str, Any]) -> str:
    return f' ({", ".join(f"{name}={value}" for name, value in values.items())})' if values else ''


def _method(config: Config, parts: list[Part]) -> str:
    if not parts:
        return config.method
    phases = [
        ' + '.join(f'{p.name}{_settings(p.hyperparameters)}' for p in parts if p.phase == phase)
        for phase in (0, 1)
    ]
    return f' until round {config.switch_round}, then '.join(filter(None, phases))
