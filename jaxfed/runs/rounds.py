"""The loop over rounds: every process trains, evaluates and measures; the first process records."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.engine import distributed
from jaxfed.internal import console
from jaxfed.internal.signals import Interrupted
from jaxfed.metrics.history import update_history
from jaxfed.recording import checkpoints
from jaxfed.recording.checkpoints import Checkpoints
from jaxfed.recording.entries import (
    Entry,
    describe_round,
    failed_values,
    local_fields,
    not_finite,
)
from jaxfed.recording.log import Log, open_log
from jaxfed.recording.progress import run_progress
from jaxfed.recording.run_files import METRICS
from jaxfed.runs.evaluate import select_experiment
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.feed import PlannedRound
from jaxfed.runs.learning_rate import learning_rate
from jaxfed.runs.memory import memory_errors
from jaxfed.runs.prepare import Prepared
from jaxfed.runs.privacy import privacy_after
from jaxfed.runs.state import State, collect, recorded_rounds, unstack

# (round, all entries of each experiment, numbers of those that run) -> numbers of those to stop
Stop = Callable[[int, Sequence[list[Entry]], Sequence[int]], Sequence[int]]
Watch = Callable[[int, Entry], None]  # (number of the experiment, its recorded entry)


def never(round_: int, metrics: Sequence[list[Entry]], running: Sequence[int]) -> Sequence[int]:
    """A `Stop` that stops no experiment."""
    return ()


class Recorder(NamedTuple):
    """Records the rounds of X experiments."""

    logs: Sequence[Log]  # X; () in processes after the first
    record: Watch
    save: Callable[[int, State], None]  # (round, state): writes a checkpoint


def no_recorder() -> Recorder:
    """The recorder of processes after the first."""
    return Recorder((), lambda x, entry: None, lambda round_, state: None)


@contextlib.contextmanager
def open_recorder(
    experiments: Sequence[Experiment],
    store: Checkpoints,
    done: int,
    state: State,
    *,
    quiet: bool,
    watch: Watch,
) -> Iterator[Recorder]:
    """Opens the recorder of X experiments that continue after `done` rounds.

    Args:
      experiments: X.
      store: from `open_checkpoints`.
      done: rounds of earlier processes.
      state: after them.
      quiet: show no progress; several experiments never show any.
      watch: called after an entry is recorded.
    """
    with contextlib.ExitStack() as stack:
        logs, begun = [], any((e.workdir / METRICS).exists() for e in experiments)
        for e, recorded in zip(experiments, state.recorded, strict=True):
            rounds = recorded_rounds(done, recorded)
            logs.append(stack.enter_context(open_log(e.config, e.parts, e.workdir, rounds)))
        if begun:
            again = 'there is no checkpoint: starting again at round 1'
            console.say(f'continuing after round {done}' if done else again, quiet=quiet)
        quiet = quiet or len(experiments) > 1
        report = stack.enter_context(run_progress(experiments[0].config.rounds, quiet=quiet))

        def record(x: int, entry: Entry) -> None:
            logs[x].record(entry)
            report(entry)
            watch(x, entry)

        def save(round_: int, state: State) -> None:
            # A checkpoint is valid only with the lines of its rounds.
            for log in logs:
                log.settle()
            checkpoints.save(store, round_, state, [log.digest() for log in logs])

        yield Recorder(logs, record, save)


def train_rounds(
    experiments: Sequence[Experiment],
    prepared: Prepared,
    done: int,
    state: State,
    recorder: Recorder,
    signal_received: Callable[[], int | None],
    stop: Stop = never,
) -> tuple[State, dict[int, str]]:
    """Train X experiments from the round after `done` to the last.

    Args:
      experiments: X.
      prepared: from `prepare`.
      done: rounds of earlier processes.
      state: after them.
      recorder: of this process.
      signal_received: from `stopping`; a signal ends training after the round.
      stop: called after each round.

    Returns:
      (final state, number of a diverged experiment -> the loss that is not finite).
    """
    config = experiments[0].config
    running = state.recorded < 0  # the feed reads it before every round
    failures = dict.fromkeys(np.flatnonzero(state.diverged).tolist(), 'a loss')
    for planned in prepared.feed(prepared.lanes, done + 1, running) if running.any() else ():
        number, numbers = planned.number, np.flatnonzero(running).tolist()
        with memory_errors(experiments[0], prepared.mesh, prepared.lanes):
            state, entries = train_and_evaluate(prepared, experiments, planned, state, numbers)
        for x, entry in entries.items():
            failed = not_finite(entry)
            if failed and config.on_divergence == 'stop':
                failures[x], state.diverged[x], state.recorded[x] = failed, True, number - 1
                continue
            if failed:
                entry |= failed_values(config, experiments[x].measures.names)
                state.recorded[x] = number
            recorder.record(x, entry)
        numbers = np.flatnonzero(state.recorded < 0).tolist()
        for x in stop(number, [log.metrics for log in recorder.logs], numbers):
            state.recorded[x] = number
        running[:] = state.recorded < 0
        if not running.any() or number == config.rounds:
            break
        signal = distributed.any_signal(signal_received())
        if signal or (config.checkpoint_every and number % config.checkpoint_every == 0):
            recorder.save(number, collect(state, experiments))
        if signal:
            raise Interrupted(f'stopped after round {number}', signal)
    return state, failures


def train_and_evaluate(
    prepared: Prepared,
    experiments: Sequence[Experiment],
    planned: PlannedRound,
    state: State,
    running: Sequence[int],
) -> tuple[State, dict[int, Entry]]:
    """Run a round of X experiments: train, evaluate, measure.

    Args:
      prepared: from `prepare`.
      experiments: X.
      planned: the round.
      state: before the round; the clients' states are changed in place.
      running: numbers of the experiments that run.

    Returns:
      (state, number of a running experiment -> its entry).
    """
    config, number, cohort = experiments[0].config, planned.number, planned.cohort
    local_due = is_due(config, config.local_eval_every, number)
    began = time.perf_counter()
    server, trained, models = prepared.run(state.server, state.clients, planned, local_due)
    servers, past, entries = unstack(server, len(experiments)), list(state.past), {}
    # Queued before the first result is read, so that an accelerator does not wait for the host.
    due = running if is_due(config, config.eval_every, number) else ()
    evaluations = {x: prepared.evaluators[x].evaluate_global(servers[x]) for x in due}
    losses = None if trained is None else np.asarray(trained.train_loss)
    seconds = (time.perf_counter() - began) / len(running)
    for x in running:
        evaluator, clients = prepared.evaluators[x], cohort.clients[x]
        own, arrived = experiments[x], clients[cohort.epochs[x] > 0]
        accuracies: dict[str, float | None] = dict.fromkeys(local_fields(own.config))
        ticks, local = [time.perf_counter()], None
        evaluation = jax.device_get(evaluations.get(x))
        ticks.append(time.perf_counter())
        if local_due:
            selected = select_experiment(models, x, len(clients))
            found, local = evaluator.evaluate_locals(
                state.servers[x], servers[x], selected, clients
            )
            accuracies |= found
        measured = evaluator.measure(arrived, evaluation, past[x], local)
        ticks.append(time.perf_counter())
        with_examples = own.dealt.size[arrived].any()
        loss = float(losses[x]) if losses is not None and with_examples else None
        rate = learning_rate(own.config, number)
        entries[x] = describe_round(number, loss, evaluation, rate, accuracies, measured) | {
            'clients': len(arrived),
            'seconds': round(seconds + ticks[2] - ticks[0], 4),
            'evaluation_seconds': round(ticks[1] - ticks[0], 4),
            'local_evaluation_seconds': round(ticks[2] - ticks[1], 4),
        }
        if spent := privacy_after(own.config, own.method, number):
            entries[x]['epsilon'] = spent['epsilon']
        if evaluation is not None:
            past[x] = update_history(past[x], evaluation)
    return state._replace(server=server, past=past, servers=servers), entries


def is_due(config: Config, every: int, number: int) -> bool:
    """Whether an event is due that happens every few rounds and in the last; 0 for never."""
    return every > 0 and (number % every == 0 or number == config.rounds)
