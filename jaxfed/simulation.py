"""The host's loop over rounds: train an experiment and record it."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed import client_states as states_of
from jaxfed import hosts, liveness
from jaxfed.config import Config
from jaxfed.costs import method_cost
from jaxfed.devices import replicate
from jaxfed.execution import run_waves
from jaxfed.experiment import Experiment, cohort_steps, sample_cohort, set_up
from jaxfed.interruption import Interrupted, stopping
from jaxfed.method import Method
from jaxfed.metrics.past import Past, no_past, remember
from jaxfed.partition.heatmap import draw_heatmap
from jaxfed.preparation import Prepared, TooLarge, in_words, memory_errors, prepare
from jaxfed.recording import console, records, trackers
from jaxfed.recording.checkpoints import FOLDER, open_checkpoints, restore, save
from jaxfed.recording.entries import describe_round, failed_values, not_finite, summarise
from jaxfed.recording.models import save_model
from jaxfed.recording.plots import draw_accuracy
from jaxfed.recording.trackers import Unavailable
from jaxfed.round import ServerState
from jaxfed.streaming import Planned
from jaxfed.types import PyTree

__all__ = ['Diverged', 'Interrupted', 'Result', 'TooLarge', 'Unavailable', 'simulate', 'train']


class Diverged(RuntimeError):
    """Training produced values that are not finite."""


class Result(NamedTuple):
    """What an experiment leaves."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # one entry a round, as in metrics.jsonl
    params: PyTree  # the last global parameters
    stats: PyTree  # and batch statistics, () for a network without
    workdir: Path


class State(NamedTuple):
    """What a run goes on from after a round."""

    server: ServerState
    clients: PyTree  # [n, ...] NumPy, states of clients; the next round changes them in place
    past: Past


def train(
    experiment: Experiment,
    *,
    quiet: bool = False,
    watch: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> Result:
    """Train an experiment to its last round and record it in its work directory.

    A run that was interrupted goes on from its last checkpoint.

    Args:
      experiment: from `set_up`.
      quiet: show no progress.
      watch: called with the metrics of each round done, after they are recorded.

    Returns:
      Summary, metrics of all rounds, final parameters and the work directory.

    Raises:
      TooLarge: if it does not fit into the devices' memory, before the first round.
      Unavailable: if a tracker that the settings choose cannot be opened, before the first round.
      ValueError: if another process is at work in the directory, or what it holds is damaged.
      Diverged: if training produces values that are not finite; earlier rounds stay recorded.
      Interrupted: if SIGINT or SIGTERM came, after the end of the round.
      OSError: if records or checkpoints cannot be written; earlier ones stay as they are.
    """
    liveness.advise(
        f'with --workdir={experiment.workdir} the same command goes on from the last checkpoint'
    )
    if not hosts.leader():
        return _follow(experiment)
    with records.alone(experiment.workdir):
        result = _train(experiment, quiet=quiet, watch=watch)
        shutil.rmtree(experiment.workdir / FOLDER, ignore_errors=True)
    if hosts.count() > 1:
        hosts.from_leader(lambda: json.dumps([result.summary, result.metrics]))
    if not quiet:
        console.show_summary(result.summary, experiment.workdir)
    return result


def _train(
    experiment: Experiment, *, quiet: bool, watch: Callable[[dict[str, Any]], None]
) -> Result:
    """As `train`, where no other process is at work."""
    began = time.perf_counter()
    config, workdir, counts = experiment.config, experiment.workdir, experiment.dealt.label_counts
    records.check_unfinished(workdir, counts)
    try:
        with console.status('compiling', quiet=quiet):
            prepared = prepare(experiment)
    except TooLarge:
        records.discard_workdir(workdir)
        raise
    draw_heatmap(counts, workdir / 'partition.png', title=title_of(config))
    records.write_partition(workdir / records.PARTITION, counts)
    console.say(
        f'memory: about {in_words(prepared.needed)} of {in_words(prepared.available)} on each of '
        f'{prepared.mesh.size} device(s)' + (', images in waves' if prepared.streams else ''),
        quiet=quiet,
    )
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(workdir, keep=config.keep))
        done, state = start(experiment, prepared, checkpoints)
        if (workdir / records.METRICS).exists():
            trackers.clear(config, workdir)  # they get all rounds again
        track, untracked = stack.enter_context(trackers.follow(config, experiment.parts, workdir))
        metrics = records.rewind(workdir, done)
        for entry in metrics:
            track(entry)
        if done:
            console.say(f'going on after round {done}', quiet=quiet)
        report = stack.enter_context(console.progress(config.rounds, quiet=quiet))
        lines = stack.enter_context(records.lines(workdir))
        came = stack.enter_context(stopping(partial(console.say, quiet=quiet)))
        stack.enter_context(memory_errors(experiment, prepared.mesh, prepared.lanes))
        for planned in prepared.feed(prepared.lanes, done + 1):
            state, entry = play(prepared, config, planned, state)
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                raise diverged(planned.number, failed, workdir)
            if failed:
                entry |= failed_values(config) | {'failed': True}
            metrics.append(entry)
            lines.record(entry)
            track(entry)
            report(entry)
            watch(entry)
            if failed or planned.number == config.rounds:
                break
            signal = hosts.any_signal(came())
            if signal or checkpoint_due(config, planned.number):
                # A checkpoint counts on the lines of its rounds.
                lines.settle()
                save(checkpoints, planned.number, whole(state, config))
            if signal:
                raise stopped(planned.number, workdir, signal)
        summary = finish(experiment, prepared, metrics)
        summary['resumed_after'] = done or None
        summary['trackers_failed'] = untracked
        # What earlier processes spent on rounds that are kept counts, too.
        before = sum(entry['seconds'] for entry in metrics[:done])
        summary['seconds_total'] = round(before + time.perf_counter() - began, 2)
        save_model(workdir, experiment, state.server.params, state.server.stats)
        # The summary tells that the run is finished, so it comes last.
        records.write_json(workdir / records.SUMMARY, summary)
    return Result(summary, metrics, state.server.params, state.server.stats, workdir)


def _follow(experiment: Experiment) -> Result:
    """As `_train`, in a process whose work the first one records."""
    config, workdir = experiment.config, experiment.workdir
    prepared = prepare(experiment)
    done, state = start(experiment, prepared, None)
    with (
        stopping(lambda text: None) as came,
        memory_errors(experiment, prepared.mesh, prepared.lanes),
    ):
        for planned in prepared.feed(prepared.lanes, done + 1):
            state, entry = play(prepared, config, planned, state)
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                raise diverged(planned.number, failed, workdir)
            if failed or planned.number == config.rounds:
                break
            signal = hosts.any_signal(came())
            if signal or checkpoint_due(config, planned.number):
                whole(state, config)
            if signal:
                raise stopped(planned.number, workdir, signal)
    summary, metrics = json.loads(hosts.from_leader(str))
    return Result(summary, metrics, state.server.params, state.server.stats, workdir)


def checkpoint_due(config: Config, number: int) -> bool:
    """Whether a checkpoint is written after a round.

    Args:
      config: the settings.
      number: of the round.

    Returns:
      Whether it is.
    """
    return config.checkpoint_every > 0 and number % config.checkpoint_every == 0


def whole(state: State, config: Config) -> State:
    """The state with the rows of all processes, on the first of them.

    Args:
      state: after a round.
      config: the settings.

    Returns:
      The state.
    """
    return state._replace(clients=states_of.collect(state.clients, config.num_clients))


def diverged(number: int, failed: str, workdir: Path) -> Diverged:
    """The error of a run that diverged.

    Args:
      number: of the round.
      failed: what is not finite.
      workdir: the work directory.

    Returns:
      The error.
    """
    return Diverged(
        f'round {number}: {failed} is not finite; training diverged. A lower --learning_rate or '
        f'smaller weights of the method may help. The rounds before are in {workdir}. '
        '--on_divergence=record ends such a run without an error.'
    )


def stopped(number: int, workdir: Path, signal: int) -> Interrupted:
    """The error of a run that was asked to stop.

    Args:
      number: of the last round.
      workdir: the work directory.
      signal: that came.

    Returns:
      The error.
    """
    return Interrupted(
        f'stopped after round {number}; the same command goes on from there, with '
        f'--workdir={workdir}.',
        signal,
    )


def title_of(config: Config) -> str:
    """What pictures of a run are of, in a few words.

    Args:
      config: the settings.

    Returns:
      The words.
    """
    return f'{config.dataset}, {config.partition}, {config.num_clients} clients'


def start(experiment: Experiment, prepared: Prepared, checkpoints: Any) -> tuple[int, State]:
    """The state to begin with: that of the newest checkpoint, or the first.

    Args:
      experiment: from `set_up`.
      prepared: from `prepare`.
      checkpoints: of the run; not read by processes after the first, which get what it reads.

    Returns:
      (rounds done, the state).

    Raises:
      ValueError: if there are checkpoints, but none is whole.
    """
    dataset = experiment.dealt.dataset
    past = no_past(dataset.num_classes, len(dataset.y_test))
    first = State(prepared.server, prepared.client_states, past)
    clients = experiment.config.num_clients
    like = first._replace(clients=states_of.blank(first.clients, clients))
    saved = restore(checkpoints, like) if hosts.leader() else None
    done = int(hosts.from_leader(lambda: str(saved.round if saved else 0)))
    if not done:
        return 0, first
    read = saved.state if saved else first
    server, past = states_of.broadcast((read.server, read.past))
    own = states_of.spread(read.clients, first.clients, clients)
    return done, State(replicate(server, prepared.mesh), own, past)


def play(
    prepared: Prepared, config: Config, planned: Planned, state: State
) -> tuple[State, dict[str, Any]]:
    """Run a round: train, evaluate, measure.

    Args:
      prepared: from `prepare`.
      config: the settings.
      planned: the round.
      state: after the round before; the clients' states are changed in place.

    Returns:
      (state, the round's line of metrics.jsonl).
    """
    number, cohort, rate, waves = planned
    tests, before, past = prepared.tests, state.server, state.past

    def due(every: int) -> bool:
        return every > 0 and (number % every == 0 or number == config.rounds)

    ticks = [time.perf_counter()]
    local_due = due(config.local_eval_every)
    server, trained, kept = run_waves(
        prepared.programs, prepared.mesh, before, state.clients, cohort, waves, rate,
        prepared.key, keep=local_due,
    )  # fmt: skip
    train_loss = None if trained is None else float(trained.train_loss)
    ticks.append(time.perf_counter())
    evaluation = tests.of_global(server) if due(config.eval_every) else None
    ticks.append(time.perf_counter())
    local: dict[str, float] = {}
    details = None
    if local_due:
        local, details = tests.of_locals(before, server, kept, cohort.clients)
    arrived = cohort.clients[cohort.epochs > 0]
    measured = tests.measure(arrived, evaluation, past, details)
    ticks.append(time.perf_counter())
    entry = describe_round(number, train_loss, evaluation, local, rate, measured)
    entry['clients'] = len(arrived)
    entry['seconds'] = round(ticks[3] - ticks[0], 4)
    entry['evaluation_seconds'] = round(ticks[2] - ticks[1], 4)
    entry['local_evaluation_seconds'] = round(ticks[3] - ticks[2], 4)
    past = past if evaluation is None else remember(past, evaluation)
    return State(server, state.clients, past), entry


def finish(
    experiment: Experiment, prepared: Prepared, metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    """Summarise a run and draw its accuracy.

    Args:
      experiment: from `set_up`.
      prepared: from `prepare`.
      metrics: one entry a round.

    Returns:
      The summary.
    """
    config, dealt = experiment.config, experiment.dealt
    size = dealt.label_counts.sum(axis=1)
    cohorts = [sample_cohort(config, size, entry['round']) for entry in metrics]
    steps = sum(int(cohort_steps(config, size, cohort).sum()) for cohort in cohorts)
    summary = summarise(config, metrics, prepared.compile_seconds, steps)
    cost = method_cost(
        experiment.method,
        experiment.model,
        input_shape=dealt.dataset.x_train.shape[1:],
        num_classes=dealt.dataset.num_classes,
    )
    draw_accuracy(
        metrics,
        experiment.workdir / 'accuracy.png',
        title=f'{config.method}, {title_of(config)}',
    )
    return {
        **summary,
        'cost': cost._asdict(),
        'evaluated_on': 'validation' if config.validation else 'test',
        'devices': prepared.mesh.size,
        'lanes': prepared.lanes,
        'memory_bytes': prepared.needed,
        'auxiliary_examples': len(dealt.auxiliary),
    }


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
