"""Parts of `accelerator` with whole rounds: loop over clients, runs, sweeps, memory."""

import functools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.accelerator.steps import Cases
from experiments.benchmarks.accelerator.work import (
    PRODUCTS,
    ROUNDS,
    Row,
    Work,
    device_memory,
    next_round,
    steps_of_round,
)
from experiments.benchmarks.measuring.timing import interleave, seconds
from experiments.benchmarks.programs.local_steps import network
from experiments.benchmarks.programs.plain_loop import (
    PLAIN,
    Optimizer,
    draw_batches,
    make_step,
    train_round,
)
from experiments.benchmarks.programs.rounds import Trainer
from jaxfed.data.augment import normalise
from jaxfed.internal import console
from jaxfed.models import Precision, with_precision
from jaxfed.runs.experiment import Experiment, cohort_of, set_up
from jaxfed.runs.simulate import Result, train_experiments
from jaxfed.sweeps.grid import parse_grid
from jaxfed.sweeps.runner import share_images
from jaxfed.sweeps.sweep import expand


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
        steps = sum(steps_of_round(shared, 2 + i) for i in range(rounds))
        medians = {name: statistics.median(values) for name, values in measured.items()}
        return [
            {
                'case': name,
                'steps': steps,
                'round_s': medians[name],
                'ms': 1e3 * sum(values) / steps,
                'times': statistics.median(np.divide(measured['loop over clients'], values)),
                'measured_s': values,
            }
            for name, values in measured.items()
        ]

    return {'a round': measure}


def runs_of_fedlmd(work: Work) -> Cases:
    """Runs of FedLMD as users start them, with evaluation, records and checkpoints."""

    def measure(precision: Precision) -> list[Row]:
        rounds = work.sizes.run
        result, ticks = run_recorded(work, f'run_{precision}', rounds, precision=precision)
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

    return {f'fedlmd, {name}': functools.partial(measure, name) for name in PRODUCTS}


def run_recorded(
    work: Work, name: str, rounds: int, **changes: Any
) -> tuple[Result, list[tuple[float, float]]]:
    """Runs FedLMD with changed settings until the time is over.

    Returns:
      (result, seconds of the clock and CPU seconds of the thread at the end of each round).
    """
    config = work.config(rounds=rounds, workdir=str(work.folder / name), **changes)
    experiment, ticks = set_up(config, None, work.dataset), list[tuple[float, float]]()
    train = functools.partial(
        train_experiments, [experiment], experiment.workdir, quiet=True,
        watch=lambda x, entry: ticks.append((time.perf_counter(), time.thread_time())),
        stop=lambda number, metrics, running: running if work.clock.over() else (),
    )  # fmt: skip
    # In the main thread a signal would wait for the end of the round.
    with ThreadPoolExecutor(1) as thread:
        (result,) = thread.submit(train).result()
    if isinstance(result, Exception):
        raise result
    return result, ticks


def sweeps(work: Work) -> Cases:
    """Rounds of many experiments in one program, beside those of one of them."""
    return {
        f'{console.counted(seeds, "seed")} of each point': functools.partial(
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
        steps = steps_of_round(trainer, next_round(trainer))
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
    """The memory of FedLMD with its settings."""
    return {'fedlmd': functools.partial(measure_memory, work)}


def large_memory(work: Work) -> Cases:
    """The memory of FedLMD with large batches of many clients."""
    return {'fedlmd, large': functools.partial(measure_memory, work, **work.sizes.large)}


def measure_memory(work: Work, **changes: Any) -> list[Row]:
    """Compiles and runs a round of FedLMD with other settings."""
    name, before = 'peak_bytes_in_use', device_memory()
    trainer = Trainer([work.experiment(**changes)])
    after = device_memory()
    trainer.run_round()
    row = memory_of(before, trainer.prepared.needed) | {'lanes': trainer.prepared.lanes}
    if name in after:
        row['compiling_mib'] = (after[name] - before['bytes_in_use']) / 2**20
    return [row]
