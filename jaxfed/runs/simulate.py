"""Training of experiments, from their settings to their recorded results."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.engine import distributed
from jaxfed.engine.distributed import liveness
from jaxfed.engine.types import ServerState
from jaxfed.internal import console
from jaxfed.internal.locks import exclusive_lock
from jaxfed.internal.program_cache import kept_programs
from jaxfed.internal.signals import Interrupted, stopping
from jaxfed.methods import METHODS
from jaxfed.methods.method import Method
from jaxfed.recording import display, run_files
from jaxfed.recording.checkpoints import FOLDER, open_checkpoints, wait
from jaxfed.recording.curve import draw_accuracy
from jaxfed.recording.entries import Entry, summarise, title_of
from jaxfed.recording.heatmap import draw_heatmap
from jaxfed.recording.log import Log
from jaxfed.recording.own_code import is_own
from jaxfed.runs.client_models import save_clients
from jaxfed.runs.deal import data_digest
from jaxfed.runs.experiment import Experiment, set_up, total_steps
from jaxfed.runs.feed import TooLarge
from jaxfed.runs.model_file import save_model
from jaxfed.runs.notices import show_notices
from jaxfed.runs.prepare import Prepared, memory_in_words, prepare
from jaxfed.runs.privacy import privacy_after
from jaxfed.runs.rounds import Stop, Watch, never, no_recorder, open_recorder, train_rounds
from jaxfed.runs.shared_program import TRACER_ERROR
from jaxfed.runs.state import State, collect, resume
from jaxfed.runs.tensors import init_digest
from jaxfed.types import Dataset, PyTree

Prepare = Callable[[Sequence[Experiment]], Prepared]


class Diverged(RuntimeError):
    """Training produced values that are not finite."""


class Result(NamedTuple):
    """The result of an experiment."""

    summary: dict[str, Any]  # as in summary.json
    metrics: list[dict[str, Any]]  # one entry a round, as in metrics.jsonl
    params: PyTree  # the final global parameters
    stats: PyTree  # the final batch statistics, () for a network without
    workdir: Path

    def __repr__(self) -> str:
        """One line, without the arrays."""
        accuracy = self.summary.get('final_accuracy')
        return (
            f'Result(workdir={str(self.workdir)!r}, rounds={len(self.metrics)}, '
            f'final_accuracy={accuracy})'
        )


def simulate(
    config: Config,
    *,
    method: Method | None = None,
    dataset: Dataset | Mapping[str, Any] | None = None,
    quiet: bool | None = None,
    compilation_cache: bool = True,
) -> Result:
    """Run an experiment from its settings, with the same records as the command line.

    Args:
      config: the settings.
      method: a method object, used instead of the one that `config.method` names. The records name
        it by `config.method`, which must not be registered, or `own` by default. A run that
        continues must pass the same object: it is not compared.
      dataset: arrays in memory, or splits of Hugging Face's library `datasets`, used instead of the
        data that `config.dataset` names. The records name it `arrays/NAME-DIGEST`, so an
        interrupted run continues with the same arrays only.
      quiet: show no progress; by default progress is shown in a terminal and in a notebook.
      compilation_cache: keep compiled programs in ~/.cache/jaxfed, so that a later run of the same
        program does not compile again.

    Returns:
      Summary, metrics of all rounds, final parameters and batch statistics, work directory.

    Raises:
      ValueError: if a setting or the data is invalid, before anything is written; if another
        process uses the work directory, or its content is damaged.
      TooLarge: if it does not fit into memory; after the first round only if the devices run out of
        memory nevertheless.
      Unavailable: if a chosen tracker cannot be opened, before the first round.
      Diverged: if training produces values that are not finite.
      Interrupted: after the round in which SIGINT or SIGTERM was received.
      OSError: if data cannot be read, or records cannot be written.
    """
    if not isinstance(config, Config):
        raise ValueError(f'config must be a jaxfed.Config, got {type(config).__name__}.')
    quiet = not console.is_watched() if quiet is None else quiet
    with kept_programs(compilation_cache):
        return train(set_up(config, method, dataset), quiet=quiet)


def train(
    experiment: Experiment,
    *,
    quiet: bool = False,
    watch: Callable[[Entry], None] = lambda entry: None,
    command: str = '',
    remote: Prepare | None = None,
) -> Result:
    """Train an experiment to its last round, from its last checkpoint if it was interrupted.

    Args:
      experiment: from `set_up`.
      quiet: show no progress.
      watch: called with the entry of each round after it is recorded.
      command: the command that continues the run, for messages.
      remote: as in `train_experiments`.

    Returns:
      As `simulate`.

    Raises:
      TooLarge: if it does not fit into the devices' memory; after the first round only if they run
        out of memory nevertheless.
      Unavailable: if a chosen tracker cannot be opened, before the first round.
      ValueError: if another process uses the work directory, or its content is damaged.
      Diverged: if training produces values that are not finite; earlier rounds stay recorded.
      Interrupted: after the round in which SIGINT or SIGTERM was received.
      OSError: if records or checkpoints cannot be written; earlier ones stay unchanged.
    """
    advice = f'the same settings with --workdir={experiment.workdir} continue the run.'
    if command:
        advice = f'to continue: {command}'
    liveness.set_advice(
        f'the same command with --workdir={experiment.workdir} continues from the last checkpoint'
    )
    try:
        if distributed.is_leader():
            (result,) = train_experiments(
                [experiment], experiment.workdir, quiet=quiet,
                watch=lambda _, entry: watch(entry), remote=remote,
            )  # fmt: skip
        else:
            result = _train_unrecorded(experiment)
        if isinstance(result, Diverged):
            raise result
    except (Interrupted, Diverged) as error:
        # A process that ends with an error ends the others, so all wait for the last checkpoint.
        distributed.end_with_all()
        if isinstance(error, Interrupted):
            raise Interrupted(f'{error}; {advice}', error.signal) from None
        raise
    if distributed.process_count() > 1:
        written = result.summary, result.metrics
        text = distributed.broadcast_from_leader('summary', lambda: json.dumps(written))
        summary, metrics = json.loads(text)
        result = result._replace(summary=summary, metrics=metrics)
    if distributed.is_leader() and not quiet:
        display.show_summary(result.summary, experiment.workdir)
    return result


def _train_unrecorded(experiment: Experiment) -> Result | Diverged:
    """Train in a process after the first, without summary and metrics."""
    prepared = prepare([experiment])
    done, state = resume([experiment], prepared, None)
    with stopping(lambda text: None) as signal_received:
        state, failures = train_rounds(
            [experiment], prepared, done, state, no_recorder(), signal_received
        )
    if failures:
        return _diverged(experiment, state.recorded[0] + 1, failures[0])
    if experiment.config.save_clients:
        collect(state, [experiment])
    return Result({}, [], state.servers[0].params, state.servers[0].stats, experiment.workdir)


def train_experiments(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    quiet: bool = False,
    watch: Watch = lambda x, entry: None,
    stop: Stop = never,
    late: Callable[[int], None] = lambda signal: None,
    remote: Prepare | None = None,
) -> list[Result | Diverged]:
    """Train X experiments in one program, each recorded in its work directory.

    Interrupted experiments continue from their last checkpoint.

    Args:
      experiments: X that can share a program, see `shared_program`.
      folder: of their checkpoints; the work directory if X = 1.
      quiet: show no progress; several experiments never show any.
      watch: called with the number of an experiment and its entry, after it is recorded.
      stop: called after each round; returns the experiments that stop early.
      late: called with a signal in the last round, which has nothing to stop.
      remote: used instead of `prepare`, if other machines train the clients.

    Returns:
      The result of each, or the error of one that diverged, which does not stop the others.

    Raises:
      TooLarge: as `train`, like all others except `Diverged`.
    """
    began = time.perf_counter()
    with contextlib.ExitStack() as locks:
        for experiment in experiments:
            locks.enter_context(exclusive_lock(experiment.workdir))
        prepared = _prepare(experiments, remote or prepare, quiet=quiet)
        with contextlib.ExitStack() as stack:
            keep = experiments[0].config.keep
            checkpoints = stack.enter_context(open_checkpoints(folder, keep=keep))
            done, state = resume(experiments, prepared, checkpoints)
            recorder = stack.enter_context(
                open_recorder(experiments, checkpoints, done, state, quiet=quiet, watch=watch)
            )
            signal_received = stack.enter_context(stopping(console.say))
            state, failures = train_rounds(
                experiments, prepared, done, state, recorder, signal_received, stop
            )
            wait(checkpoints)  # its failure after the summaries would be that of a finished run
            results = [
                _diverged(experiment, state.recorded[x] + 1, failures[x])
                if x in failures
                else _finish(
                    experiment, prepared, recorder.logs[x], state.servers[x], done, began,
                    shared_by=len(experiments),
                )
                for x, experiment in enumerate(experiments)
            ]  # fmt: skip
            _save_clients(experiments, state, failures)
            # A run with a summary is finished, so the summaries are written last.
            summaries = {
                experiment.workdir: result.summary if isinstance(result, Result) else None
                for experiment, result in zip(experiments, results, strict=True)
            }
            run_files.write_summaries(summaries, folder)
            signal = signal_received()
        # A single experiment that diverged is not finished and keeps its checkpoints.
        if any(summaries.values()) or len(results) > 1:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
    if signal:
        late(signal)
    return results


def _prepare(experiments: Sequence[Experiment], make: Prepare, *, quiet: bool) -> Prepared:
    """Check the work directories, compile the programs and write the partition."""
    known: dict[int, str] = {}
    digests = [
        {'digest': e.dealt.digest, 'data_digest': data_digest(e.dealt.dataset, known)}
        | init_digest(e.config)
        for e in experiments
    ]
    for experiment, own in zip(experiments, digests, strict=True):
        run_files.check_unfinished(experiment.workdir, experiment.dealt.label_counts, own)
    try:
        with console.status('compiling', quiet=quiet):
            prepared = make(experiments)
    except BaseException as error:  # also a Ctrl-C in a notebook
        # The caller tries several again in smaller groups if that can help.
        if len(experiments) == 1 or not isinstance(error, (TooLarge, TRACER_ERROR)):
            for experiment in experiments:
                run_files.discard_workdir(experiment.workdir)
        raise
    for experiment, own in zip(experiments, digests, strict=True):
        workdir, counts = experiment.workdir, experiment.dealt.label_counts
        draw_heatmap(counts, workdir / run_files.PARTITION_MAP, title=title_of(experiment.config))
        dataset = experiment.dealt.dataset
        test_counts = np.bincount(dataset.y_test, minlength=dataset.num_classes)
        run_files.write_partition(workdir / run_files.PARTITION, counts, own, test_counts)
    if not quiet:
        show_notices(experiments)
    console.say(f'memory: {memory_in_words(prepared)}', quiet=quiet)
    return prepared


def _diverged(experiment: Experiment, round_: int, loss: str) -> Diverged:
    """The error of an experiment in which `loss` is not finite."""
    more = f'{experiment.workdir} holds the rounds before. '
    if round_ == 1:
        own = not experiment.parts or any(is_own(METHODS[p.name]) for p in experiment.parts)
        hint = 'In a hook, the gradients of sqrt, norm and log at 0 are not finite. '
        more = hint if own else ''
    return Diverged(
        f'round {round_}: {loss} is not finite; training diverged. Lower --learning_rate or the '
        f'weights of the method. {more}--on_divergence=record ends such a run without an error.'
    )


def _save_clients(
    experiments: Sequence[Experiment], state: State, failures: Collection[int]
) -> None:
    """Write what clients keep, in each work directory of a run with --save_clients."""
    chosen = [x for x, e in enumerate(experiments) if e.config.save_clients and x not in failures]
    if not chosen:
        return
    rows, number = collect(state, experiments).clients, experiments[0].config.num_clients
    for x in chosen:
        states = jax.tree.map(lambda leaf, x=x: leaf[x * number : (x + 1) * number], rows)
        server, experiment = state.servers[x], experiments[x]
        save_clients(
            experiment.workdir, experiment.method, server.params, server.stats, states, number
        )


def _finish(
    experiment: Experiment,
    prepared: Prepared,
    log: Log,
    server: ServerState,
    done: int,
    began: float,
    shared_by: int,
) -> Result:
    """Draw the accuracy, summarise the run and write the model.

    Args:
      experiment: from `set_up`.
      prepared: the program of `shared_by` experiments.
      log: of all rounds.
      server: after the last round.
      done: rounds of earlier processes.
      began: `time.perf_counter()` at the start of this process's training.
      shared_by: experiments in the program.
    """
    config, metrics, workdir = experiment.config, log.metrics, experiment.workdir
    evaluated_on = 'validation' if config.validation else 'test'
    title = f'{config.method}, {title_of(config)}'
    draw_accuracy(metrics, workdir / run_files.CURVE, title=title, evaluated_on=evaluated_on)
    steps = total_steps(experiment, len(metrics))
    compile_seconds = prepared.compile_seconds / shared_by
    summary = summarise(config, experiment.measures.names, metrics, compile_seconds, steps)
    earlier = sum(entry['seconds'] for entry in metrics[:done])
    summary |= privacy_after(config, experiment.method, len(metrics))
    summary |= {
        'cost': experiment.cost._asdict(),
        'evaluated_on': evaluated_on,
        'devices': prepared.mesh.size,
        'lanes': prepared.lanes,
        'experiments': shared_by,
        'memory_bytes': prepared.needed,
        'auxiliary_examples': len(experiment.dealt.auxiliary),
        'resumed_after': done or None,
        'trackers_failed': log.trackers_failed,
        'stopped_early': len(metrics) < config.rounds and not summary['failed'],
        'seconds_total': round(earlier + (time.perf_counter() - began) / shared_by, 2),
    }
    save_model(workdir, experiment, server.params, server.stats)
    return Result(summary, metrics, server.params, server.stats, workdir)
