"""The shared parts of all benchmarks: command line, tables, JSON files and pictures."""

import contextlib
import functools
import importlib.util
import json
import platform
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxfed.engine.devices import cores
from jaxfed.internal import command_line
from jaxfed.internal.console import show_error
from jaxfed.internal.machine import processor
from jaxfed.internal.versions import recorded_versions

# Texts of --output.
JSON_FILE = 'File to write the measurements to, as JSON.'
JSON_AND_PICTURE = 'Files to write, without suffix: .json, .png and .svg.'

console = Console(highlight=False)
define_positive = functools.partial(flags.DEFINE_integer, lower_bound=1)


def run(main: Callable[[flags.FlagValues], None]) -> None:
    """Parses the command line and calls `main` with the flags; a UsageError is one line."""

    def start(argv: Sequence[str]) -> None:
        try:
            check(argv)
            command_line.quiet_libraries()
            main(flags.FLAGS)
        except app.UsageError as error:  # absl would print the help of all flags
            show_error(' '.join(str(error).split()))
            raise SystemExit(error.exitcode or 1) from None

    def check(argv: Sequence[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f'Unexpected arguments: {argv[1:]}.')
        for name in ('output', 'figure'):
            path = flags.FLAGS[name].value if name in flags.FLAGS else None
            if path == '':
                raise app.UsageError(f'--{name}= is empty; name a path, or omit the flag.')
            if path and not Path(path).absolute().parent.is_dir():
                raise app.UsageError(f'--{name}={path} is in a folder that does not exist.')

    app.run(start)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a ValueError, of a setting or of a file that is read, into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def check_unchanged(
    output: str | Path, report: Mapping[str, Any], written: Mapping[str, Any]
) -> None:
    """Refuses to continue measurements of another machine or with other settings.

    Raises:
      UsageError: if `machine` or `settings` of the written report lacks a value or has another one.
    """
    new, old = (one.get('machine', {}) | one.get('settings', {}) for one in (report, written))
    changed = [key for key in new if new[key] != old.get(key)]
    if changed:
        raise app.UsageError(
            f'--output={output} holds measurements with other or unknown values of '
            f'{", ".join(changed)}; choose another --output.'
        )


def settings(args: flags.FlagValues, *names: str) -> dict[str, Any]:
    """The values of some flags."""
    return {name: args[name].value for name in names}


def has(module: str) -> bool:
    """Whether a module is installed."""
    return importlib.util.find_spec(module) is not None


def commit_of(checkout: str | Path) -> str:
    """The commit of a Git checkout, or 'unknown'."""
    if not Path(checkout, '.git').exists():  # an unpacked archive may be inside of a checkout
        return 'unknown'
    command = ['git', '-C', str(checkout), 'rev-parse', 'HEAD']
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else 'unknown'


def free_threaded() -> bool:
    """Whether this Python has no global interpreter lock."""
    return bool(sysconfig.get_config_var('Py_GIL_DISABLED'))


def machine() -> dict[str, str | int]:
    """The measured hardware, and the versions of the software."""
    return {
        'cores': cores(),
        'processor': processor(),
        'device': jax.devices()[0].device_kind,
        'devices': len(jax.devices()),
        'python': platform.python_version() + (' free-threaded' if free_threaded() else ''),
        'jaxfed': recorded_versions()['jaxfed'],
        'jax': jax.__version__,
        'flax': version('flax'),
        'torch': version('torch') if has('torch') else 'not installed',
    }


def caption(described: dict[str, str | int]) -> str:
    """The machine on one line."""
    return ', '.join(f'{key} {value}' for key, value in described.items())


def make_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = '',
    left: int = 1,
) -> Table:
    """A table whose first `left` columns are text and whose others are numbers."""
    table = Table(title=title, caption=Text(caption))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i < left, justify='left' if i < left else 'right')
    for row in rows:
        table.add_row(*row)
    return table


def write(
    report: dict[str, Any],
    output: str | None,
    draw: Callable[[dict[str, Any], Path], object] | None = None,
) -> None:
    """Writes a report to the file `output`; with `draw` to `output`.json, and the picture.

    Args:
      report: values of JSON.
      output: of the command line; None writes nothing.
      draw: writes a picture of the report to a path without suffix.
    """
    if not output:
        return
    file = Path(f'{output}.json') if draw else Path(output)
    file.write_text(json.dumps(report, indent=2) + '\n')
    if draw:
        draw(report, Path(output))
    console.print(f'Written to {file}.', soft_wrap=True)


def last_line(file: Path) -> str:
    """The last line of a file that is not empty, or ''."""
    lines = [line.strip() for line in file.read_text(errors='replace').splitlines()]
    return next((line for line in reversed(lines) if line), '')
