"""Parts of `accelerator` with whole rounds: loop over clients, runs, sweeps, host, memory."""

import functools
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import reporting
from experiments.benchmarks.accelerator_steps import Cases, repeat_round, same
from experiments.benchmarks.accelerator_work import (
    ROUNDS,
    Row,
    Work,
    device_memory,
    steps_of_next_round,
)
from experiments.benchmarks.plain_loop import (
    PLAIN,
    Optimizer,
    draw_batches,
    make_step,
    train_round,
)
from experiments.benchmarks.programs import network
from experiments.benchmarks.rounds import Trainer
from experiments.benchmarks.timing import interleave, seconds
from jaxfed.data.augment import normalise
from jaxfed.engine import client_states
from jaxfed.engine.devices import replicate, split
from jaxfed.engine.execution import state_rows
from jaxfed.engine.round import RoundInputs
from jaxfed.models import with_precision
from jaxfed.models.ops import LOWERINGS
from jaxfed.recording.entries import describe_round
from jaxfed.runs.experiment import Experiment, client_steps, cohort_of, set_up
from jaxfed.runs.feed import PlannedRound
from jaxfed.runs.simulate import Result, train_experiments
from jaxfed.runs.state import State, unstack
from jaxfed.sweeps.runner import share_images
from jaxfed.sweeps.sweep import expand, parse_grid
from jaxfed.types import PyTree


class PlainTrainer:
    """The rounds of an experiment with FedAvg as a plain loop over clients."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.number = experiment, 0
        config, data = experiment.config, experiment.dealt.dataset
        model = with_precision(network(config.model, convolution=PLAIN), config.precision)
        to_input = functools.partial(normalise, mean=experiment.mean, std=experiment.std)
        optimizer = Optimizer(config.learning_rate, config.momentum, config.weight_decay)
        x, y = jnp.asarray(data.x_train), jnp.asarray(data.y_train)
        self._step = make_step(model, x, y, to_input, optimizer)
        self.params = model.init(jax.random.key(0))

    def train_round(self) -> float:
        """Trains the next round; returns the seconds."""
        self.number += 1
        config, dealt = self.experiment.config, self.experiment.dealt
        cohort = cohort_of(self.experiment, self.number).clients
        weights = (dealt.size[cohort] / dealt.size[cohort].sum()).tolist()

        def train() -> None:
            rng = np.random.default_rng([0, self.number])
            clients = [
                draw_batches(
                    dealt.partition[client], epochs=config.local_epochs,
                    batch_size=config.batch_size, rng=rng,
                )
                for client in cohort
            ]  # fmt: skip
            self.params = train_round(self._step, self.params, clients, weights)

        return seconds(train)


def whole_round(work: Work) -> Cases:
    """A round of FedAvg beside a plain loop over its clients."""

    def measure() -> list[Row]:
        experiment = work.experiment(
            method='fedavg', augment='none', measure='none', alpha=work.sizes.alpha
        )
        shared, loop = Trainer([experiment]), PlainTrainer(experiment)
        runs = {'one program': shared.train_round, 'loop over clients': loop.train_round}
        rounds = work.sizes.rounds
        measured = interleave(runs, rounds)
        steps = sum(
            int(client_steps(experiment, cohort_of(experiment, 2 + i)).sum()) for i in range(rounds)
        )
        medians = {name: statistics.median(values) for name, values in measured.items()}
        return [
            {
                'case': name,
                'steps': steps,
                'round_s': medians[name],
                'ms': 1e3 * sum(values) / steps,
                'times': medians['loop over clients'] / medians[name],
                'measured_s': values,
            }
            for name, values in measured.items()
        ]

    return {'a round': measure}


def run_of_fedlmd(work: Work) -> Cases:
    """A run of FedLMD as users start it, with evaluation, records and checkpoints."""

    def measure() -> list[Row]:
        rounds = work.sizes.run
        result, ticks = run_recorded(work, 'run', rounds)
        compile_s, done = result.summary['compile_seconds'], len(ticks)
        after = result.summary['seconds_total'] - compile_s
        times = [entry['seconds'] for entry in result.metrics]
        return [
            {
                'rounds': done,
                'after_s': after,
                'run_s': after * ROUNDS / done,
                'in_rounds_s': sum(times),
                'evaluation': result.summary['evaluation_share'],
                'compile_s': compile_s,
                'accuracy': result.summary['final_accuracy'],
            }
        ]

    return {'fedlmd': measure}


def run_recorded(work: Work, name: str, rounds: int) -> tuple[Result, list[float]]:
    """Runs FedLMD until the time is over; returns the result and the ends of its rounds."""
    config = work.config(rounds=rounds, workdir=str(work.folder / name))
    experiment, ticks = set_up(config, None, work.dataset), list[float]()
    (result,) = train_experiments(
        [experiment], experiment.workdir, quiet=True,
        watch=lambda x, entry: ticks.append(time.perf_counter()),
        stop=lambda number, metrics, running: running if work.clock.over() else (),
    )  # fmt: skip
    if isinstance(result, Exception):
        raise result
    return result, ticks


def sweeps(work: Work) -> Cases:
    """Rounds of many experiments in one program, beside those of one of them."""
    return {
        f'{reporting.plural(seeds, "seed")} of each point': functools.partial(
            time_sweep, work, seeds
        )
        for seeds in work.sizes.seeds
    }


def time_sweep(work: Work, seeds: int) -> list[Row]:
    """Times training rounds, in turns with those of a single experiment."""
    base = work.config()
    members = expand(base, parse_grid(work.sizes.grid, base), seeds, work.folder / 'sweep')
    experiments = share_images(
        work.experiment(seed=member.seed, hyperparameters=member.config.hyperparameters)
        for member in members
    )
    alone, before = work.fedlmd, device_memory()
    together = Trainer(experiments)

    def time_round(trainer: Trainer) -> float:
        steps = steps_of_next_round(trainer)
        return 1e3 * trainer.train_round() / steps

    programs = {'together': together, 'alone': alone}
    runs = {name: functools.partial(time_round, program) for name, program in programs.items()}
    measured = interleave(runs, work.sizes.rounds)
    alone_ms, shared_ms = (statistics.median(measured[name]) for name in ('alone', 'together'))
    prepared = together.prepared
    return [
        {
            'experiments': len(experiments),
            'lanes': prepared.lanes,
            'ms': shared_ms,
            'alone_ms': alone_ms,
            'times': alone_ms / shared_ms,
            'compile_s': prepared.compile_seconds,
            'measured_ms': measured,
        }
        | memory_of(before, prepared.needed)
    ]


def memory_of(before: dict[str, int], needed: int) -> Row:
    """The estimated memory of a program beside the largest that the device has used since.

    The device reports the largest of the whole process, so a program that needs less than an
    earlier one has no measurement. What was in use before the program is subtracted.
    """
    name, row = 'peak_bytes_in_use', {'estimated_mib': needed / 2**20}
    after = device_memory()
    if after.get(name, 0) > before.get(name, 0):
        used = after[name] - before['bytes_in_use']
        row |= {'used_mib': used / 2**20, 'ratio': needed / used}
    return row


def memory(work: Work) -> Cases:
    """The memory of FedLMD with its settings, and with large batches of many clients."""

    def measure(**changes: Any) -> list[Row]:
        before = device_memory()
        trainer = Trainer([work.experiment(**changes)])
        trainer.run_round()
        return [memory_of(before, trainer.prepared.needed) | {'lanes': trainer.prepared.lanes}]

    return {
        'fedlmd': measure,
        'fedlmd, large': functools.partial(measure, **work.sizes.large),
    }


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
    data = trainer.experiments[0].dealt.dataset
    return replicate((data.x_test, data.y_test), trainer.prepared.mesh)


def planned_rounds(trainer: Trainer, first: int, count: int) -> list[PlannedRound]:
    """Some rounds of a trainer's experiment, independent of its position."""
    prepared = trainer.prepared
    return list(itertools.islice(prepared.feed(prepared.lanes, first), count))


def host(work: Work) -> Cases:
    """The rounds that users run, beside their compiled programs and the steps of the host."""
    return {'rounds': functools.partial(time_host, work, 10 * work.sizes.rounds)}


def time_host(work: Work, count: int) -> list[Row]:
    """Times rounds 2 to `count` + 1: as users run them, their programs alone, and by steps."""
    _, ticks = run_recorded(work, 'host', count + 1)
    count = len(ticks) - 1
    if count < 1:
        raise RuntimeError('the time was over after one round')
    round_s = float(np.diff(ticks).mean())
    trainer, test_set = work.fedlmd, test_set_of(work.fedlmd)
    state, rounds = trainer.state, planned_rounds(trainer, 2, count)
    placed = [place(trainer, state, planned) for planned in rounds]
    programs_s = work.median(lambda: run_programs(trainer, placed, test_set)) / count
    steps = time_host_steps(trainer, 2, count, test_set)
    lines = {
        'round as users run it': round_s,
        'compiled programs alone': programs_s,
        'host': round_s - programs_s,
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
    """The same programs twice from the same state."""

    def repeat() -> list[Row]:
        trainer = work.fedlmd
        state = trainer.state._replace(server=trainer.prepared.server)
        placed = [place(trainer, state, planned) for planned in planned_rounds(trainer, 1, 1)]
        test_set = test_set_of(trainer)
        results = [run_programs(trainer, placed, test_set) for _ in range(2)]
        return [same(*results)]

    rounds = {
        f'equal clients, {name}': functools.partial(repeat_round, work, name) for name in LOWERINGS
    }
    return {'fedlmd with evaluation': repeat, **rounds}
