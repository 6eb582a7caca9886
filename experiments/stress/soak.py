r"""Memory and speed over many rounds of a job: both must stay constant.

python -m experiments.stress.soak --rounds=2000 --output=experiments/results/soak_cpu
python -m experiments.stress.soak --job=tiny --rounds=20000 --method=fedavg \
    --output=experiments/results/soak_tiny_cpu

The tiny job trains one client for one step a round, so that writing the records takes a large share
of its time. It must reach `TINY_RATE`, which needs a machine without other work.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
from absl import flags
from matplotlib.figure import Figure

import jaxfed
from experiments.benchmarks.measuring import reporting
from jaxfed.recording.style import line, save, style
from jaxfed.runs.experiment import set_up
from jaxfed.runs.simulate import train

MIB = 2**20
# From the second tenth of the rounds to the last:
GROWTH = 0.05  # of the memory
SLOWEST = 0.8  # speed by the processor's time, which other work disturbs by caches only
TINY_RATE = 5000 / 60  # rounds a second
JOBS: dict[str, dict[str, Any]] = {
    'default': {},
    'tiny': {
        'model': 'mlp', 'num_clients': 100, 'clients_per_round': 1, 'local_epochs': 1,
        'batch_size': 15, 'partition': 'iid', 'devices': '1', 'lanes': 1, 'eval_every': 10,
        'learning_rate': 0.001,
    },
}  # fmt: skip


def measure(rounds: int, method: str, job: str = 'default') -> dict[str, list[float]]:
    """Runs a job of `JOBS`.

    Returns:
      For each round: seconds and processor seconds since the start, resident memory of the process
      and memory of live arrays in MiB.
    """
    process, start = psutil.Process(), time.perf_counter()
    series: dict[str, list[float]] = {
        'seconds': [], 'cpu_seconds': [], 'resident': [], 'arrays': [],
    }  # fmt: skip

    def watch(_: dict[str, Any]) -> None:
        series['seconds'].append(round(time.perf_counter() - start, 4))
        series['cpu_seconds'].append(round(time.process_time(), 4))
        series['resident'].append(round(process.memory_info().rss / MIB, 2))
        live = sum(array.nbytes for array in jax.live_arrays())
        series['arrays'].append(round(live / MIB, 3))

    with tempfile.TemporaryDirectory() as folder:
        config = jaxfed.Config(method=method, rounds=rounds, workdir=f'{folder}/run', **JOBS[job])
        with reporting.usage_errors():
            experiment = set_up(config)
        train(experiment, quiet=True, watch=watch)
    return series


def compare(series: dict[str, list[float]]) -> dict[str, float]:
    """Compares the end with the start.

    Returns:
      Growth of memory from the second tenth to the last, as a share; rounds a second, and a second
      of the processor, of the last tenth over those of the second; rounds a second in all. The
      processor's time does not count other work of the machine.
    """
    n = len(series['seconds'])
    second, last = slice(n // 10, 2 * (n // 10)), slice(-(n // 10), None)

    def growth(name: str) -> float:
        values = np.array(series[name])
        return round(float(values[last].max() / values[second].max() - 1), 4)

    def speed(name: str) -> float:
        each = np.diff(series[name])
        return round(float(np.median(each[second]) / np.median(each[last])), 4)

    return {
        'resident_growth': growth('resident'),
        'array_growth': growth('arrays'),
        'throughput_ratio': speed('seconds'),
        'cpu_throughput_ratio': speed('cpu_seconds'),
        'rounds_per_second': round(n / series['seconds'][-1], 2),
    }


def draw(series: dict[str, list[float]], path: Path) -> None:
    """Draws memory by round."""
    with style():
        figure = Figure(figsize=(7, 4), layout='constrained')
        axes = figure.add_subplot(xlabel='round', ylabel='MiB', title='Memory of a long run')
        labels = {'resident': 'resident memory of the process', 'arrays': 'live arrays'}
        for i, (name, label) in enumerate(labels.items()):
            rounds = range(1, len(series[name]) + 1)
            axes.plot(rounds, series[name], label=label, **line(i))
        axes.set_ylim(bottom=0)
        figure.legend(loc='outside lower center', ncols=2)
        save(figure, path)


def main(args: flags.FlagValues) -> None:
    """Measures, prints, writes and draws."""
    jaxfed.use_every_core()
    series = measure(args.rounds, args.method, args.job)
    comparison = compare(series)
    print(json.dumps(comparison, indent=2))
    every = max(args.rounds // 200, 1)
    report = {
        'machine': reporting.machine(),
        'job': args.job,
        'method': args.method,
        'rounds': args.rounds,
        **comparison,
        'every': every,
        **{name: values[::every] for name, values in series.items()},
    }
    reporting.write(report, args.output, lambda _, path: draw(series, path))
    grown = max(comparison['resident_growth'], comparison['array_growth'])
    slow = args.job == 'tiny' and comparison['rounds_per_second'] < TINY_RATE
    if grown > GROWTH or comparison['cpu_throughput_ratio'] < SLOWEST or slow:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('rounds', 2000, 'Rounds of the job.', lower_bound=100)
    flags.DEFINE_string('method', 'fedlmd', 'Method of the job.')
    flags.DEFINE_enum('job', 'default', list(JOBS), 'The job.')
    flags.DEFINE_string('output', None, reporting.JSON_AND_PICTURE)
    reporting.run(main)
