"""What the commands of this folder share: their own flags, further flags for runs, errors."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from absl import flags
from rich.console import Console

from experiments.grid import runner
from experiments.grid.runner import Cell
from jaxfed.engine.devices import keep_compiled_programs, use_every_core
from jaxfed.internal import command_line, console, files
from jaxfed.internal.signals import Interrupted

# Why a flag has no place after --, in tables and figures.
ROUNDS = 'is a flag of this command'
VALIDATION = 'holds training data out to evaluate on, but the papers tell test accuracy'


class Help(Exception):
    """Help was asked for."""


def parse(
    arguments: Sequence[str], define: Callable[[flags.FlagValues], None], about: str
) -> tuple[flags.FlagValues, list[str], list[str]]:
    """Read a command line: flags and names, then '--' and flags that every run gets.

    Args:
      arguments: without the program's name.
      define: defines the command's flags.
      about: what the command does, for --help.

    Returns:
      The flags, the names, and the flags of the runs.

    Raises:
      ValueError: for an unknown flag or a value that does not do.
      Help: with the text to print.
    """
    cut = arguments.index('--') if '--' in arguments else len(arguments)
    values = flags.FlagValues()
    define(values)
    if any(argument in ('--help', '-help', '-h') for argument in arguments[:cut]):
        texts = [f'  --{name}: {values[name].help}' for name in values]
        raise Help('\n'.join([about, '', *texts]))
    try:
        names = values(['', *arguments[:cut]])[1:]
    except flags.Error as error:
        raise ValueError(str(error)) from error
    further = list(arguments[cut + 1 :])
    for flag in further:
        if not flag.startswith('--'):
            raise ValueError(f'{flag} after -- must be a flag, as --NAME=VALUE.')
    return values, names, further


def refuse(further: Sequence[str], reasons: Mapping[str, str]) -> None:
    """See that flags after -- leave alone what a command needs as it is.

    Args:
      further: flags of every run.
      reasons: name of a flag -> why it has no place there.

    Raises:
      ValueError: for the first that has none.
    """
    for flag in further:
        name = flag.lstrip('-').partition('=')[0]
        if name in reasons:
            raise ValueError(f'--{name} {reasons[name]}; leave {flag} out after --.')


def check_output(path: str | None) -> Path:
    """See that a folder can be written to.

    Args:
      path: of --output.

    Returns:
      The folder, which need not exist.

    Raises:
      ValueError: if it cannot.
    """
    if not path:
        raise ValueError(f'--output={path} must name a folder.')
    files.check_writable(Path(path), '--output')
    return Path(path)


def make_output(output: Path) -> None:
    """Make the folder of --output, once everything else is checked.

    Args:
      output: the folder.

    Raises:
      ValueError: if it cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f'--output={output} cannot be made: {error}.') from error


def write(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Args:
      path: the file; its folder is made.
      text: what it holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, text)


def use_machine() -> None:
    """Use all cores, and keep compiled programs for the next start."""
    command_line.quiet_libraries()
    with contextlib.suppress(RuntimeError):  # who has used JAX already has chosen its devices
        use_every_core()
    if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
        keep_compiled_programs()


def define_together(into: flags.FlagValues) -> None:
    """Define --together.

    Args:
      into: where to.
    """
    flags.DEFINE_integer(
        'together',
        0,
        'most runs in a program, of those that can share one: they end together, so more of them '
        'take longer until the first result; 1 for one after another [8 on a CPU, where there is '
        'little to gain beyond compiling once and evening out clients of unequal sizes, else 32]',
        lower_bound=0,
        flag_values=into,
    )


def train(
    cells: Sequence[Cell], output: Path, *, together: int, rungs: Sequence[int] = ()
) -> dict[str, str]:
    """Check all runs of a grid, and then run those that are not done.

    Args:
      cells: the runs.
      output: folder of all of them; made once they are checked.
      together: see `grid.run_cells`.
      rungs: see there.

    Returns:
      What could not be run, name -> reason.

    Raises:
      ValueError: for settings, data or folders that do not do, before the first run.
      OSError: if data cannot be read.
    """
    with console.status('checking', quiet=False):
        runner.check(cells)
    make_output(output)
    return runner.run_cells(cells, together=together, rungs=rungs)


def write_all(texts: Mapping[Path, str], terminal: Console) -> None:
    """Write text files, each whole or not at all, and say where they are.

    Args:
      texts: path -> what the file holds.
      terminal: where to say it.
    """
    for path, text in texts.items():
        write(path, text)
        terminal.print(f'written: {path}', soft_wrap=True)


def guarded(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and tell its errors in one line.

    Args:
      main: the command; it raises ValueError or OSError for bad input.
      arguments: without the program's name.

    Returns:
      The exit status: that of the command, 2 for bad input, 130 or 143 if interrupted.
    """
    try:
        return main(arguments)
    except Help as help_:
        print(help_)
        return 0
    except (ValueError, OSError) as error:
        console.show_error(' '.join(str(error).split()))
        return 2
    except KeyboardInterrupt as error:
        console.show_error('interrupted; what is done is kept, and the same command goes on.')
        return 128 + (error.signal if isinstance(error, Interrupted) else signal.SIGINT)


def run(main: Callable[[Sequence[str]], int]) -> None:
    """Run `main` on the command line and end the process with its status."""
    sys.exit(main(sys.argv[1:]))
