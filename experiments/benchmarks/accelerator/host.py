"""Parts of `accelerator` with the programs of a round alone: profile, host's share, determinism."""

import functools
import hashlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from experiments.benchmarks.accelerator.rounds import run_recorded
from experiments.benchmarks.accelerator.steps import Cases, repeat_round, same
from experiments.benchmarks.accelerator.work import Row, Work, steps_of_round
from experiments.benchmarks.measuring import compiled
from experiments.benchmarks.measuring.profiling import kernel_name, trace
from experiments.benchmarks.measuring.timing import interleave, seconds
from experiments.benchmarks.programs.rounds import Trainer
from jaxfed.engine import client_states
from jaxfed.engine.devices import replicate, split
from jaxfed.engine.execution import state_rows
from jaxfed.engine.types import RoundInputs
from jaxfed.models.ops import LOWERINGS
from jaxfed.recording.entries import describe_round
from jaxfed.runs.evaluate import place_test_sets
from jaxfed.runs.feed import PlannedRound
from jaxfed.runs.state import State, unstack
from jaxfed.types import PyTree


class Placed(NamedTuple):
    """The arguments of a round's program on the device."""

    inputs: RoundInputs
    states: PyTree
    schedule: Any


def place(trainer: Trainer, state: State, planned: PlannedRound) -> Placed:
    """Moves the inputs of a round with one wave to the device."""
    prepared, ((plan, data),) = trainer.prepared, tuple(planned.waves)
    tuned = jax.tree.map(lambda number: np.asarray(number, np.float32), planned.tuned)
    cohort, tuned = replicate((planned.cohort, tuned), prepared.mesh)
    rows = state_rows(planned.cohort, plan.slot, data.size.shape[1])
    states = client_states.load_rows(state.clients, rows, plan.used, prepared.mesh)
    inputs = RoundInputs(state.server, cohort, tuned, prepared.keys, data)
    return Placed(inputs, states, split(plan, prepared.mesh))


def run_programs(trainer: Trainer, placed: Sequence[Placed], test_set: Any) -> PyTree:
    """Runs the compiled programs of rounds back to back, and waits for the last."""
    prepared = trainer.prepared
    server, results = placed[0].inputs.server, []
    for inputs, states, plan in placed:
        inputs = inputs._replace(server=server)
        trained = prepared.programs.train(inputs, states, plan)
        server, metrics = prepared.programs.merge(inputs, trained.sums)
        (one,) = unstack(server, 1)
        tested = prepared.evaluation.global_model((one.params, one.stats), *test_set)
        results.append((metrics, tested))
    return jax.block_until_ready((server, results))


def test_set_of(trainer: Trainer) -> Any:
    """The test images and labels on the device."""
    return place_test_sets(trainer.experiments, trainer.prepared.mesh)[0]


def planned_rounds(trainer: Trainer, first: int, count: int) -> list[PlannedRound]:
    """Some rounds of a trainer's experiment, independent of its position."""
    prepared = trainer.prepared
    return list(itertools.islice(prepared.feed(prepared.lanes, first), count))


def profile(work: Work) -> Cases:
    """The operations of FedLMD's training that take longest."""
    return {'training': functools.partial(profile_training, work, 15)}


def profile_training(work: Work, most: int) -> list[Row]:
    """Traces the training program in round 2; `most` operations have a row."""
    trainer, number = work.fedlmd, 2
    program: Any = trainer.prepared.programs.train
    placed = place(trainer, trainer.state, *planned_rounds(trainer, number, 1))

    def run() -> None:
        jax.block_until_ready(program(*placed))

    run()
    times, elapsed = trace(run)
    sources = {one.name: one.source for one in compiled.instructions(program.as_text())}
    sources |= {kernel_name(name): source for name, source in sources.items()}
    largest = sorted(times, key=lambda name: -times[name])
    lines = {compiled.label(name, sources.get(name, '')): times[name] for name in largest[:most]}
    lines['all others'] = sum(times[name] for name in largest[most:])
    lines['all operations'] = sum(times.values())
    lines['the program by the clock'] = elapsed
    steps = steps_of_round(trainer, number)
    return [
        {'case': name, 'ms': nanoseconds / 1e6 / steps, 'share': nanoseconds / elapsed}
        for name, nanoseconds in lines.items()
    ]


def host(work: Work) -> Cases:
    """The rounds that users run, beside their compiled programs and the steps of the host."""
    return {'rounds': functools.partial(time_host, work, 10)}


def time_host(work: Work, count: int) -> list[Row]:
    """Times rounds 2 to `count` + 1 in turns: as users run them, their programs, and by steps."""
    trainer, test_set, numbers = work.fedlmd, test_set_of(work.fedlmd), itertools.count()
    state, rounds = trainer.state, planned_rounds(trainer, 2, count)
    placed = [place(trainer, state, planned) for planned in rounds]

    def time_run() -> list[float]:
        _, ticks = run_recorded(work, f'host{next(numbers)}', count + 1)
        if len(ticks) < 2:
            raise RuntimeError('the time was over after one round')
        return np.diff(ticks, axis=0).mean(axis=0).tolist()

    runs: dict[str, Callable[[], Any]] = {
        'run': time_run,
        'programs': lambda: seconds(lambda: run_programs(trainer, placed, test_set)) / count,
        'steps': lambda: time_host_steps(trainer, 2, count, test_set),
    }
    measured = interleave(runs, work.sizes.turns)
    round_s, thread_s = map(statistics.median, zip(*measured['run'], strict=True))
    programs_s = statistics.median(measured['programs'])
    steps = {
        name: statistics.median(turn[name] for turn in measured['steps'])
        for name in measured['steps'][0]
    }
    lines = {
        'round as users run it': round_s,
        'compiled programs alone': programs_s,
        'host': round_s - programs_s,
        'processor time of the calling thread': thread_s,
        **steps,
        'records, checkpoints and the rest': round_s - sum(steps.values()),
    }
    return [
        {'case': name, 'ms': 1e3 * value, 'share': value / round_s} for name, value in lines.items()
    ]


def time_host_steps(trainer: Trainer, first: int, count: int, test_set: Any) -> dict[str, float]:
    """Mean seconds of each step of a round, in order; each step waits for its results."""
    prepared, (experiment,) = trainer.prepared, trainer.experiments
    totals, state = dict[str, float](), trainer.state
    last = time.perf_counter()

    def lap(name: str, *results: PyTree) -> None:
        nonlocal last
        jax.block_until_ready(results)
        now = time.perf_counter()
        totals[name] = totals.get(name, 0.0) + (now - last) / count
        last = now

    for planned in itertools.islice(prepared.feed(prepared.lanes, first), count):
        waves = tuple(planned.waves)
        lap('schedule')
        placed = place(trainer, state, planned._replace(waves=iter(waves)))
        lap('transfers to the device', placed)
        trained = prepared.programs.train(*placed)
        lap('train', trained)
        ((plan, data),) = waves
        rows = state_rows(planned.cohort, plan.slot, data.size.shape[1])
        client_states.store_rows(state.clients, rows, plan.used, trained.states, prepared.mesh)
        lap("clients' states to the host")
        server, metrics = prepared.programs.merge(placed.inputs, trained.sums)
        lap('merge', server)
        loss = float(np.asarray(metrics.train_loss)[0])
        lap('read the loss')
        (one,) = unstack(server, 1)
        lap('copy the model', one)
        tested = prepared.evaluation.global_model((one.params, one.stats), *test_set)
        lap('evaluate', tested)
        read = jax.device_get(tested)
        lap('read the evaluation')
        measured = prepared.evaluators[0].measure(
            planned.cohort.clients[0], read, state.past[0], None
        )
        describe_round(planned.number, loss, read, experiment.config.learning_rate, {}, measured)
        lap('measures')
        state = state._replace(server=server)
    return totals


def determinism(work: Work) -> Cases:
    """The same programs twice from the same state, and runs that are compiled anew."""

    def repeat() -> list[Row]:
        trainer = work.fedlmd
        state = trainer.state._replace(server=trainer.prepared.server)
        placed = [place(trainer, state, planned) for planned in planned_rounds(trainer, 1, 1)]
        test_set = test_set_of(trainer)
        results = [run_programs(trainer, placed, test_set) for _ in range(2)]
        return [same(*results)]

    rounds = {
        f'same program: equal clients, {name}': functools.partial(repeat_round, work, name)
        for name in LOWERINGS
    }
    return {
        'same program: fedlmd with evaluation': repeat,
        'compiled twice: runs of fedlmd': functools.partial(compare_runs, work),
        **rounds,
    }


def compare_runs(work: Work) -> list[Row]:
    """Compares the final parameters of two runs, each of which compiles all its programs."""
    first, second = (run_anew(work, name) for name in ('first', 'second'))
    arrays = b''.join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(first))
    return [same(first, second) | {'digest': hashlib.sha256(arrays).hexdigest()[:12]}]


def run_anew(work: Work, name: str) -> PyTree:
    """The parameters after a run that finds no compiled program in memory or on disk."""
    settings: Any = jax.config
    cache = settings.jax_compilation_cache_dir
    jax.clear_caches()
    jax.config.update('jax_compilation_cache_dir', None)
    compilation_cache.reset_cache()  # JAX reads the setting only once
    try:
        result, ticks = run_recorded(work, name, work.sizes.twice)
    finally:
        jax.config.update('jax_compilation_cache_dir', cache)
        compilation_cache.reset_cache()
    if len(ticks) < work.sizes.twice:
        raise RuntimeError('the time was over before the last round')
    return result.params
