"""Compare methods over skews and seeds: python -m experiments.benchmark --suite=small.

Every method has the same number of trials, judged on held-out training data. The chosen trial is
trained on all training data and tested, for every seed. The time and memory of what is left
are printed first, from one round of every method on every data set. One data set and skew is
finished after another. Finished runs are skipped, also those of an earlier benchmark.csv whose work
directories are gone, and several processes may work on one suite. Flags after -- apply to every
run; the suite must not set them.
"""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.benchmark.advice import KINDS, put, sections
from experiments.benchmark.page import PAGE, render
from experiments.benchmark.plan import in_words, plan
from experiments.benchmark.ranks import LEAST_BLOCKS, LEAST_METHODS, check_package
from experiments.benchmark.records import as_csv
from experiments.benchmark.results import make_rows
from experiments.benchmark.suite import Suite, names, read_suite, refuse, select, shorten
from experiments.benchmark.work import CSV, Work, begin, check, look, train
from experiments.grid import command, training
from jaxfed.internal import console
from jaxfed.internal.signals import Interrupted
from jaxfed.sweeps.claims import wait_for_lock


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
    flags.DEFINE_list(
        'update',
        [],
        'Markdown files whose sections of this suite, between marks, are replaced by the answer',
        flag_values=values,
    )
    flags.DEFINE_bool(
        'report_only', False, 'write what is finished, train nothing', flag_values=values
    )


@command.guarded
def main(arguments: Sequence[str]) -> int:
    """Run a suite and write its page.

    Args:
      arguments: of the command line, without the program's name.

    Returns:
      The exit status: 0, 1 if some runs failed, 2 for invalid input, 130 if interrupted, 143 if
      terminated.
    """
    parsed = command.parse(arguments, define, __doc__)
    values = parsed.values
    if parsed.names:
        raise ValueError(f'unexpected arguments {" ".join(parsed.names)}; flags begin with --.')
    whole = read_suite(values['suite'])
    command.refuse(parsed.extra, {'rounds': command.ROUNDS})
    refuse(whole, parsed.extra)
    suite = select(
        whole, datasets=values['datasets'], skews=values['skews'], trials=values['methods']
    )
    suite = shorten(suite, seeds=values['seeds'], rounds=values['rounds'])
    updated = [Path(path) for path in values['update']]
    changed = changed_flags(values | {'suite': None, 'include': None}, parsed.extra)
    if updated and changed:
        raise ValueError(
            f'--update writes the answer of the whole suite; omit {shlex.join(changed)}.'
        )
    folder = command.check_output(values['output']) / suite.name
    if suite.left_out:
        begin(whole, folder, parsed.run_flags)  # an error for rows with other settings
    work = begin(suite, folder, parsed.run_flags)
    for path in updated:
        put(dict.fromkeys(KINDS, ''), suite.name, path)  # an error before training
    failed = 0
    if not values['report_only']:
        check_packages(suite)
        training.use_machine()
        check(work)
        console.say(in_words(plan(work)))
        if values['dry_run']:
            return 0
        try:
            work, failed = train(work, together=values['together'])
        except Interrupted:
            write(look(work), [], suite_command(values, parsed.extra))
            raise
    write(work, updated, suite_command(values, parsed.extra))
    return 1 if failed else 0


def check_packages(suite: Suite) -> None:
    """Raise a ValueError if the page will rank methods, but the package for it is not installed."""
    tables = len(suite.datasets) * len(suite.skews)
    if tables >= LEAST_BLOCKS and len(suite.trials) >= LEAST_METHODS:
        check_package()


def suite_command(values: Mapping[str, Any], extra: Sequence[str]) -> str:
    """The command that makes a benchmark."""
    return shlex.join(['python', '-m', 'experiments.benchmark', *changed_flags(values, extra)])


def changed_flags(values: Mapping[str, Any], extra: Sequence[str]) -> list[str]:
    """The flags that are set; the folders of data and results are left out."""
    words = []
    for name in ('suite', 'include', 'datasets', 'skews', 'methods', 'rounds', 'seeds'):
        value = values[name]
        if value is not None:
            words.append(f'--{name}={",".join(value) if isinstance(value, list) else value}')
    kept = [flag for flag in extra if not flag.startswith('--data_dir=')]
    return [*words, *(['--', *kept] if kept else [])]


def write(work: Work, updated: Iterable[Path], made_by: str) -> None:
    """Write the page and the CSV of what is finished, and update Markdown files."""
    if not work.finished:
        console.say('no run is finished.')
        return
    with wait_for_lock(work.output / f'.{CSV}.lock'):
        work = look(work)  # another process may have written rows in the meantime
        tests = work.tests
        trials = {place: work.trials[place] for place in tests}
        rows = [row for row in make_rows(tests, trials, work.finished) if row.runs]
        asked = len(work.trials) * work.suite.seeds
        done = sum(len(row.runs) for row in rows)
        others = 'the same command trains the others, unless another process does'
        console.say(f'{done} of {asked} tests are done{f"; {others}" * (done < asked)}.')
        command.write_all({work.output / CSV: as_csv(work.finished)})  # also if the page fails
        if rows:
            page = render(work.suite, rows, command=made_by, flags=work.flags)
            answer = sections(work.suite, rows)
            texts = {path: put(answer, work.suite.name, path) for path in updated}
            command.write_all({work.output / PAGE: page} | texts)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
