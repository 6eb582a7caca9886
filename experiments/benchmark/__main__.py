"""Compare methods over skews and seeds: python -m experiments.benchmark --suite=small.

Every method has the same number of trials, judged on held-out training data. The chosen trial is
trained on all training data and tested once, for every seed. Finished runs are skipped, and several
processes may work on one suite. Flags after -- apply to every run.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments.benchmark.page import render
from experiments.benchmark.results import as_csv, read_rows
from experiments.benchmark.suite import (
    Place,
    Suite,
    choose,
    names,
    places,
    read_suite,
    select,
    test_cells,
    tuning_cells,
)
from experiments.benchmarks import reporting
from experiments.grid import command
from experiments.grid.runner import Cell
from jaxfed.internal import console


def define(values: flags.FlagValues) -> None:
    """Define the flags of this command."""
    command.define_shared(
        values, output='runs/benchmark', rounds="the suite's", seeds='a method',
        default_seeds=None,
    )  # fmt: skip
    flags.DEFINE_string(
        'suite', 'small', f'{", ".join(names())}, or a TOML file', flag_values=values
    )
    for name in ('datasets', 'skews', 'methods'):
        flags.DEFINE_list(name, None, f'some of the {name} of the suite [all]', flag_values=values)
    flags.DEFINE_bool(
        'report_only', False, 'write what is finished, train nothing', flag_values=values
    )


def train(suite: Suite, output: Path, run_flags: Sequence[str], *, together: int) -> int:
    """Tune every method, then test the chosen trials; the number of failed runs."""
    every = places(suite)
    trials = [cell for place in every for cell in tuning_cells(suite, place, output, run_flags)]
    command.say(f'tuning: {console.counted(len(trials), "run")}')
    failed = command.train(trials, output, together=together)
    tests = [cell for cells in chosen_cells(suite, output, run_flags).values() for cell in cells]
    command.say(f'tests: {console.counted(len(tests), "run")}')
    failed |= command.train(tests, output, together=together) if tests else {}
    return len(failed)


def chosen_cells(suite: Suite, output: Path, run_flags: Sequence[str]) -> dict[Place, list[Cell]]:
    """The test runs of the methods whose trials are all finished."""
    found = {}
    for place in places(suite):
        trial = choose(tuning_cells(suite, place, output, run_flags))
        if trial is not None:
            found[place] = test_cells(suite, place, trial, output, run_flags)
    return found


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Run a suite and write its page.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed, 2 for invalid input, 130 if interrupted.
    """
    parsed = command.parse(arguments, define, __doc__)
    values = parsed.values
    if parsed.names:
        raise ValueError(f'unexpected arguments {" ".join(parsed.names)}; flags begin with --.')
    suite = read_suite(values['suite'])
    suite = select(
        suite, datasets=values['datasets'], skews=values['skews'], trials=values['methods']
    )
    if values['seeds'] is not None:
        suite = suite._replace(seeds=values['seeds'])
    output = command.check_output(values['output']) / suite.name
    run_flags = parsed.run_flags
    if values['dry_run']:
        for place in places(suite):
            command.show_cells(tuning_cells(suite, place, output, run_flags))
        return 0
    failed = 0
    if not values['report_only']:
        command.use_machine()
        failed = train(suite, output, run_flags, together=values['together'])
    write(suite, output, run_flags)
    return 1 if failed else 0


def write(suite: Suite, output: Path, run_flags: Sequence[str]) -> None:
    """Write the page and the CSV of what is finished."""
    tests = chosen_cells(suite, output, run_flags)
    tuning = {place: tuning_cells(suite, place, output, run_flags) for place in tests}
    rows = [row for row in read_rows(tests, tuning) if row.runs]
    asked = len(places(suite)) * suite.seeds
    done = sum(len(row.runs) for row in rows)
    command.say(f'{done} of {asked} tests are done.')
    if not rows:
        return
    machine = reporting.machine()
    versions = ', '.join(f'{name} {value}' for name, value in machine.items())
    page = render(suite, rows, asked=asked, versions=f'Written on: {versions}.')
    command.write_all({output / 'benchmark.html': page, output / 'benchmark.csv': as_csv(rows)})


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
