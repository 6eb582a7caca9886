"""The host's loop over rounds: train an experiment and record it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.config import Config
from jaxfed.costs import method_cost
from jaxfed.execution import run_waves
from jaxfed.experiment import Experiment, client_steps, sample_cohort, set_up
from jaxfed.method import Method
from jaxfed.metrics.past import no_past, remember
from jaxfed.partition.heatmap import draw_heatmap
from jaxfed.preparation import TooLarge, in_words, memory_errors, prepare
from jaxfed.recording import console, records, trackers
from jaxfed.recording.entries import describe_round, failed_values, not_finite, summarise
from jaxfed.recording.plots import draw_accuracy
from jaxfed.recording.trackers import Unavailable
from jaxfed.types import PyTree

__all__ = ['Diverged', 'Result', 'TooLarge', 'Unavailable', 'simulate', 'train']


class Diverged(RuntimeError):
    """Training produced values that are not finite."""


class Result(NamedTuple):
    """What an experiment leaves."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # one entry a round, as in metrics.jsonl
    params: PyTree  # the last global parameters
    stats: PyTree  # and batch statistics, () for a network without
    workdir: Path


def train(
    experiment: Experiment,
    *,
    quiet: bool = False,
    watch: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> Result:
    """Train an experiment to its last round and record it in its work directory.

    Args:
      experiment: from `set_up`.
      quiet: show no progress.
      watch: called with the metrics of each round done, after they are recorded.

    Returns:
      Summary, metrics of all rounds, final parameters and the work directory.

    Raises:
      TooLarge: if it does not fit into the devices' memory, before the first round.
      Unavailable: if a tracker that the settings choose cannot be opened, before the first round.
      Diverged: if training produces values that are not finite; earlier rounds stay recorded.
    """
    began = time.perf_counter()
    config, dealt, workdir = experiment.config, experiment.dealt, experiment.workdir
    title = f'{config.dataset}, {config.partition}, {config.num_clients} clients'
    try:
        with console.status('compiling', quiet=quiet):
            prepared = prepare(experiment)
    except TooLarge:
        records.discard_workdir(workdir)
        raise
    draw_heatmap(dealt.label_counts, workdir / 'partition.png', title=title)
    records.write_partition(workdir / records.PARTITION, dealt.label_counts)
    mesh, lanes, tests, server = prepared.mesh, prepared.lanes, prepared.tests, prepared.server
    console.say(
        f'memory: about {in_words(prepared.needed)} of {in_words(prepared.available)} on each of '
        f'{mesh.size} device(s)' + (', images in waves' if prepared.streams else ''),
        quiet=quiet,
    )

    def due(every: int, round_: int) -> bool:
        return every > 0 and (round_ % every == 0 or round_ == config.rounds)

    metrics: list[dict[str, Any]] = []
    past = no_past(dealt.dataset.num_classes, len(dealt.dataset.y_test))
    with (
        trackers.follow(config, experiment.parts, workdir) as (track, untracked),
        console.progress(config.rounds, quiet=quiet) as report,
        records.lines(workdir) as record,
        memory_errors(experiment, mesh, lanes),
    ):
        for round_, cohort, rate, waves in prepared.feed(lanes):
            ticks = [time.perf_counter()]
            local_due = due(config.local_eval_every, round_)
            before = server
            server, trained, kept = run_waves(
                prepared.programs, mesh, server, prepared.client_states, cohort, waves, rate,
                prepared.key, keep=local_due,
            )  # fmt: skip
            train_loss = float(trained.train_loss)
            ticks.append(time.perf_counter())
            evaluation = tests.of_global(server) if due(config.eval_every, round_) else None
            ticks.append(time.perf_counter())
            local, details = (
                tests.of_locals(before, server, kept, cohort) if local_due else ({}, None)
            )
            measured = tests.measure(cohort, evaluation, past, details)
            past = past if evaluation is None else remember(past, evaluation)
            ticks.append(time.perf_counter())
            entry = describe_round(round_, train_loss, evaluation, local, rate, measured)
            entry['seconds'] = round(ticks[3] - ticks[0], 4)
            entry['evaluation_seconds'] = round(ticks[2] - ticks[1], 4)
            entry['local_evaluation_seconds'] = round(ticks[3] - ticks[2], 4)
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                raise Diverged(
                    f'round {round_}: {failed} is not finite; training diverged. A lower '
                    '--learning_rate or smaller weights of the method may help. The rounds before '
                    f'are in {workdir}. --on_divergence=record ends such a run without an error.'
                )
            if failed:
                entry |= failed_values(config) | {'failed': True}
            metrics.append(entry)
            record(entry)
            track(entry)
            report(entry)
            watch(entry)
            if failed:
                break

    steps, trained_rounds = client_steps(experiment), range(1, len(metrics) + 1)
    done = sum(int(steps[sample_cohort(config, r)].sum()) for r in trained_rounds)
    summary = summarise(config, metrics, prepared.compile_seconds, done)
    dataset = dealt.dataset
    cost = method_cost(
        experiment.method,
        experiment.model,
        input_shape=dataset.x_train.shape[1:],
        num_classes=dataset.num_classes,
    )
    summary['cost'] = cost._asdict()
    summary['evaluated_on'] = 'validation' if config.validation else 'test'
    summary['devices'] = mesh.size
    summary['lanes'] = lanes
    summary['memory_bytes'] = prepared.needed
    summary['auxiliary_examples'] = len(dealt.auxiliary)
    summary['trackers_failed'] = untracked
    summary['seconds_total'] = round(time.perf_counter() - began, 2)
    records.write_json(workdir / 'summary.json', summary)
    draw_accuracy(metrics, workdir / 'accuracy.png', title=f'{config.method}, {title}')
    if not quiet:
        console.show_summary(summary, workdir)
    return Result(summary, metrics, server.params, server.stats, workdir)


def simulate(config: Config, *, method: Method | None = None, quiet: bool = True) -> Result:
    """Run an experiment from its settings, with the same records as the command line.

    Args:
      config: the settings.
      method: a method of one's own, instead of the one that `config.method` names.
      quiet: show no progress.

    Returns:
      Summary, metrics of all rounds, final parameters and the work directory.

    Raises:
      ValueError: for settings or data that do not do, before anything is written.
      TooLarge: if it does not fit into the devices' memory, before the first round.
      Unavailable: if a tracker that the settings choose cannot be opened, before the first round.
      Diverged: if training produces values that are not finite.
    """
    return train(set_up(config, method), quiet=quiet)
