"""Random combinations of method, partition, options and network against the plain loop.

python -m experiments.stress.combinations --output=experiments/results/combinations_cpu.json

Each experiment equals the plain loop over it alone, although several train in one program, or is
refused in one line. The file has the outcomes so far; a later call with it continues.
"""

import collections
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags

from experiments.benchmarks.measuring import reporting
from experiments.stress.numbers import faster_compilation
from tests import combinations, plain


def main(args: flags.FlagValues) -> None:
    """Tries combinations until there are `--count` or the time is over; writes the outcomes.

    The exit status is 1 if any experiment failed.
    """
    faster_compilation()
    jax.config.update('jax_num_cpu_devices', 2)  # the most that a combination uses
    gc.freeze()  # modules: each program collects garbage before it trains
    report: dict[str, Any] = {
        'machine': reporting.machine(), 'seed': args.seed, 'next_seed': args.seed, 'minutes': 0.0,
        'members': args.members, 'largest_deviation': 0.0, 'tolerance': plain.TOLERANCE,
        'outcomes': {}, 'amplified': [], 'failures': [],
    }  # fmt: skip
    if args.output and Path(args.output).exists():
        report = json.loads(Path(args.output).read_text())
    reporting.console.print(f'seed {report["next_seed"]}')

    def failed(group: Any, error: Exception) -> None:
        line = f'{type(error).__name__}: {str(error).splitlines()[:1]}'
        report['failures'].append({'error': line, 'group': group})
        reporting.console.print(f'{line}\n{group}', soft_wrap=True, markup=False)

    def checked(group: Any, outcomes: list[plain.Outcome]) -> None:
        found = [float(f'{o.deviation:.1e}') for o in outcomes if o.kind == 'amplified']
        if found:
            kept = ('method', 'model', 'optimizer', 'batch_size', 'accumulate_steps')
            names = {name: group[0][name] for name in kept}
            report['amplified'].append({**names, 'deviations': found})

    until, earlier = time.perf_counter() + 60 * args.minutes, report['minutes']
    with plain.cheap_runs():
        while sum(report['outcomes'].values()) < args.count and time.perf_counter() < until:
            began, found = time.perf_counter(), collections.Counter(report['outcomes'])
            least = min(args.count, found.total() + args.members * combinations.GROUPS)
            _, largest, report['next_seed'] = combinations.run(
                least, report['next_seed'], members=args.members, until=until, found=found,
                failed=failed, checked=checked,
            )  # fmt: skip
            earlier += (time.perf_counter() - began) / 60
            report |= {
                'outcomes': dict(found),
                'minutes': round(earlier, 1),
                'largest_deviation': max(report['largest_deviation'], float(f'{largest:.1e}')),
            }
            reporting.write(report, args.output)
            jax.clear_caches()
    counts = {name: len(report[name]) for name in ('amplified', 'failures')}
    reporting.console.print(json.dumps(report | counts, indent=2))
    if report['failures']:
        sys.exit(1)


if __name__ == '__main__':
    reporting.define_positive('count', 10_000, 'Experiments to try.')
    reporting.define_positive('members', 8, 'Experiments that share a program.')
    flags.DEFINE_integer('seed', 0, 'Seed of the combinations.')
    flags.DEFINE_float('minutes', 600.0, 'Time after which no further program is compiled.', 0.0)
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
