"""Weak scaling: twice the devices train twice the clients; how much longer does a round take?

Each number of devices is a process of its own on as many cores of the CPU, so that a device never
has the cores of others to help. The processes take turns, a round each. More devices than cores
share them: that says nothing of speed, only whether the result is right. Every number of devices
also trains a round on one device, and the parameters after both are compared.

python -m experiments.benchmarks.weak_scaling --output=experiments/results/weak_scaling_cpu
"""

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.benchmarks.machine import machine
from experiments.benchmarks.rounds import images_file, ready
from experiments.benchmarks.workers import process, serve, take_cores
from jaxfed import Config, config
from jaxfed.engine.devices import cores
from jaxfed.engine.stacking import row
from jaxfed.internal import command_line
from jaxfed.internal.files import write_json
from jaxfed.recording.style import COLOURS, DASHES, save, style
from jaxfed.runs.experiment import make_experiment

SHAPE = (32, 32, 3)
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
    """A round with so many devices."""

    devices: int
    cores: int
    client_steps: int
    seconds: list[float]
    work: list[float]  # seconds that all cores worked, which others on the machine do not lengthen
    difference: float  # of parameters, to those trained on one device

    @property
    def median(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.seconds)


def of_devices(job: Job, devices: int, folder: Path) -> tuple[float, int, Callable[[], float]]:
    """Trains a round on some devices and on one, and makes what trains the next ones.

    Args:
      job: what to train.
      devices: how many, of those that JAX has.
      folder: for the images.

    Returns:
      (largest difference of parameters, client-steps of a round, what trains a round and gives its
      seconds).
    """
    clients = devices * job.clients
    path = images_file(
        folder / f'{devices}.npz',
        examples=clients * job.steps * BATCH_SIZE,
        tested=TESTED,
        shape=SHAPE,
    )
    base = Config(
        dataset='npz', npz=str(path), model=job.model, partition='iid', num_clients=clients,
        clients_per_round=clients, local_epochs=1, batch_size=BATCH_SIZE, rounds=job.rounds + 1,
        eval_every=job.rounds + 1, devices=str(devices), lanes=1,
    )  # fmt: skip
    several = ready([make_experiment(base)])
    single = ready([make_experiment(config.dataclasses.replace(base, devices='1'))])
    several.train()
    single.train()
    after = [jax.tree.leaves(row(each.server(), 0).params) for each in (several, single)]
    differences = [np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in zip(*after, strict=True)]
    return float(max(differences)), clients * job.steps, several.train


def train_in_turns(job: Job, devices: int, own_cores: int) -> None:
    """Trains a round whenever it is asked to, and answers with its seconds and its cores' work.

    Args:
      job: what to train.
      devices: how many.
      own_cores: that they have.
    """
    with tempfile.TemporaryDirectory() as folder:
        difference, client_steps, run = of_devices(job, devices, Path(folder))

        def reply(_: Any) -> list[float]:
            began = time.process_time()
            seconds = run()
            return [seconds, time.process_time() - began]

        serve([difference, client_steps, own_cores], reply)


def measure(job: Job, counts: Sequence[int], *, repeats: int) -> list[Timing]:
    """Measures rounds of several numbers of devices, in turns.

    Args:
      job: what to train.
      counts: numbers of devices.
      repeats: measurements of each.

    Returns:
      Their timings, in the same order.
    """
    of_job = [f'--{name}={value}' for name, value in job._asdict().items()]
    with contextlib.ExitStack() as stack:
        # One after another, so that no two compile on the same cores.
        asked = [
            stack.enter_context(process(MODULE, [f'--worker={devices}', *of_job]))
            for devices in track(counts, f'compiling {job.model}', transient=True)
        ]
        timings = []
        for devices, each in zip(counts, asked, strict=True):
            difference, client_steps, own = each.first
            timings.append(Timing(devices, own, client_steps, [], [], difference))
            each.ask(None)
        for _ in track(range(repeats), f'measuring {job.model}', transient=True):
            for timing, each in zip(timings, asked, strict=True):
                seconds, work = each.ask(None)
                timing.seconds.append(seconds)
                timing.work.append(work)
    return timings


def efficiency(timing: Timing, one: Timing) -> tuple[float, float] | None:
    """Time of one device over that of several, of the same repeats.

    Args:
      timing: of several devices.
      one: of one device.

    Returns:
      Medians over the repeats, of the time that passed and of the work of a core; None where
      devices share cores.
    """
    if timing.cores < timing.devices:
        return None
    passed = [a / b for a, b in zip(one.seconds, timing.seconds, strict=True)]
    worked = [a / b * timing.devices for a, b in zip(one.work, timing.work, strict=True)]
    return statistics.median(passed), statistics.median(worked)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws efficiency against devices.

    Args:
      found: what is written as JSON.
      path: of the picture, without suffix.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(6, 4), layout='constrained')
        axes = figure.add_subplot(
            xlabel='devices, each a core', ylabel='%', title='Weak scaling: efficiency of a round'
        )
        ticks: set[int] = set()
        for i, (model, own) in enumerate(found['models'].items()):
            points = [each for each in own if each['efficiency'] is not None]
            devices = [each['devices'] for each in points]
            ticks |= set(devices)
            for j, what in enumerate(('time', 'work')):
                shares = [100 * each['efficiency'][j] for each in points]
                axes.plot(
                    devices,
                    shares,
                    marker='o',
                    color=COLOURS[i],
                    linestyle=DASHES[2 * j],
                    label=f'{model}, by {what}',
                )
        axes.axhline(100, color='0.4', linewidth=0.8, linestyle='--')
        axes.set(xscale='log', ylim=(0, 110))
        axes.set_xticks(sorted(ticks))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.legend()
        save(figure, path)


def main(_: Sequence[str]) -> None:
    """Measures, prints, writes and draws."""
    values = flags.FLAGS
    command_line.quiet_libraries()
    if values.worker:
        job = Job(values.model, values.clients, values.steps, values.rounds)
        train_in_turns(job, values.worker, take_cores(values.worker))
        return
    counts = [int(text) for text in values.counts]
    console = Console(highlight=False)
    models = {}
    for model in values.models:
        job = Job(model, values.clients, values.steps, values.repeats + 2)
        models[model] = measure(job, counts, repeats=values.repeats)
    table = Table(title=f'{values.clients} clients a device, {values.steps} steps of {BATCH_SIZE}')
    names = ('network', 'devices', 'cores', 'ms a round', 'efficiency', 'by work', 'difference')
    for name in names:
        table.add_column(name, justify='right')
    for model, timings in models.items():
        for timing in timings:
            share = efficiency(timing, timings[0])
            table.add_row(
                model, str(timing.devices), str(timing.cores), f'{1e3 * timing.median:.1f}',
                *(f'{100 * each:.0f} %' for each in share or ()), *(() if share else ('-', '-')),
                f'{timing.difference:.1e}',
            )  # fmt: skip
    console.print(table)
    worst = max(timing.difference for timings in models.values() for timing in timings)
    if values.output:
        found = {
            'machine': machine() | {'cores': cores()},
            'settings': {
                'clients_per_device': values.clients, 'steps': values.steps,
                'batch_size': BATCH_SIZE, 'repeats': values.repeats,
            },
            'models': {
                model: [
                    timing._asdict()
                    | {'median_s': timing.median, 'efficiency': efficiency(timing, timings[0])}
                    for timing in timings
                ]
                for model, timings in models.items()
            },
        }  # fmt: skip
        path = Path(values.output)
        write_json(path.with_name(f'{path.name}.json'), found)
        draw(found, path)
    # Written so that NaN fails, too.
    if not worst <= TOLERANCE:
        console.print(f'FAILED: the parameters must not differ by more than {TOLERANCE:g}.')
        sys.exit(1)


if __name__ == '__main__':
    # Here, because tests import this module beside jaxfed's own flags.
    flags.DEFINE_list('models', ['mlp', 'lenet', 'cnn'], 'Networks.')
    flags.DEFINE_list('counts', ['1', '2', '4', '8'], 'Numbers of devices, 1 first.')
    flags.DEFINE_integer('clients', 4, 'Of each device.', lower_bound=1)
    flags.DEFINE_integer('steps', 10, 'Local steps of each client.', lower_bound=1)
    flags.DEFINE_integer('repeats', 7, 'Measurements of each.', lower_bound=1)
    flags.DEFINE_string('output', None, 'Files without suffix: .json, .png and .svg.')
    flags.DEFINE_integer('worker', 0, 'Internal: devices of the process that measures.')
    flags.DEFINE_string('model', 'mlp', 'Internal: its network.')
    flags.DEFINE_integer('rounds', 1, 'Internal: its rounds.')
    app.run(main)
