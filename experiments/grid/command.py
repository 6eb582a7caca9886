"""The shared parts of the commands that train grids: flags, files and errors."""

import contextlib
import functools
import signal
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from experiments.grid import runner
from jaxfed.config import FIELDS
from jaxfed.internal import command_line, console, files
from jaxfed.internal.include import HELP, check_included, include_first
from jaxfed.internal.signals import Interrupted
from jaxfed.runs import config_flags

# Why tables and figures refuse a flag after --.
ROUNDS = 'is a flag of this command'
VALIDATION = 'holds out training data for evaluation, but the papers report test accuracy'

LEAST = {'rounds': 1, 'seeds': 1, 'together': 0}  # smallest values of flags

Main = Callable[[Sequence[str]], int]


class Help(Exception):
    """The user asked for help; the text is the argument."""


class Arguments(NamedTuple):
    """A parsed command line."""

    values: dict[str, Any]  # flag -> value
    names: list[str]  # words that are no flags
    extra: list[str]  # flags after --

    @property
    def run_flags(self) -> list[str]:
        """The flags of every run."""
        shared = [(name, self.values[name]) for name in ('rounds', 'data_dir')]
        return [f'--{name}={value}' for name, value in shared if value is not None] + self.extra


def parse(
    arguments: Sequence[str], define: Callable[[flags.FlagValues], None], about: str | None
) -> Arguments:
    """Parse a command line: flags and names, then '--' and flags for every run.

    Args:
      arguments: without the program's name.
      define: defines the command's flags.
      about: the command's description, for --help.

    Returns:
      The flags, the names, and the flags after '--'.

    Raises:
      ValueError: for an unknown flag or an invalid value.
      Help: if --help is among the flags.
    """
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    include_first(arguments)
    values = flags.FlagValues()
    define(values)
    if {'--help', '-help', '-h'} & {*arguments[:cut]}:
        raise Help(_help_text(about or '', values))
    try:
        names = values(['', *arguments[:cut]])[1:]
    except flags.Error as error:
        raise ValueError(command_line.what_is_wrong(error, values)) from error
    check_included(values['include'].value)
    for name, least in LEAST.items():
        if (number := values[name].value) is not None and number < least:
            raise ValueError(f'--{name} must be at least {least}, got {number}.')
    extra = list(arguments[cut + 1 :])
    for flag in extra:
        if not flag.startswith('--'):
            raise ValueError(f'{flag} after -- must be a flag, as --NAME=VALUE.')
        name = runner.flag_name(flag)
        if name in values and name not in (*FIELDS, *config_flags.COMMAND_FLAGS):
            raise ValueError(f'{flag} is a flag of this command; move it before --.')
    return Arguments(values.flag_values_dict(), names, extra)


def _help_text(about: str, values: flags.FlagValues) -> str:
    """The description, whose indented paragraphs are commands, and the flags, in 80 columns."""
    paragraphs = [
        text if text.startswith(' ') else textwrap.fill(' '.join(text.split()), 80)
        for text in about.strip().split('\n\n')
    ]
    lines = [
        textwrap.fill(
            f'--{name}: {" ".join(str(values[name].help).split())}', 80, initial_indent='  ',
            subsequent_indent=' ' * 6, break_on_hyphens=False,
        )
        for name in values
    ]  # fmt: skip
    return '\n\n'.join([*paragraphs, '\n'.join(lines)])


def define_shared(
    values: flags.FlagValues, *, output: str, rounds: str, seeds: str, default_seeds: int | None = 1
) -> None:
    """Define the flags that all commands have.

    Args:
      values: receives the flags.
      output: default of --output.
      rounds: whose number of rounds is the default, for --help.
      seeds: what has several seeds, for --help.
      default_seeds: default of --seeds.
    """
    integer = functools.partial(flags.DEFINE_integer, flag_values=values)
    text = functools.partial(flags.DEFINE_string, flag_values=values)
    integer('rounds', None, f'of every run [{rounds}]')
    integer('seeds', default_seeds, f'runs of {seeds}, with seeds from 0')
    text('data_dir', None, 'directory of prepared datasets')
    text('output', output, 'folder of the results')
    text('include', None, HELP)
    integer(
        'together',
        0,
        'the largest number of runs in one program: they end together, so a larger number delays '
        'the first result; 1 trains one after another [8 on a CPU, where more gain little, else '
        '32]',
    )
    flags.DEFINE_bool('dry_run', False, 'show the plan, and stop', flag_values=values)


def define_paper(values: flags.FlagValues) -> None:
    """Define the flags that tables and figures of papers share."""
    flags.DEFINE_list('columns', None, 'names of columns, see --list [all]', flag_values=values)
    flags.DEFINE_list('methods', None, 'names of methods, see --list [all]', flag_values=values)
    flags.DEFINE_bool('list', False, 'list everything, and stop', flag_values=values)
    flags.DEFINE_bool(
        'report_only', False, 'write what is finished, train nothing', flag_values=values
    )


def select(flag: str, names: Sequence[str] | None, known: Iterable[str]) -> set[str]:
    """The known names that a flag selects, whatever their case; all by default.

    Raises:
      ValueError: for an unknown name, or no name.
    """
    by_lower = {name.lower(): name for name in known}
    if names is None:
        return {*by_lower.values()}
    unknown = [name for name in names if name.lower() not in by_lower]
    if unknown or not names:
        raise ValueError(
            f'--{flag} must name some of {", ".join(by_lower.values())}, got '
            f'{", ".join(unknown) or "none"}.'
        )
    return {by_lower[name.lower()] for name in names}


def refuse(extra: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Raise a ValueError for the first flag after -- that has a reason against it, also in a file.

    The reasons are in addition to that of the flags that the grid sets for each run.
    """
    against = {**dict.fromkeys(runner.RESERVED, 'is set for each run by the grid'), **reasons}
    for name, value in config_flags.read_flags(extra).items():
        if name in against:
            raise ValueError(f'--{name}={value} {against[name]}; leave it out after --.')


def check_output(path: str) -> Path:
    """Raise a ValueError unless --output names a folder that is writable or can be created."""
    if not path:
        raise ValueError('--output must name a folder.')
    files.check_writable(Path(path), '--output')
    return Path(path)


def write_all(texts: Mapping[Path, str]) -> None:
    """Write text files, each atomically, and print their paths."""
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, text)
        console.say(f'written: {path}')


def guarded(main: Main) -> Main:
    """Make a command print its errors in one line.

    Args:
      main: the command; it raises ValueError or OSError for invalid input.

    Returns:
      The command; its exit status is that of `main`, 2 for invalid input, 130 or 143 if
      interrupted.
    """

    @functools.wraps(main)
    def run(arguments: Sequence[str]) -> int:
        try:
            return main(arguments)
        except Help as text:
            with contextlib.suppress(BrokenPipeError):  # of --help | head
                print(text)
            console.flush()
            return 0
        except (ValueError, OSError) as error:
            console.show_error(' '.join(str(error).split()))
            return 2
        except KeyboardInterrupt as error:
            console.show_error('interrupted; finished rounds are kept; the same command resumes.')
            return 128 + (error.signal if isinstance(error, Interrupted) else signal.SIGINT)

    return run
