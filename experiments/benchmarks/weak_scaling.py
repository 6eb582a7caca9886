"""Weak scaling: the time of a round if twice the devices train twice the clients.

Each number of devices has a process on as many cores of the CPU, so that no device uses the cores
of another. The processes take turns, a round each. If there are more devices than cores, they share
the cores: this checks the result, but not the speed. Every process also trains a round on one
device and compares the parameters.

python -m experiments.benchmarks.weak_scaling --output=experiments/results/weak_scaling_cpu
"""

import contextlib
import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags
from matplotlib.figure import Figure
from rich.progress import track

from experiments.benchmarks.measuring import reporting, workers
from experiments.benchmarks.measuring.timing import interleave
from experiments.benchmarks.programs.rounds import (
    Trainer,
    check_networks,
    largest_difference,
    write_images,
)
from jaxfed import Config
from jaxfed.engine.stacking import row
from jaxfed.recording.style import COLOURS, DASHES, save, style
from jaxfed.runs.experiment import make_experiment

BATCH_SIZE = 50
TESTED = 1000
TOLERANCE = 1e-4  # of parameters after a round, trained on one device or on several
MODULE = 'experiments.benchmarks.weak_scaling'


class Job(NamedTuple):
    """What every process trains."""

    model: str
    clients: int  # of each device
    steps: int  # local steps of each client
    rounds: int  # at most


class Timing(NamedTuple):
    """Measurements of a number of devices."""

    devices: int
    cores: int
    client_steps: int
    seconds: list[float]
    work: list[float]  # CPU seconds of all cores, which other work on the machine does not lengthen
    difference: float  # of parameters, to those trained on one device


def compile_job(job: Job, devices: int, folder: Path) -> tuple[float, Trainer]:
    """Trains a round on one and on several devices.

    Args:
      job: what to train.
      devices: number of JAX's devices.
      folder: for the images.

    Returns:
      (largest difference of the parameters, the trainer of several devices).
    """
    clients = devices * job.clients
    path = write_images(
        folder / f'{devices}.npz', train=clients * job.steps * BATCH_SIZE, test=TESTED
    )
    base = Config(
        dataset='npz', npz=str(path), model=job.model, partition='iid', num_clients=clients,
        clients_per_round=clients, local_epochs=1, batch_size=BATCH_SIZE, rounds=job.rounds + 1,
        eval_every=job.rounds + 1, devices=str(devices), lanes=1,
    )  # fmt: skip
    several = Trainer([make_experiment(base)])
    single = Trainer([make_experiment(dataclasses.replace(base, devices='1'))])
    params = []
    for trainer in (several, single):
        trainer.train_round()
        params.append(row(trainer.state.server, 0).params)
    return largest_difference(*params), several


def serve(job: Job, devices: int, cores: int) -> None:
    """Trains a round for every request; replies with its wall-clock and CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        difference, trainer = compile_job(job, devices, Path(folder))

        def reply(_: Any) -> list[float]:
            start = time.process_time()
            seconds = trainer.train_round()
            return [seconds, time.process_time() - start]

        workers.serve([difference, devices * job.clients * job.steps, cores], reply)


def measure(job: Job, counts: Sequence[int], *, repeats: int) -> list[Timing]:
    """Measures rounds of several numbers of devices in turns."""
    settings = [f'--{name}={value}' for name, value in job._asdict().items()]
    with contextlib.ExitStack() as stack:
        # One after another, so that no two compile on the same cores.
        started = {
            devices: stack.enter_context(workers.start(MODULE, [f'--worker={devices}', *settings]))
            for devices in track(counts, f'compiling {job.model}', transient=True)
        }
        asks = {devices: functools.partial(w.ask, None) for devices, w in started.items()}
        measured = interleave(asks, repeats, description=f'measuring {job.model}')
    timings = []
    for devices, worker in started.items():
        difference, client_steps, cores = worker.ready
        seconds, work = map(list, zip(*measured[devices], strict=True))
        timings.append(Timing(devices, cores, client_steps, seconds, work, difference))
    return timings


def efficiency(timing: Timing, one: Timing) -> tuple[float, float] | None:
    """Time of one device over that of several in the same turn, the median of all turns.

    Returns:
      By wall-clock time and by CPU time; None if devices share cores.
    """
    if timing.cores < timing.devices:
        return None
    by_time = [a / b for a, b in zip(one.seconds, timing.seconds, strict=True)]
    by_work = [a / b * timing.devices for a, b in zip(one.work, timing.work, strict=True)]
    return statistics.median(by_time), statistics.median(by_work)


def describe(timings: list[Timing]) -> list[dict[str, Any]]:
    """The entries of a network in the file."""
    return [
        timing._asdict()
        | {
            'median_s': statistics.median(timing.seconds),
            'efficiency': efficiency(timing, timings[0]),
        }
        for timing in timings
    ]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws efficiency against devices."""
    with style():
        figure = Figure(figsize=(6, 4), layout='constrained')
        axes = figure.add_subplot(
            xlabel='devices, each a core', ylabel='%', title='Weak scaling: efficiency of a round'
        )
        ticks: set[int] = set()
        for i, (model, entries) in enumerate(report['models'].items()):
            points = [entry for entry in entries if entry['efficiency'] is not None]
            devices = [entry['devices'] for entry in points]
            ticks |= set(devices)
            for j, name in enumerate(('time', 'work')):
                shares = [100 * entry['efficiency'][j] for entry in points]
                label, dashes = f'{model}, by {name}', DASHES[2 * j]
                axes.plot(devices, shares, 'o', linestyle=dashes, color=COLOURS[i], label=label)
        axes.axhline(100, color='0.4', linewidth=0.8, linestyle='--')
        axes.set(xscale='log', ylim=(0, 110))
        axes.set_xticks(sorted(ticks))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.legend()
        save(figure, path)


def show(report: dict[str, Any]) -> None:
    """Prints the table."""
    rows = []
    for model, entries in report['models'].items():
        for entry in entries:
            shares = entry['efficiency']
            rows.append([
                model, str(entry['devices']), str(entry['cores']), f'{1e3 * entry["median_s"]:.1f}',
                *([f'{100 * share:.0f} %' for share in shares] if shares else ['-', '-']),
                f'{entry["difference"]:.1e}',
            ])  # fmt: skip
    settings = report['settings']
    table = reporting.make_table(
        f'{settings["clients_per_device"]} clients a device, {settings["steps"]} steps of '
        f'{BATCH_SIZE}',
        ('network', 'devices', 'cores', 'ms a round', 'efficiency', 'by work', 'difference'),
        rows,
    )
    reporting.console.print(table)


def main(args: flags.FlagValues) -> None:
    """Measures, prints, writes and draws."""
    if args.worker:
        job = Job(args.model, args.clients, args.steps, args.rounds)
        serve(job, args.worker, workers.use_cores(args.worker))
        return
    if args.counts[:1] != ['1'] or not all(text.isdecimal() and int(text) for text in args.counts):
        raise app.UsageError(
            f'--counts={",".join(args.counts)} must be numbers of devices, 1 first, as in 1,2,4.'
        )
    check_networks(args.models)
    counts, models = [int(text) for text in args.counts], {}
    for model in args.models:
        job = Job(model, args.clients, args.steps, args.repeats + 2)
        models[model] = describe(measure(job, counts, repeats=args.repeats))
    report = {
        'machine': reporting.machine(),
        'settings': {'clients_per_device': args.clients, 'batch_size': BATCH_SIZE}
        | reporting.settings(args, 'steps', 'repeats'),
        'models': models,
    }
    show(report)
    reporting.write(report, args.output, draw)
    differences = [entry['difference'] for entries in models.values() for entry in entries]
    # Written so that NaN fails, too.
    if not all(difference <= TOLERANCE for difference in differences):
        reporting.console.print(f'FAILED: the parameters differ by more than {TOLERANCE:g}.')
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_list('models', ['mlp', 'lenet', 'cnn'], 'Networks.')
    flags.DEFINE_list('counts', ['1', '2', '4', '8'], 'Numbers of devices, 1 first.')
    reporting.define_positive('clients', 4, 'Clients of each device.')
    reporting.define_positive('steps', 10, 'Local steps of each client.')
    reporting.define_positive('repeats', 7, 'Measurements of each.')
    flags.DEFINE_string('output', None, reporting.JSON_AND_PICTURE)
    flags.DEFINE_integer('worker', 0, 'Internal: devices of the process that measures.')
    flags.DEFINE_string('model', 'mlp', 'Internal: its network.')
    flags.DEFINE_integer('rounds', 1, 'Internal: its rounds.')
    reporting.run(main)
