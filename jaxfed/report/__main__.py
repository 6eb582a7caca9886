"""Compare runs: python -m jaxfed.report WORKDIR ... --output=FILE.html [--csv=FILE.csv]."""

import argparse
import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jaxfed.internal import console, files
from jaxfed.recording import run_files
from jaxfed.report import contents, grouping
from jaxfed.report.grouping import Group, group
from jaxfed.report.reading import Run, read_run
from jaxfed.report.render import render


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f'{message}; --help tells what there is.')


def make_parser() -> argparse.ArgumentParser:
    """The flags of this command; a wrong one is a ValueError."""
    parser = _Parser(
        prog='python -m jaxfed.report',
        description='Compare runs on one HTML page, which loads nothing. Runs that differ in '
        'nothing but their seed are one curve with a band of a standard deviation.',
        allow_abbrev=False,
    )
    parser.add_argument('workdirs', nargs='+', type=Path, metavar='WORKDIR')
    parser.add_argument('--output', required=True, metavar='FILE.html', help='the page')
    parser.add_argument('--csv', metavar='FILE.csv', help='results too, a row a run')
    parser.add_argument(
        '--target_accuracy',
        metavar='A',
        help='test accuracy in 0..1 for which to tell the rounds needed [that of each run]',
    )
    return parser


def check_file(flag: str, given: str, suffix: str) -> Path:
    """See that a file can be written.

    Args:
      flag: that names it.
      given: its path.
      suffix: that it must have, so that no record of a run is ever replaced.

    Returns:
      The path.

    Raises:
      ValueError: if it cannot.
    """
    path = Path(given)
    told = f'--{flag}={given}'
    if path.suffix != suffix:
        raise ValueError(f'{told} must end in {suffix}.')
    if path.is_dir():
        raise ValueError(f'{told} is a directory; name a file.')
    if not path.parent.is_dir():
        raise ValueError(f'{told}: there is no directory {path.parent}; make it first.')
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f'{told} cannot be written to; name a file elsewhere.')
    if (path.parent / run_files.CONFIG).exists() and path.name == 'metrics.csv':
        raise ValueError(f'{told} is a record of a run; name another file.')
    return path


def read_runs(workdirs: Sequence[Path]) -> list[Run]:
    """Read work directories.

    Args:
      workdirs: each once.

    Returns:
      The runs, in the same order.

    Raises:
      ValueError: if one is given twice or cannot be read.
    """
    seen: dict[Path, Path] = {}
    for path in workdirs:
        if (same := path.resolve()) in seen:
            raise ValueError(f'{path} and {seen[same]} are the same directory; name it once.')
        seen[same] = path
    return [read_run(path) for path in workdirs]


def table_of_runs(groups: Sequence[Group], target: float | None) -> str:
    """Results as CSV.

    Args:
      groups: of runs.
      target: accuracy whose rounds are told; None for that of each run.

    Returns:
      A row a run.
    """
    columns = 'label,workdir,method,dataset,seed,state,rounds,last_accuracy,best_accuracy'
    columns += ',best_round,rounds_to_target,forgetting,seconds,client_steps_per_second'
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(columns.split(','))
    for each in groups:
        for run in each.runs:
            config = run.config
            row = [each.label, run.path, config['method'], config['dataset'], run.seed]
            row += [run.state, run.rounds, grouping.final(run)]
            row += grouping.best(run) or (None, None)
            row += [grouping.to_target(run, target)]
            row += [next(reversed(run.forgetting.values()), None)]
            row += [contents.seconds(run), contents.of_summary('client_steps_per_second')(run)]
            writer.writerow(row)
    return file.getvalue()


def _target(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        target = float(given)
    except ValueError:
        target = 0.0
    if not 0 < target <= 1:
        raise ValueError(f'--target_accuracy={given} must be a number above 0 and at most 1.')
    return target


def _write(flag: str, path: Path, text: str) -> None:
    try:
        files.write_whole(path, text.encode())
    except OSError as error:
        raise ValueError(f'--{flag}={path} cannot be written: {error}.') from error


def main(arguments: Sequence[str]) -> int:
    """Write the page, and the table where --csv says so.

    Args:
      arguments: without the program's name.

    Returns:
      The exit status: 0, or 2 for bad input or a file that cannot be read or written.
    """
    try:
        given = make_parser().parse_args(arguments)
        page = check_file('output', given.output, '.html')
        table = None if given.csv is None else check_file('csv', given.csv, '.csv')
        target = _target(given.target_accuracy)
        groups = group(read_runs(given.workdirs))
        for run in (run for each in groups for run in each.runs):
            if run.warning:
                console.show_warning(run.warning)
        text = render(groups, target=target)
        _write('output', page, text)
        if table is not None:
            _write('csv', table, table_of_runs(groups, target))
    except (ValueError, OSError) as error:
        console.show_error(' '.join(str(error).split()))
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
