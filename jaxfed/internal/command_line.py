"""What --help and --helpfull print, flags by purpose, and what is told of flags that do not do."""

import difflib
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import app, flags
from absl import logging as absl_logging

_WIDTH = 80


class HelpRow(NamedTuple):
    """A flag as --help shows it."""

    name: str
    text: str  # up to its first ';', what follows is for --helpfull
    default: Any = None  # shown in brackets, unless it is None or the text has some
    choices: Sequence[str] = ()


class _HelpFlag(flags.BooleanFlag):
    """A flag that prints something and ends the program with exit status 0."""

    def __init__(self, name: str, text: str, show: Callable[[], None], short: str | None = None):
        # absl's own flags of these names end with status 1.
        super().__init__(name, False, text, short_name=short, allow_override=True)
        self._show = show

    def parse(self, arg: Any) -> None:
        """Prints, if the flag is given."""
        if self._parse(arg):
            self._show()
            sys.exit(0)


def define_help(groups: Mapping[str, Sequence[HelpRow]], known: Sequence[str]) -> None:
    """Define --help, -?, --helpshort and --helpfull in the place of absl's.

    Args:
      groups: what --help shows, by purpose.
      known: names of all flags that jaxfed defines; what the program itself defines besides is
        shown in a group of its own.
    """
    app.define_help_flags()

    def brief() -> None:
        of_program = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
        own = [HelpRow(f.name, f.help or '', f.default) for f in of_program if f.name not in known]
        print(short_help({**groups, 'this program': own}, sys.modules['__main__'].__doc__))

    def full() -> None:
        app.usage(writeto_stdout=True)

    for flag in (
        _HelpFlag('help', 'show the flags by purpose', brief, short='?'),
        _HelpFlag('helpshort', 'the same as --help', brief),
        _HelpFlag('helpfull', 'show all flags, also the hyper-parameters of all methods', full),
    ):
        flags.DEFINE_flag(flag)


def short_help(groups: Mapping[str, Sequence[HelpRow]], title: str | None) -> str:
    """The text of --help.

    Args:
      groups: flags by purpose; a group without any is left out.
      title: what the program is.

    Returns:
      Lines of at most 80 characters.
    """
    lines = [(title or f'usage: {sys.argv[0]} [flags]').strip().splitlines()[0]]
    column = 3 + max(len(f'--{row.name}') for rows in groups.values() for row in rows)
    for group, rows in groups.items():
        if rows:
            lines += [f'{group}:', *(line for row in rows for line in _lines(row, column))]
    lines += [
        '',
        '--method=list shows every method with its hyper-parameters and its paper.',
        "--helpfull shows all flags, the methods' hyper-parameters with them, in full.",
        '--flagfile=FILE reads flags from a file. Bool flags: --remat, or --noremat.',
    ]
    return '\n'.join(lines)


def _lines(row: HelpRow, column: int) -> list[str]:
    """A flag and what it does, in as few lines of 80 characters as it takes."""
    text, told = row.text.split(';')[0], re.search(r'\[.*\]', row.text)
    if '[' not in text and (told or row.default is not None):
        text += f' {told[0]}' if told else f' [{row.default}]'
    choices = '|'.join(row.choices)
    room = _WIDTH - column
    wrapped = textwrap.wrap(f'{choices}: {text}', room) if choices else []
    if choices and len(wrapped) > 1:
        wrapped = [*textwrap.wrap(text, room), *textwrap.wrap(', '.join(row.choices), room)]
    wrapped = wrapped or textwrap.wrap(text, room) or ['']
    head = f'  --{row.name}'.ljust(column)
    return [f'{head if i == 0 else " " * column}{line}' for i, line in enumerate(wrapped)]


_KINDS = {'int': 'an integer', 'float': 'a number', 'bool': 'True or False'}


def what_is_wrong(error: Exception, values: flags.FlagValues) -> str:
    """What absl could not read, and what would do, in a line.

    Args:
      error: absl's, or of a file of flags.
      values: the flags there are.

    Returns:
      A sentence or two.
    """
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        names = [known for known in values if '.' in name or '.' not in known]
        return f'--{name} is no flag;{_nearest(name, names, "--")} --help shows the flags.'
    if isinstance(error, UnicodeDecodeError):
        return f'a file given as --flagfile is no text ({error}).'
    text = ' '.join(str(error).removeprefix('ERROR:: ').split())
    given = text.removeprefix('flag --')
    name = given.partition('=')[0]
    if not isinstance(error, flags.IllegalFlagValueError) or name not in values:
        return f'{text.rstrip(".")}.'
    # What absl says of a value ends with what its parser says.
    reason = ' '.join(str(error.__context__).split())
    told, flag = f'--{given.removesuffix(f": {reason}")}', values[name]
    if isinstance(flag.parser, flags.EnumParser):
        choices = flag.parser.enum_values
        near = _nearest(told.partition('=')[2], choices, f'--{name}=')
        return f'{told} must be one of {", ".join(choices)}{f";{near}" if near else "."}'
    kind = _KINDS.get(flag.flag_type())
    return f'{told} must be {kind}.' if kind else f'{told}: {reason}.'


def _nearest(given: str, names: Sequence[str], mark: str) -> str:
    """A question for the nearest of some names, nothing if none is near."""
    near = difflib.get_close_matches(given, names)
    return f' did you mean {" or ".join(mark + name for name in near)}?' if near else ''


def quiet_libraries() -> None:
    """Show what jaxfed logs, and of libraries only errors, unless --verbosity says otherwise.

    What they tell of missing TPUs, font caches and OpenCV is nothing to the user.
    """
    if not flags.FLAGS['verbosity'].present:
        absl_logging.set_verbosity(absl_logging.ERROR)
        logging.getLogger('jaxfed').setLevel(logging.INFO)


def parse_program(arguments: list[str]) -> list[str]:
    """Parse the program's own flags; what is wrong with them is one line and exit status 2.

    Args:
      arguments: of the program, its name first.

    Returns:
      What is left over.
    """
    try:
        return flags.FLAGS(arguments)
    except (flags.Error, OSError, UnicodeDecodeError) as error:
        print(f'error: {what_is_wrong(error, flags.FLAGS)}', file=sys.stderr)
        sys.exit(2)
