"""Every method with data and settings at the limits of what is valid, against the plain loop.

python -m experiments.stress.numbers --output=experiments/results/nasty_numbers_cpu.json

Each run ends equal to the plain loop, diverges as the plain loop does, or is refused in one line.
The file is written after each case; a later call with it tries what is missing.
"""

import collections
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import jax
from absl import flags

from experiments.benchmarks.measuring import reporting
from experiments.grid.command import select
from jaxfed import methods
from tests import extremes, plain


def faster_compilation() -> None:
    """Halves the time of compiling, without optimizations; call it before JAX is used."""
    jax.config.update('jax_num_cpu_devices', 1)
    jax.config.update('jax_disable_most_optimizations', True)
    os.environ['XLA_FLAGS'] = (
        f'{os.environ.get("XLA_FLAGS", "")} --xla_cpu_use_fusion_emitters=false'
    )


def attempt(method: str, case: str, folder: str) -> dict[str, Any]:
    """The outcome of a case with a method."""
    try:
        outcome = extremes.check(method, case, folder)
    except Exception as error:
        text = str(error).splitlines() or ['']
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f'{Path(where.filename).name}:{where.lineno}'
        return {'kind': 'failed', 'line': f'{type(error).__name__} at {place}: {text[0]}'}
    values = outcome._replace(deviation=float(f'{outcome.deviation:.1e}'))._asdict()
    return {name: value for name, value in values.items() if value != ''}


def summarise(runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """The numbers of outcomes, and the largest deviation."""
    every = [outcome for of_method in runs.values() for outcome in of_method.values()]
    return {
        'runs': len(every),
        **collections.Counter(outcome['kind'] for outcome in every),
        'largest_deviation': max((o.get('deviation', 0.0) for o in every), default=0.0),
        'tolerance': plain.TOLERANCE,
    }


def main(args: flags.FlagValues) -> None:
    """Runs what is missing until the time is over, prints failures and writes the outcomes.

    The exit status is 1 if any run failed.
    """
    faster_compilation()
    with reporting.usage_errors():
        chosen = select('methods', args.methods, methods.METHODS)
        cases = select('cases', args.cases, extremes.CASES)
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    if args.output and Path(args.output).exists():
        runs = json.loads(Path(args.output).read_text())['methods']
    until = time.perf_counter() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder, plain.cheap_runs():
        for case in [name for name in extremes.CASES if name in cases]:
            for method in [name for name in methods.METHODS if name in chosen]:
                if case in runs.get(method, {}) or time.perf_counter() > until:
                    continue
                outcome = runs.setdefault(method, {})[case] = attempt(method, case, folder)
                if outcome['kind'] == 'failed' or args.verbose:
                    reporting.console.print(
                        f'{method}, {case}: {outcome}', soft_wrap=True, markup=False
                    )
            jax.clear_caches()  # the methods of a case share the programs of the plain loop
            report = {'machine': reporting.machine(), **summarise(runs), 'methods': runs}
            reporting.write(report, args.output)
    summary = summarise(runs)
    reporting.console.print(json.dumps(summary, indent=2))
    if summary.get('failed'):
        sys.exit(1)


if __name__ == '__main__':
    flags.DEFINE_list('methods', None, 'Methods, separated by commas [all].')
    flags.DEFINE_list('cases', None, 'Cases of tests/extremes.py, separated by commas [all].')
    flags.DEFINE_float('minutes', 600.0, 'Time after which no further run starts.', 0.0)
    flags.DEFINE_bool('verbose', False, 'Print every outcome.')
    flags.DEFINE_string('output', None, reporting.JSON_FILE)
    reporting.run(main)
