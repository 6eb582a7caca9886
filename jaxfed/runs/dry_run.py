"""The dry run of an experiment: its sizes, memory, and its time estimated from one round."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.config import Config, partition_values
from jaxfed.engine import distributed
from jaxfed.engine.devices import describe_devices
from jaxfed.engine.stacking import row
from jaxfed.internal import console
from jaxfed.methods import Part
from jaxfed.models import ops
from jaxfed.recording import display
from jaxfed.runs.experiment import Experiment, client_steps, make_network, total_steps
from jaxfed.runs.memory import memory_errors
from jaxfed.runs.notices import show_notices
from jaxfed.runs.prepare import Prepared, memory_in_words, prepare
from jaxfed.runs.privacy import privacy_after
from jaxfed.runs.rounds import train_and_evaluate
from jaxfed.runs.state import first_state
from jaxfed.types import PyTree, example_inputs


class Timed(NamedTuple):
    """The times of one round, in seconds."""

    training: float
    steps: int  # client-steps
    evaluation: float
    local_evaluation: float


def show_dry_run(experiment: Experiment) -> None:
    """Print the sizes, memory and time of an experiment from `make_experiment`; write nothing."""
    with console.status('compiling', quiet=False):
        prepared = prepare([experiment])
    errors = memory_errors(experiment, prepared.mesh, prepared.lanes)
    with console.status('one round', quiet=False), errors:
        timed = time_round(experiment, prepared)
    if distributed.is_leader():
        show_notices([experiment])
    rows = describe_dry_run(experiment, prepared, timed)
    display.show_dry_run(rows, experiment.dealt.label_counts)
    console.say('nothing was trained and no work directory was made.')


def describe_dry_run(experiment: Experiment, prepared: Prepared, timed: Timed) -> dict[str, str]:
    """The rows of the printed table, name -> text."""
    config, dealt = experiment.config, experiment.dealt
    dataset, steps = dealt.dataset, client_steps(experiment)
    total = total_steps(experiment, config.rounds)
    shape = f'{"x".join(map(str, experiment.input_shape))} {dataset.x_train.dtype}'
    if dataset.vocabulary:
        shape = f'{experiment.input_shape[1]} tokens of {dataset.vocabulary} ids'
    evaluated = 'held-out training examples' if config.validation else 'test examples'
    auxiliary = f', {len(dealt.auxiliary)} kept by the server' if len(dealt.auxiliary) else ''
    server = row(prepared.server, 0)
    stats = f', {_count(server.stats)} batch statistics' if server.stats else ''
    algorithms = [f'{name}: {way}' for name, way in convolutions(experiment).items()]
    devices = describe_devices(list(prepared.mesh.devices.flat))
    seconds = console.time_in_words(estimate(config, timed, total))
    spent = privacy_after(config, experiment.method, config.rounds)
    privacy = {'privacy': f'{display.privacy_in_words(spent)}, after all rounds'} if spent else {}
    return {
        'dataset': f'{dataset.name}: {dealt.size.sum()} examples at the clients{auxiliary}, '
        f'{len(dataset.y_test)} {evaluated}, {shape}, '
        f'{dataset.num_classes} classes',
        'partition': f'{config.partition}{_settings(partition_values(config))}',
        'clients': f'{config.clients_per_round} of {config.num_clients} a round, chosen '
        f'{config.sampling}',
        'local steps': f'{steps.min()} / {np.median(steps):g} / {steps.max()} (min / median / max) '
        f'a client and round (batch {config.batch_size}, {config.local_epochs} epochs)',
        'rounds': f'{config.rounds}, {console.counted(total, "client-step")} in all',
        'method': _method(config, experiment.parts),
        'cost': display.cost_in_words(experiment.cost._asdict()) or "no more than FedAvg's",
        **privacy,
        'network': f'{config.model}, {_count(server.params)} parameters{stats}',
        'convolutions': '\n'.join(algorithms) or 'none',
        'devices': f'{devices}; {console.counted(prepared.lanes, "client")} at a time on each; '
        f'arithmetic in {config.precision}',
        'memory': memory_in_words(prepared),
        'time': f'about {seconds} with evaluation, at '
        f'{timed.steps / timed.training:.0f} client-steps/s in one round; compiling took '
        f'{prepared.compile_seconds:.1f} s',
    }


def time_round(experiment: Experiment, prepared: Prepared) -> Timed:
    """Time the first round in which a client trains; changes the clients' states."""
    state = first_state([experiment], prepared)
    # Measures of local models are compiled when they are first called.
    for _ in range(1 + bool(experiment.config.local_eval_every)):
        rounds = prepared.feed(prepared.lanes, 1)  # anew: the waves of a round are read once
        steps = 0
        while not steps:  # the sampled clients may be lost or have no examples
            planned = next(rounds)
            steps = int(client_steps(experiment, row(planned.cohort, 0)).sum())
        # Every evaluation is due in the last round.
        planned = planned._replace(number=experiment.config.rounds)
        state, entries = train_and_evaluate(prepared, [experiment], planned, state, [0])
    evaluation, local = (
        entries[0][f'{name}_seconds'] for name in ('evaluation', 'local_evaluation')
    )
    return Timed(entries[0]['seconds'] - evaluation - local, steps, evaluation, local)


def estimate(config: Config, timed: Timed, steps: int) -> float:
    """The seconds of `steps` client-steps and of all evaluations, from those of one round."""
    seconds = timed.training / timed.steps * steps
    seconds += timed.evaluation * -(-config.rounds // config.eval_every)
    if config.local_eval_every:
        seconds += timed.local_evaluation * -(-config.rounds // config.local_eval_every)
    return seconds


def convolutions(experiment: Experiment) -> dict[str, str]:
    """Shape of each convolution of the network -> its algorithm."""
    config, dataset = experiment.config, experiment.dealt.dataset
    use = None if config.conv == 'auto' else config.conv
    convolution, lowerings = ops.recording_convolution(use)
    shape, vocabulary = experiment.input_shape, dataset.vocabulary
    network = make_network(config, shape, dataset.num_classes, vocabulary, convolution)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = example_inputs(config.batch_size, shape, vocabulary)
    jax.eval_shape(network.evaluate, params, x, network.stats)
    return lowerings


def _count(tree: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _settings(settings: Mapping[str, Any]) -> str:
    text = ', '.join(f'{name}={value}' for name, value in settings.items())
    return f' ({text})' if text else ''


def _method(config: Config, parts: list[Part]) -> str:
    phases = [
        ' + '.join(f'{p.name}{_settings(p.hyperparameters)}' for p in parts if p.phase == phase)
        for phase in (0, 1)
    ]
    return f' until round {config.switch_round}, then '.join(filter(None, phases)) or config.method
