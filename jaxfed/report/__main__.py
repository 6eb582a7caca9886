"""Compare runs: python -m jaxfed.report WORKDIR ... --output=FILE.html [--csv=FILE.csv].

--latex=FILE.tex, --latex_by_data=FILE.tex and --figure=FILE.pdf write tables and curves for a
paper.
"""

import glob
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxfed.internal import console, files
from jaxfed.internal.command_line import Parser
from jaxfed.internal.csv_text import csv_text
from jaxfed.internal.include import HELP, include
from jaxfed.recording import run_files, trackers
from jaxfed.recording.style import FORMATS
from jaxfed.report import paper, tables
from jaxfed.report.comparison import SCORES, compare
from jaxfed.report.grouping import RunGroup, changed_data, group
from jaxfed.report.reading import RecordedRun, read_run
from jaxfed.report.render import render

_COLUMNS = (  # of --csv
    'label workdir method dataset seed state rounds last_accuracy best_accuracy best_round '
    'last10_accuracy moving_accuracy best_moving_accuracy personal_accuracy rounds_to_target '
    'forgetting seconds client_steps_per_second'
)
# Flag -> suffixes of its file.
SUFFIXES = {
    'figure': tuple(FORMATS),
    'output': ('.html',),
    'csv': ('.csv',),
    'latex': ('.tex',),
    'latex_by_data': ('.tex',),
}


def make_parser() -> Parser:
    """Return the parser of the flags, which raises a ValueError if one is invalid."""
    parser = Parser(
        prog='python -m jaxfed.report',
        description='Compare runs on one HTML page without external resources. Runs that differ '
        'only in their seeds are one curve with a band of a standard deviation.',
        allow_abbrev=False,
    )
    parser.add_argument(
        'workdirs',
        nargs='+',
        type=Path,
        metavar='WORKDIR',
        help='a run, a sweep, or a folder that has runs at any depth',
    )
    parser.add_argument('--output', metavar='FILE.html', help='the page')
    parser.add_argument('--csv', metavar='FILE.csv', help='a table of the results, a row a run')
    parser.add_argument('--latex', metavar='FILE.tex', help='the results as a table in LaTeX')
    parser.add_argument(
        '--latex_by_data',
        metavar='FILE.tex',
        help='the accuracy of --score in LaTeX, a column for each data set and partition',
    )
    parser.add_argument(
        '--figure', metavar='FILE.pdf', help='test accuracy by round as .pdf, .svg or .png'
    )
    parser.add_argument(
        '--target_accuracy',
        type=float,
        metavar='A',
        help='test accuracy in 0..1 for the rounds to target [that of the runs, if equal]',
    )
    parser.add_argument(
        '--baseline',
        metavar='METHOD',
        help='method, or label on the page, that the others are compared with [fedavg if any]',
    )
    parser.add_argument('--include', metavar='FILE.py', help=HELP)
    parser.add_argument(
        '--score',
        choices=SCORES,
        default='final',
        help='accuracy of a run that is compared, and of --latex_by_data [final]',
    )
    return parser


def check_file(flag: str, name: str | None) -> Path | None:
    """Raise a ValueError if a file cannot be written or is a record of a run; return its path."""
    if name is None:
        return None
    path, setting, suffixes = Path(name), f'--{flag}={name}', SUFFIXES[flag]
    if path.suffix not in suffixes:
        raise ValueError(f'--{flag} must end in {" or ".join(suffixes)}, got {name}.')
    if path.is_dir():
        raise ValueError(f'{setting} is a directory; name a file.')
    if not path.parent.is_dir():
        raise ValueError(f'{setting}: there is no directory {path.parent}; create it first.')
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f'{setting} cannot be written; name a file in another directory.')
    folder = path.parent
    records = trackers.CSV, run_files.CURVE, run_files.PARTITION_MAP
    of_run = (folder / run_files.CONFIG).exists() and path.name in records
    if of_run or ((folder / run_files.CLAIMS).exists() and path.name == run_files.TABLE):
        raise ValueError(f'{setting} is a record of a run or sweep; name another file.')
    if flag == 'csv' and not _is_replaceable(path):
        raise ValueError(
            f'{setting} is not a table of this report; name another file, or remove it.'
        )
    return path


def _is_replaceable(path: Path) -> bool:
    """Whether a CSV file is absent, empty or a table of a report, not the record of a benchmark."""
    try:
        with path.open('rb') as file:
            first = file.readline()
    except FileNotFoundError:
        return True
    # An earlier version had other columns after these.
    return not first or first.startswith(b'label,workdir,')


def find_workdirs(folder: Path) -> list[Path]:
    """Return the work directories in a folder, at any depth, also the folder itself."""
    # Unlike Path.rglob, this follows links to folders.
    pattern = f'**/{run_files.CONFIG}'
    found = glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)
    paths = [(folder / path).parent for path in found]
    if (folder / run_files.CONFIG).exists():  # other programs, too, write files of this name
        paths = [p for p in paths if p == folder or (p / run_files.METRICS).exists()]
    # A link beside a run names no other run; the name of the run replaces that of the link.
    named = {p.resolve(): p for p in sorted(paths, key=Path.is_symlink, reverse=True)}
    return sorted(named.values()) or [folder]


def read_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """Read runs and sweeps; raise a ValueError if a run is repeated or invalid."""
    workdirs = [path for folder in folders for path in find_workdirs(folder)]
    seen: dict[Path, Path] = {}
    for path in workdirs:
        if (other := seen.setdefault(path.resolve(), path)) is not path:
            if path == other:
                raise ValueError(f'{path} is in two of the named folders; name one of them.')
            raise ValueError(f'{path} and {other} are the same directory; name it once.')
    return [read_run(path) for path in workdirs]


def table_of_runs(groups: Sequence[RunGroup], target: float | None) -> str:
    """Format results as CSV, a row for each run; arguments as of `render`."""
    target = tables.common(tables.targets(groups, target))
    rows: list[list[Any]] = [_COLUMNS.split()]
    for label, runs in groups:
        for run in runs:
            row = [label, run.path, run.config['method'], run.config['dataset'], run.seed]
            row += [run.state, run.rounds, run.final_accuracy(), run.best_accuracy()]
            row += [run.best_round(), run.last10_accuracy(), run.moving_accuracy()]
            row += [run.best_moving_accuracy(), run.personal_accuracy()]
            row.append(None if target is None else run.rounds_to(target))
            row += [run.final_forgetting(), run.seconds(), run.total('client_steps_per_second')]
            rows.append(row)
    return csv_text(rows)


def main(arguments: Sequence[str]) -> int:
    """Write the files of --output, --csv, --latex, --latex_by_data and --figure.

    Args:
      arguments: the arguments without the program's name.

    Returns:
      The exit status: 0, or 2 for invalid input or a file that cannot be read or written.
    """
    try:
        flags = make_parser().parse_args(arguments)
        include(flags.include)
        paths = {flag: check_file(flag, getattr(flags, flag)) for flag in SUFFIXES}
        if not any(paths.values()):
            raise ValueError(
                'name a file to write: --output=FILE.html, --csv=FILE.csv, --latex=FILE.tex, '
                '--latex_by_data=FILE.tex or --figure=FILE.pdf.'
            )
        first, second = paths['latex'], paths['latex_by_data']
        if first and second and first.resolve() == second.resolve():
            raise ValueError(
                f'--latex and --latex_by_data name the same file {flags.latex}; name two.'
            )
        target = flags.target_accuracy
        if target is not None and not 0 < target <= 1:
            raise ValueError(f'--target_accuracy must be above 0 and at most 1, got {target:g}.')
        runs = read_runs(flags.workdirs)
        groups = group(runs)
        warnings = [*(run.warning for run in runs if run.warning), *changed_data(runs)]
        for warning in warnings:
            console.show_warning(warning)
        page = ''
        if paths['output']:
            page = render(
                groups, target=target, baseline=flags.baseline, score=flags.score, warnings=warnings
            )
        else:  # refuses the same before the first file; the pictures of a page take seconds
            compare(groups, baseline=flags.baseline, score=flags.score)
        writers: dict[str, Callable[[Path], None]] = {
            'figure': lambda path: paper.draw(groups, path),
            'output': lambda path: files.write_atomic(path, page),
            'csv': lambda path: files.write_atomic(path, table_of_runs(groups, target)),
            'latex': lambda path: files.write_atomic(path, paper.latex_table(groups, target)),
            'latex_by_data': lambda path: files.write_atomic(
                path, paper.latex_crossing(groups, flags.score)
            ),
        }
        for flag, path in ((flag, path) for flag, path in paths.items() if path):
            try:
                writers[flag](path)
            except OSError as error:
                raise ValueError(f'--{flag}={path} cannot be written: {error}.') from error
            console.say(f'{path}: {console.counted(len(runs), "run")}')
    except (ValueError, OSError) as error:
        console.show_error(' '.join(str(error).split()))
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
