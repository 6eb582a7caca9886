"""The host's loop over rounds: train an experiment and record it."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.engine import client_states as states_of
from jaxfed.engine import distributed
from jaxfed.engine.devices import replicate
from jaxfed.engine.distributed import liveness
from jaxfed.engine.execution import run_waves
from jaxfed.engine.round import ServerState
from jaxfed.engine.stacking import row
from jaxfed.internal import console, files
from jaxfed.internal.signals import Interrupted, stopping
from jaxfed.methods.costs import method_cost
from jaxfed.methods.method import Method
from jaxfed.metrics.history import Past, no_past, remember
from jaxfed.recording import display, run_files
from jaxfed.recording.checkpoints import FOLDER, open_checkpoints, restore, save
from jaxfed.recording.curve import draw_accuracy
from jaxfed.recording.entries import describe_round, failed_values, not_finite, summarise
from jaxfed.recording.heatmap import draw_heatmap
from jaxfed.recording.log import open_book
from jaxfed.recording.progress import run_progress
from jaxfed.recording.trackers import Unavailable
from jaxfed.runs.evaluate import keep_own
from jaxfed.runs.experiment import Experiment, cohort_steps, set_up
from jaxfed.runs.feed import Planned, TooLarge
from jaxfed.runs.memory import memory_errors, size_in_words
from jaxfed.runs.model_file import save_model
from jaxfed.runs.prepare import Prepared, prepare
from jaxfed.runs.seeds import sample_cohort
from jaxfed.types import Cohort, PyTree

__all__ = [
    'Diverged',
    'Interrupted',
    'Result',
    'TooLarge',
    'Unavailable',
    'simulate',
    'train',
    'train_together',
]


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
    """What X experiments go on from after a round."""

    server: ServerState  # [X, ...]
    clients: PyTree  # rows of [X N, ...] NumPy, states of clients; the next round changes them
    past: list[Past]  # X
    recorded: np.ndarray  # [X] rounds recorded of an experiment that has stopped, -1 while it runs
    diverged: np.ndarray  # [X] bool, whether it stopped in a round that is not recorded


# (round, metrics of each experiment so far, numbers of those that run) -> numbers of those to stop
Stop = Callable[[int, Sequence[list[dict[str, Any]]], Sequence[int]], Sequence[int]]


def never(
    round_: int, metrics: Sequence[list[dict[str, Any]]], running: Sequence[int]
) -> Sequence[int]:
    """Ends nobody's training early.

    Args:
      round_: as of every `Stop`, like all others.
      metrics: see there.
      running: see there.

    Returns:
      Nothing.
    """
    return ()


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
    try:
        if not distributed.leader():
            return _follow(experiment)
        (result,) = train_together(
            [experiment], experiment.workdir, quiet=quiet, watch=lambda _, entry: watch(entry)
        )
        if isinstance(result, Diverged):
            raise result
    except (Interrupted, Diverged):
        # One that ends with an error ends the others: not before the last checkpoint is written.
        distributed.meet('training stopped')
        raise
    if distributed.count() > 1:
        distributed.from_leader('summary', lambda: json.dumps([result.summary, result.metrics]))
    if not quiet:
        display.show_summary(result.summary, experiment.workdir)
    return result


def train_together(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    quiet: bool = False,
    watch: Callable[[int, dict[str, Any]], None] = lambda x, entry: None,
    stop: Stop = never,
) -> list[Result | Diverged]:
    """Train experiments in one program, each recorded in its own work directory.

    What was interrupted goes on from its last checkpoint.

    Args:
      experiments: X from `set_up` that share a program, see `sharing`.
      folder: of their checkpoints; the work directory where there is one experiment.
      quiet: show no progress, which is shown of one experiment only.
      watch: called with an experiment's number and the metrics of each of its rounds done, after
        they are recorded.
      stop: called after each round; says whose training ends early.

    Returns:
      The result of each, or the error of one that diverged, which ends none of the others.

    Raises:
      TooLarge: as `train`, like all others but `Diverged`.
    """
    with contextlib.ExitStack() as stack:
        for experiment in experiments:
            stack.enter_context(files.exclusive_lock(experiment.workdir))
        results = _train(experiments, folder, quiet=quiet, watch=watch, stop=stop)
        # One alone that diverged is not finished.
        if len(results) > 1 or isinstance(results[0], Result):
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
    return results


def _train(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    quiet: bool,
    watch: Callable[[int, dict[str, Any]], None],
    stop: Stop,
) -> list[Result | Diverged]:
    """As `train_together`, where no other process is at work."""
    began = time.perf_counter()
    config, count = experiments[0].config, len(experiments)
    for experiment in experiments:
        run_files.check_unfinished(experiment.workdir, experiment.dealt.label_counts)
    try:
        with console.status('compiling', quiet=quiet):
            prepared = prepare(experiments)
    except TooLarge:
        if count == 1:  # else they are tried in smaller groups
            run_files.discard_workdir(experiments[0].workdir)
        raise
    for experiment in experiments:
        workdir, counts = experiment.workdir, experiment.dealt.label_counts
        draw_heatmap(counts, workdir / 'partition.png', title=title_of(experiment.config))
        run_files.write_partition(workdir / run_files.PARTITION, counts)
    console.say(
        f'memory: about {size_in_words(prepared.needed)} of {size_in_words(prepared.available)} on each of '
        f'{prepared.mesh.size} device(s)' + (', images in waves' if prepared.streams else ''),
        quiet=quiet,
    )
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoints(folder, keep=config.keep))
        done, state = start(experiments, prepared, checkpoints)
        runs = state.recorded < 0  # the feed looks at it before every round
        books = [
            stack.enter_context(
                open_book(e.config, e.parts, e.workdir, done if running else int(recorded))
            )
            for e, running, recorded in zip(experiments, runs, state.recorded, strict=True)
        ]
        if done:
            console.say(f'going on after round {done}', quiet=quiet)
        hidden = quiet or count > 1
        report = stack.enter_context(run_progress(config.rounds, quiet=hidden))
        before = [sum(entry['seconds'] for entry in book.metrics) for book in books]
        came = stack.enter_context(stopping(partial(console.say, quiet=False)))
        stack.enter_context(memory_errors(experiments[0], prepared.mesh, prepared.lanes))
        servers = [take_row(state.server, x) for x in range(count)]
        errors: dict[int, Diverged] = {}
        for planned in prepared.feed(prepared.lanes, done + 1, runs) if runs.any() else ():
            number, running = planned.number, np.flatnonzero(runs).tolist()
            state, servers, entries = play(prepared, experiments, planned, state, servers, running)
            for x, entry in entries.items():
                failed = not_finite(entry)
                if failed:
                    runs[x] = False
                    if config.on_divergence == 'stop':
                        errors[x] = diverged(experiments[x], number, failed)
                        state.diverged[x], state.recorded[x] = True, number - 1
                        continue
                    entry |= failed_values(config) | {'failed': True}
                    state.recorded[x] = number
                books[x].record(entry)
                report(entry)
                watch(x, entry)
            for x in stop(number, [book.metrics for book in books], np.flatnonzero(runs).tolist()):
                runs[x], state.recorded[x] = False, number
            if not runs.any() or number == config.rounds:
                break
            signal = distributed.any_signal(came())
            if signal or checkpoint_due(config, number):
                # A checkpoint counts on the lines of its rounds.
                for book in books:
                    book.settle()
                save(checkpoints, number, whole(state, experiments))
            if signal:
                raise stopped(experiments, number, signal)
        results: list[Result | Diverged] = []
        for x, (experiment, book, server) in enumerate(
            zip(experiments, books, servers, strict=True)
        ):
            if state.diverged[x]:
                results.append(
                    errors.get(x) or diverged(experiment, state.recorded[x] + 1, 'a loss')
                )
                continue
            summary = finish(experiment, prepared, book.metrics, shared_by=count)
            summary['resumed_after'] = done or None
            summary['trackers_failed'] = book.untracked
            summary['stopped_early'] = len(book.metrics) < config.rounds and not summary['failed']
            # What earlier processes spent on rounds that are kept counts, too.
            spent = before[x] + (time.perf_counter() - began) / count
            summary['seconds_total'] = round(spent, 2)
            save_model(experiment.workdir, experiment, server.params, server.stats)
            results.append(
                Result(summary, book.metrics, server.params, server.stats, experiment.workdir)
            )
        # The summary tells that a run is finished, so it comes last.
        ended = [result for result in results if isinstance(result, Result)]
        files.write_json_files({r.workdir / run_files.SUMMARY: r.summary for r in ended})
    return results


def _follow(experiment: Experiment) -> Result:
    """As `train`, in a process whose work the first one records."""
    config, together = experiment.config, [experiment]
    prepared = prepare(together)
    done, state = start(together, prepared, None)
    servers = [take_row(state.server, 0)]
    with (
        stopping(lambda text: None) as came,
        memory_errors(experiment, prepared.mesh, prepared.lanes),
    ):
        for planned in prepared.feed(prepared.lanes, done + 1, np.array([True])):
            number = planned.number
            state, servers, entries = play(prepared, together, planned, state, servers, [0])
            failed = not_finite(entries[0])
            if failed and config.on_divergence == 'stop':
                raise diverged(experiment, number, failed)
            if failed or number == config.rounds:
                break
            signal = distributed.any_signal(came())
            if signal or checkpoint_due(config, number):
                whole(state, together)
            if signal:
                raise stopped(together, number, signal)
    summary, metrics = json.loads(distributed.from_leader('summary', str))
    return Result(summary, metrics, servers[0].params, servers[0].stats, experiment.workdir)


def checkpoint_due(config: Config, number: int) -> bool:
    """Whether a checkpoint is written after a round.

    Args:
      config: the settings.
      number: of the round.

    Returns:
      Whether it is.
    """
    return config.checkpoint_every > 0 and number % config.checkpoint_every == 0


def whole(state: State, experiments: Sequence[Experiment]) -> State:
    """The state with the rows of all processes, on the first of them.

    Args:
      state: after a round.
      experiments: the same.

    Returns:
      The state.
    """
    rows = len(experiments) * experiments[0].config.num_clients
    return state._replace(clients=states_of.collect(state.clients, rows))


def stopped(experiments: Sequence[Experiment], number: int, signal: int) -> Interrupted:
    """The error of training that was asked to stop.

    Args:
      experiments: that were trained.
      number: of the last round.
      signal: that came.

    Returns:
      The error.
    """
    told = f'stopped after round {number}; the same command goes on from there'
    one = f', with --workdir={experiments[0].workdir}' if len(experiments) == 1 else ''
    return Interrupted(f'{told}{one}.', signal)


def diverged(experiment: Experiment, round_: int, what: str) -> Diverged:
    """The error of an experiment that diverged.

    Args:
      experiment: from `set_up`.
      round_: in which it did.
      what: is not finite.

    Returns:
      The error.
    """
    return Diverged(
        f'round {round_}: {what} is not finite; training diverged. A lower --learning_rate or '
        f'smaller weights of the method may help. The rounds before are in {experiment.workdir}. '
        '--on_divergence=record ends such a run without an error.'
    )


def title_of(config: Config) -> str:
    """What pictures of a run are of, in a few words.

    Args:
      config: the settings.

    Returns:
      The words.
    """
    return f'{config.dataset}, {config.partition}, {config.num_clients} clients'


def start(
    experiments: Sequence[Experiment], prepared: Prepared, checkpoints: Any
) -> tuple[int, State]:
    """The state to begin with: that of the newest checkpoint, or the first.

    Args:
      experiments: X from `set_up`.
      prepared: from `prepare`.
      checkpoints: of the run; not read by processes after the first, which get what it reads.

    Returns:
      (rounds done, the state).

    Raises:
      ValueError: if there are checkpoints, but none is whole.
    """
    dataset, count = experiments[0].dealt.dataset, len(experiments)
    first = State(
        prepared.server,
        prepared.client_states,
        [no_past(dataset.num_classes, len(dataset.y_test)) for _ in experiments],
        np.full(count, -1, np.int32),
        np.zeros(count, bool),
    )
    rows = count * experiments[0].config.num_clients
    like = first._replace(clients=states_of.blank(first.clients, rows))
    saved = restore(checkpoints, like) if distributed.leader() else None
    done = int(distributed.from_leader('checkpoint', lambda: str(saved.round if saved else 0)))
    if not done:
        return 0, first
    read = saved.state if saved else first
    state = states_of.broadcast(read._replace(clients=()))
    return done, state._replace(
        server=replicate(state.server, prepared.mesh),
        clients=states_of.spread(read.clients, first.clients, rows),
        recorded=np.array(state.recorded),  # to be written to
        diverged=np.array(state.diverged),
    )


take_row = jax.jit(row)


def play(
    prepared: Prepared,
    experiments: Sequence[Experiment],
    planned: Planned,
    state: State,
    servers: Sequence[ServerState],
    running: Sequence[int],
) -> tuple[State, list[ServerState], dict[int, dict[str, Any]]]:
    """Run a round: train, evaluate, measure.

    Args:
      prepared: from `prepare`.
      experiments: the same X.
      planned: the round.
      state: after the round before; the clients' states are changed in place.
      servers: X, what `state.server` has of each.
      running: numbers of those that have not stopped.

    Returns:
      (state, servers, number of a running experiment -> its line of metrics.jsonl).
    """
    config, (number, cohort, tuned, waves) = experiments[0].config, planned

    def due(every: int) -> bool:
        return every > 0 and (number % every == 0 or number == config.rounds)

    began = time.perf_counter()
    server, trained, models = run_waves(
        prepared.programs, prepared.mesh, state.server, state.clients, cohort, waves, tuned,
        prepared.keys, keep=due(config.local_eval_every),
    )  # fmt: skip
    losses = None if trained is None else np.asarray(trained.train_loss)
    after = [take_row(server, x) for x in range(len(experiments))]
    training = (time.perf_counter() - began) / len(running)
    past, entries = list(state.past), {}
    for x in running:
        ticks, tests = [time.perf_counter()], prepared.tests[x]
        own = Cohort(cohort.clients[x], cohort.epochs[x])
        evaluation = tests.of_global(after[x]) if due(config.eval_every) else None
        ticks.append(time.perf_counter())
        local: dict[str, float] = {}
        details = None
        if due(config.local_eval_every):
            kept = keep_own(models, x, len(own.clients))
            local, details = tests.of_locals(servers[x], after[x], kept, own.clients)
        arrived = own.clients[own.epochs > 0]
        measured = tests.measure(arrived, evaluation, past[x], details)
        ticks.append(time.perf_counter())
        loss = None if losses is None or not arrived.size else float(losses[x])
        rate = experiments[x].config.learning_rate * experiments[x].config.lr_decay ** (number - 1)
        entry = describe_round(number, loss, evaluation, local, rate, measured)
        entry['clients'] = len(arrived)
        entry['seconds'] = round(training + ticks[2] - ticks[0], 4)
        entry['evaluation_seconds'] = round(ticks[1] - ticks[0], 4)
        entry['local_evaluation_seconds'] = round(ticks[2] - ticks[1], 4)
        entries[x] = entry
        if evaluation is not None:
            past[x] = remember(past[x], evaluation)
    return state._replace(server=server, past=past), after, entries


def finish(
    experiment: Experiment,
    prepared: Prepared,
    metrics: list[dict[str, Any]],
    *,
    shared_by: int = 1,
) -> dict[str, Any]:
    """Summarise a run and draw its accuracy.

    Args:
      experiment: from `set_up`.
      prepared: from `prepare`.
      metrics: one entry a round.
      shared_by: experiments that were trained by one program.

    Returns:
      The summary.
    """
    config, dealt = experiment.config, experiment.dealt
    size = dealt.label_counts.sum(axis=1)
    cohorts = [sample_cohort(config, size, entry['round']) for entry in metrics]
    steps = sum(int(cohort_steps(config, size, cohort).sum()) for cohort in cohorts)
    summary = summarise(config, metrics, prepared.compile_seconds / shared_by, steps)
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
        'experiments': shared_by,
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
