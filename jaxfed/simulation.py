"""The host's loop over rounds: train an experiment and record it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.config import Config
from jaxfed.costs import method_cost
from jaxfed.execution import run_waves
from jaxfed.experiment import Experiment, cohort_steps, set_up
from jaxfed.method import Method
from jaxfed.partition.heatmap import draw_heatmap
from jaxfed.preparation import TooLarge, in_words, memory_errors, prepare
from jaxfed.recording import console, records
from jaxfed.recording.entries import FAILED, describe_round, not_finite, summarise
from jaxfed.recording.models import save_model
from jaxfed.recording.plots import draw_accuracy
from jaxfed.types import PyTree

__all__ = ['Diverged', 'Result', 'TooLarge', 'simulate', 'train']


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
    mesh, lanes, tests, server = prepared.mesh, prepared.lanes, prepared.tests, prepared.server
    console.say(
        f'memory: about {in_words(prepared.needed)} of {in_words(prepared.available)} on each of '
        f'{mesh.size} device(s)' + (', images in waves' if prepared.streams else ''),
        quiet=quiet,
    )

    def due(every: int, round_: int) -> bool:
        return every > 0 and (round_ % every == 0 or round_ == config.rounds)

    metrics: list[dict[str, Any]] = []
    size, steps = dealt.label_counts.sum(axis=1), 0
    with (
        console.progress(config.rounds, quiet=quiet) as report,
        records.lines(workdir) as record,
        memory_errors(experiment, mesh, lanes),
    ):
        for round_, cohort, rate, waves in prepared.feed(lanes):
            ticks = [time.perf_counter()]
            local_due = due(config.local_eval_every, round_)
            server, trained, kept = run_waves(
                prepared.programs, mesh, server, prepared.client_states, cohort, waves, rate,
                prepared.key, keep=local_due,
            )  # fmt: skip
            train_loss = None if trained is None else float(trained.train_loss)
            ticks.append(time.perf_counter())
            evaluation = tests.of_global(server) if due(config.eval_every, round_) else None
            ticks.append(time.perf_counter())
            local = tests.of_locals(server, kept, cohort.clients) if local_due else {}
            ticks.append(time.perf_counter())
            entry = describe_round(round_, train_loss, evaluation, local, rate)
            entry['clients'] = int((cohort.epochs > 0).sum())
            entry['seconds'] = round(ticks[3] - ticks[0], 4)
            entry['evaluation_seconds'] = round(ticks[2] - ticks[1], 4)
            entry['local_evaluation_seconds'] = round(ticks[3] - ticks[2], 4)
            steps += int(cohort_steps(config, size, cohort).sum())
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                raise Diverged(
                    f'round {round_}: {failed} is not finite; training diverged. A lower '
                    '--learning_rate or smaller weights of the method may help. The rounds before '
                    f'are in {workdir}. --on_divergence=record ends such a run without an error.'
                )
            if failed:
                entry |= dict.fromkeys(FAILED) | {'failed': True}
            metrics.append(entry)
            record(entry)
            report(entry)
            watch(entry)
            if failed:
                break

    summary = summarise(config, metrics, prepared.compile_seconds, steps)
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
    summary['seconds_total'] = round(time.perf_counter() - began, 2)
    save_model(workdir, experiment, server.params, server.stats)
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
      Diverged: if training produces values that are not finite.
    """
    return train(set_up(config, method), quiet=quiet)
