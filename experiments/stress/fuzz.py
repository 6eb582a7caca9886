"""Bad input by the ten thousand: what the fuzz tests try a few hundred times.

    python -m experiments.stress.fuzz --inputs=100000 --output=experiments/results/fuzz_cpu.json

The inputs, and what is expected of each, are those of `tests/fuzzing.py`: it is taken, or told in
an error for the user. Whatever else happens is a failure; it is counted and the first of its kind
is kept.
"""

import argparse
import json
import logging
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from experiments.benchmarks.machine import machine
from experiments.grid import command
from jaxfed.internal import files
from tests import fuzzing

_BATCH = 1000  # inputs that hypothesis keeps in mind at once


def many(name: str, inputs: int, first_seed: int) -> dict[str, Any]:
    """Give a target many inputs.

    Args:
      name: of the target.
      inputs: how many, about.
      first_seed: of the first thousand of them.

    Returns:
      Counts: inputs, those taken and told, failures by kind; seconds in all and of the slowest.
    """
    began = time.monotonic()
    fuzzing.outcomes.clear()
    kinds: dict[str, dict[str, Any]] = {}
    done, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        strategy, check = fuzzing.TARGETS[name].make(Path(folder))

        def attempt(value: Any) -> None:
            nonlocal done, slowest
            began = time.monotonic()
            try:
                check(value)
            except Exception as error:
                count(kinds, error, value)
            done, slowest = done + 1, max(slowest, time.monotonic() - began)

        for batch in range(-(-inputs // _BATCH)):
            run(attempt, strategy, min(_BATCH, inputs - batch * _BATCH), first_seed + batch)
    return {
        'target': name,
        'inputs': done,
        'taken': fuzzing.outcomes['taken'],
        'told': fuzzing.outcomes['told'],
        'failures': sum(kind['times'] for kind in kinds.values()),
        'kinds': list(kinds.values()),
        'seconds': round(time.monotonic() - began),
        'slowest_seconds': round(slowest, 2),
    }


def run(attempt: Callable[[Any], None], strategy: Any, inputs: int, seed_: int) -> None:
    """Call a function with values of a strategy."""
    quick = settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(seed_)(quick(given(strategy)(lambda value: attempt(value))))()


def count(kinds: dict[str, dict[str, Any]], error: Exception, value: Any) -> None:
    """Note a failure under the place that it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = f'{type(error).__name__}: {str(error)[:200]}'
    where = f'{Path(last.filename).name}:{last.lineno}'
    kind = kinds.setdefault(
        f'{type(error).__name__} {where}',
        {'what': what, 'where': where, 'times': 0, 'first': repr(value)[:2000]},
    )
    kind['times'] += 1


def main(arguments: Sequence[str]) -> int:
    """Try, print and write.

    Args:
      arguments: without the program's name.

    Returns:
      The exit status: 0, 1 if there was a failure, 2 for bad input.
    """
    return command.guarded(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog='python -m experiments.stress.fuzz', allow_abbrev=False)
    parser.add_argument('--inputs', type=int, default=10_000, help='in all')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--output', type=Path, help='JSON file')
    asked = parser.parse_args(arguments)
    if asked.inputs < 1:
        raise ValueError(f'--inputs={asked.inputs} must be at least 1.')
    if asked.output and not asked.output.parent.is_dir():
        raise ValueError(f'--output={asked.output}: there is no directory for it.')
    logging.disable(logging.ERROR)  # damaged checkpoints are told by warnings
    shares = {name: target.examples for name, target in fuzzing.TARGETS.items()}
    found = []
    try:
        for name, share in shares.items():
            inputs = max(asked.inputs * share // sum(shares.values()), 1)
            found.append(many(name, inputs, asked.seed))
            print(json.dumps(found[-1], ensure_ascii=True), flush=True)
    finally:
        logging.disable(logging.NOTSET)
    sums = {key: sum(each[key] for each in found) for key in ('inputs', 'failures', 'seconds')}
    versions = files.versions(('hypothesis', 'numpy', 'orbax-checkpoint', 'pillow', 'safetensors'))
    told = {'machine': machine(), 'versions': versions, 'seed': asked.seed, **sums}
    print(json.dumps(sums))
    if asked.output:
        files.write_json(asked.output, told | {'targets': found})
    return 1 if sums['failures'] else 0


if __name__ == '__main__':
    command.run(main)
