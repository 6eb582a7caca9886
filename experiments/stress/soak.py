"""Whether a long run stays as it began: memory and speed over many rounds of the default job.

python -m experiments.stress.soak --rounds=2000 --output=experiments/results/soak_cpu
"""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from absl import app, flags
from matplotlib.figure import Figure

import jaxfed
from experiments.benchmarks.machine import machine
from jaxfed.internal import command_line
from jaxfed.recording.style import line, save, style
from jaxfed.runs.experiment import set_up
from jaxfed.runs.simulate import train

_ROUNDS = flags.DEFINE_integer('rounds', 2000, 'Rounds of the default job.', lower_bound=100)
_METHOD = flags.DEFINE_string('method', 'fedlmd', 'Its method.')
_OUTPUT = flags.DEFINE_string('output', None, 'Files without suffix: .json, .png and .svg.')

MIB = 2**20


def measure(rounds: int, method: str) -> dict[str, list[float]]:
    """Run the default job and look at the process after every round.

    Args:
      rounds: how many.
      method: the method.

    Returns:
      By round: seconds since the first one, resident memory and memory of live arrays in MiB.
    """
    import jax

    process, began = psutil.Process(), time.perf_counter()
    found: dict[str, list[float]] = {'seconds': [], 'resident': [], 'arrays': []}

    def look(_: dict[str, Any]) -> None:
        found['seconds'].append(round(time.perf_counter() - began, 4))
        found['resident'].append(round(process.memory_info().rss / MIB, 2))
        live = sum(array.nbytes for array in jax.live_arrays())
        found['arrays'].append(round(live / MIB, 3))

    with tempfile.TemporaryDirectory() as folder:
        settings = jaxfed.Config(method=method, rounds=rounds, workdir=f'{folder}/run')
        train(set_up(settings), quiet=True, watch=look)
    return found


def judge(found: dict[str, list[float]]) -> dict[str, float]:
    """Compare the end with the beginning.

    Args:
      found: from `measure`.

    Returns:
      Growth of memory from after the first tenth to the end, as a share of it, and rounds a second
      of the last tenth over those of the tenth after the first.
    """
    n = len(found['seconds'])
    tenth = n // 10

    def growth(name: str) -> float:
        values = np.array(found[name])
        return float(values[-tenth:].max() / values[tenth : 2 * tenth].max() - 1)

    taken = np.diff(found['seconds'])
    return {
        'resident_growth': round(growth('resident'), 4),
        'array_growth': round(growth('arrays'), 4),
        'throughput_ratio': round(
            float(np.median(taken[tenth : 2 * tenth]) / np.median(taken[-tenth:])), 4
        ),
        'rounds_per_second': round(n / found['seconds'][-1], 2),
    }


def main(_: Sequence[str]) -> None:
    """Measure, print and write."""
    command_line.quiet_libraries()
    jaxfed.use_every_core()
    found = measure(_ROUNDS.value, _METHOD.value)
    verdict = judge(found)
    print(json.dumps(verdict, indent=2))
    if not _OUTPUT.value:
        return
    path = Path(_OUTPUT.value)
    every = max(_ROUNDS.value // 200, 1)
    told = {
        'machine': machine(),
        'method': _METHOD.value,
        'rounds': _ROUNDS.value,
        **verdict,
        'every': every,
        **{name: values[::every] for name, values in found.items()},
    }
    path.with_name(f'{path.name}.json').write_text(json.dumps(told) + '\n')
    with style():
        figure = Figure(figsize=(7, 4), layout='constrained')
        axes = figure.add_subplot(xlabel='round', ylabel='MiB', title='Memory of a long run')
        for i, (name, label) in enumerate(
            [('resident', 'resident memory of the process'), ('arrays', 'live arrays')]
        ):
            axes.plot(range(1, _ROUNDS.value + 1), found[name], label=label, **line(i))
        axes.set_ylim(bottom=0)
        figure.legend(loc='outside lower center', ncols=2)
        save(figure, path)


if __name__ == '__main__':
    app.run(main)
