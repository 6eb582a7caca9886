"""Peak memory against the estimate, and a process that calls `jaxfed.simulate` a hundred times.

python -m experiments.stress.resources --output=experiments/results/resources_cpu.json

Memory: three networks, each without and with client states and with local evaluation, on one CPU
device. The resident peak of the rounds (VmHWM of Linux), minus the resident memory before the first
round, plus the arrays that are held then, against the estimate that jaxfed prints. Each job runs
twice, in fresh processes: the second reads the compiled programs from the cache, because memory
that the compiler has released would be used again.

Calls: descriptors, threads, live arrays and resident memory after calls of `jaxfed.simulate`.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint  # noqa: F401 - its modules do not belong to the memory of training
import psutil
from absl import flags

import jaxfed
from experiments.benchmarks.measuring import reporting
from jaxfed.internal.program_cache import kept_programs
from jaxfed.runs.experiment import Experiment, set_up
from jaxfed.runs.prepare import Prepared, prepare
from jaxfed.runs.simulate import train

MIB = 2**20
GROWTH = 0.01  # of the memory in the second half of the calls
LIMIT = 0.2  # of the difference from the estimate
NETWORKS: dict[str, dict[str, Any]] = {
    'cnn': {'lanes': 12, 'batch_size': 100},
    'resnet8': {'lanes': 6, 'batch_size': 100},
    'vgg11': {'lanes': 4, 'batch_size': 50},
}
KINDS: dict[str, dict[str, Any]] = {
    'stateless': {'method': 'fedavg'},
    'stateful': {'method': 'scaffold'},
    'local evaluation': {'method': 'fedavg', 'local_eval_every': 1},
}
CLIENTS: dict[str, Any] = {'num_clients': 24, 'clients_per_round': 12}
_EXAMPLES = 2400
_TINY: dict[str, Any] = {
    'model': 'mlp', 'num_clients': 4, 'clients_per_round': 2, 'local_epochs': 1, 'rounds': 2,
    'partition': 'iid',
}  # fmt: skip


def run_job(settings: dict[str, Any]) -> dict[str, float]:
    """Trains on random images; the estimated and the measured memory in MiB."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (_EXAMPLES, 32, 32, 3), np.uint8)
    y = np.arange(_EXAMPLES, dtype=np.int32) % 10
    data = jaxfed.Dataset('random', x, y, x[:500], y[:500], 10)
    before: list[float] = []

    def measured(experiments: Sequence[Experiment]) -> Prepared:
        prepared = prepare(experiments)

        def run(*arguments: Any) -> Any:
            if not before:
                held = sum(array.nbytes for array in jax.live_arrays()) / MIB
                before.append(memory_of('VmRSS') - held)
                Path('/proc/self/clear_refs').write_text('5')  # the peak begins here
            return prepared.run(*arguments)

        return prepared._replace(run=run)

    with tempfile.TemporaryDirectory() as folder, kept_programs(True):
        config = jaxfed.Config(
            partition='iid', local_epochs=1, rounds=3, devices='1', workdir=f'{folder}/run',
            checkpoint_every=1, **CLIENTS, **settings,
        )  # fmt: skip
        result = train(set_up(config, None, data), quiet=True, remote=measured)
    estimate = result.summary['memory_bytes'] / MIB
    return {'estimate': estimate, 'measured': memory_of('VmHWM') - before[0]}


def memory_of(name: str) -> float:
    """A number of this process in /proc/self/status, in MiB."""
    lines = Path('/proc/self/status').read_text().splitlines()
    (size,) = (int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
    return size


def run_calls(number: int) -> list[dict[str, float]]:
    """Calls `jaxfed.simulate`; what the process holds after ten of them, or a few more."""
    process, held = psutil.Process(), []
    with tempfile.TemporaryDirectory() as folder:
        for call in range(1, number + 1):
            config = jaxfed.Config(seed=call, workdir=f'{folder}/{call}', **_TINY)
            jaxfed.simulate(config, quiet=True)
            if call % (number // 10) == 0:
                numbers = {
                    'call': call,
                    'descriptors': process.num_fds(),
                    'threads': process.num_threads(),
                    'arrays': len(jax.live_arrays()),
                    'resident': round(process.memory_info().rss / MIB, 1),
                }
                held.append(numbers)
    return held


def in_process(task: str, argument: Any, environment: dict[str, str]) -> Any:
    """The result of a function of this module in a fresh process."""
    code = (
        'import json, sys; from experiments.stress import resources; '
        f'print(json.dumps(resources.{task}(json.loads(sys.argv[1]))))'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, json.dumps(argument)], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f'{task}({argument}): {done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def measure_memory(network: str, kind: str, environment: dict[str, str]) -> dict[str, Any]:
    """Estimated and measured memory of a job, and their relative difference."""
    settings = {'model': network, **NETWORKS[network], **KINDS[kind]}
    in_process('run_job', settings, environment)  # compiles
    found = in_process('run_job', settings, environment)
    return {
        'network': network,
        'kind': kind,
        'estimate_mib': round(found['estimate']),
        'measured_mib': round(found['measured']),
        'difference': round(found['estimate'] / found['measured'] - 1, 3),
    }


def growth(held: Sequence[dict[str, float]]) -> dict[str, float]:
    """What the second half of the calls added."""
    middle, last = held[len(held) // 2 - 1], held[-1]
    return {name: round(last[name] - middle[name], 1) for name in last if name != 'call'}


def main(args: flags.FlagValues) -> None:
    """Measures, prints and writes."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, 'tmp')
        temporary.mkdir()
        environment = {'JAXFED_CACHE_DIR': f'{folder}/cache', 'TMPDIR': str(temporary)}
        for network, kind in itertools.product(NETWORKS, KINDS):
            rows.append(measure_memory(network, kind, environment))
            reporting.console.print(rows[-1])
        held = in_process('run_calls', args.calls, environment)
        left = [path.name for path in temporary.iterdir()]
    grown = growth(held)
    reporting.console.print(grown, left)
    report = {
        'machine': reporting.machine(),
        'memory': rows,
        'calls': held,
        'growth_in_second_half': grown,
        'temporary_files_left': left,
    }
    reporting.write(report, args.output)
    resident = grown.pop('resident') / held[-1]['resident']
    wrong = any(abs(row['difference']) > LIMIT for row in rows)
    if wrong or left or resident > GROWTH or max(grown.values()) > 0:
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_integer('calls', 100, 'Calls of jaxfed.simulate.', lower_bound=10)
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
