"""Grouped `--help`, and error messages for invalid flags."""

import argparse
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from absl import app, flags
from absl import logging as absl_logging

from jaxfed.internal import config_file, console
from jaxfed.internal.logger import LOGGER
from jaxfed.internal.messages import suggestion
from jaxfed.internal.versions import recorded_versions

_WIDTH = 80
# Names in other libraries and papers -> the flag of jaxfed.
_SYNONYMS = {
    'lr': 'learning_rate',
    'wd': 'weight_decay',
    'bs': 'batch_size',
    'epochs': 'local_epochs',
    'clients': 'num_clients',
    'fraction': 'clients_per_round',
    'participation': 'clients_per_round',
    'gpu': 'devices',
    'gpus': 'devices',
    'device': 'devices',
    'algorithm': 'method',
    'data': 'dataset',
    'output': 'workdir',
    'output_dir': 'workdir',
}
_TYPES = {'int': 'an integer', 'float': 'a number', 'bool': 'True or False'}


class Parser(argparse.ArgumentParser):
    """A parser of a command without settings; it raises a ValueError where argparse exits."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise ValueError(f'{message}; --help lists the flags.')


class FlagHelp(NamedTuple):
    """A flag as --help shows it."""

    name: str
    text: str  # --help shows it up to the first ';', --helpfull shows all
    default: Any = None  # shown in brackets, unless it is None or the text has brackets
    choices: Sequence[str] = ()


class _PrintingFlag(flags.BooleanFlag):
    """A flag that prints something and ends the program with status 0; absl's end with 1."""

    def __init__(
        self, name: str, text: str, show: Callable[[], None], short: str | None = None
    ) -> None:
        super().__init__(name, False, text, short_name=short, allow_override=True)
        self._show = show

    def parse(self, argument: Any) -> None:
        """Print and exit, if the flag is set."""
        if self._parse(argument):
            self._show()
            sys.exit(0)


def define_help(groups: Mapping[str, Sequence[FlagHelp]], known: Sequence[str]) -> None:
    """Define --help, -?, --helpshort and --helpfull in place of absl's.

    Args:
      groups: purpose -> the flags that --help shows.
      known: the names of all flags that jaxfed defines; --help shows a program's other flags in an
        additional group.
    """
    app.define_help_flags()

    def brief() -> None:
        key_flags = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
        extra = [
            FlagHelp(f.name, f.help or '', f.default) for f in key_flags if f.name not in known
        ]
        print(short_help({**groups, 'this program': extra}, sys.modules['__main__'].__doc__))

    def full() -> None:
        app.usage(writeto_stdout=True)

    def version() -> None:
        print('jaxfed', recorded_versions()['jaxfed'])

    for flag in (
        _PrintingFlag('help', 'show the flags by purpose', brief, short='?'),
        _PrintingFlag('h', 'the same as --help', brief),
        _PrintingFlag('helpshort', 'the same as --help', brief),
        _PrintingFlag('version', 'show the version of jaxfed', version),
        _PrintingFlag('helpfull', 'show all flags, with the hyper-parameters of all methods', full),
    ):
        flags.DEFINE_flag(flag)


def short_help(groups: Mapping[str, Sequence[FlagHelp]], title: str | None) -> str:
    """Format --help in at most 80 columns; groups without flags are omitted."""
    lines = [(title or f'usage: {sys.argv[0]} [flags]').strip().splitlines()[0]]
    column = 3 + max(len(f'--{flag.name}') for group in groups.values() for flag in group)
    for name, group in groups.items():
        if group:
            lines += [f'{name}:', *(line for flag in group for line in _lines(flag, column))]
    lines += [
        '',
        '--method=list shows every method with its hyper-parameters and its paper.',
        "--helpfull shows all flags in full, with the methods' hyper-parameters.",
        'Files of settings: --flagfile, --config. Bool flags: --remat, or --noremat.',
    ]
    return '\n'.join(lines)


def _lines(flag: FlagHelp, column: int) -> list[str]:
    """Format a flag; its text starts at `column`."""
    text, default = flag.text.split(';')[0], f'[{flag.default}]'
    if in_brackets := re.search(r'\[.*\]', flag.text):
        default = in_brackets[0]
    if '[' not in text and (in_brackets or flag.default is not None):
        text += f' {default}'
    width = _WIDTH - column
    wrapped = textwrap.wrap(f'{"|".join(flag.choices)}: {text}', width) if flag.choices else []
    if len(wrapped) != 1:  # choices and text do not fit into one line
        wrapped = textwrap.wrap(text, width) + textwrap.wrap(', '.join(flag.choices), width)
    head, *rest = wrapped or ['']
    return [f'  --{flag.name}'.ljust(column) + head, *(' ' * column + line for line in rest)]


def what_is_wrong(error: Exception, values: flags.FlagValues) -> str:
    """Describe an error of absl or of a flag file, with the accepted values, in one line."""
    if isinstance(error, flags.UnrecognizedFlagError):
        name = error.flagname
        first, space, rest = name.partition(' ')
        if space and first in values:
            return f'--{name} needs an equals sign: --{first}={rest.strip()}.'
        if name in ('config', 'flagfile'):
            return f'--{name} is for the command line of python -m jaxfed, not for a file.'
        names = [known for known in values if '.' in name or '.' not in known]
        end = suggestion(_SYNONYMS.get(name, name), names, '--')
        place = ''.join(f'{source}: ' for source in getattr(error, '__notes__', ()))
        return f'{place}--{name} is not a flag{";" if end == "." else end} --help shows the flags.'
    if isinstance(error, UnicodeDecodeError):
        return f'--flagfile must name a text file ({error}).'
    text = ' '.join(str(error).removeprefix('ERROR:: ').split())
    assignment = text.removeprefix('flag --')
    name = assignment.partition('=')[0]
    if not isinstance(error, flags.IllegalFlagValueError) or name not in values:
        return f'{text.rstrip(".")}.'
    # absl's message ends with that of the flag's parser.
    reason = ' '.join(str(error.__context__).split())
    flag, value = values[name], assignment.removesuffix(f': {reason}').partition('=')[2] or "''"
    if isinstance(flag.parser, flags.EnumParser):
        choices = flag.parser.enum_values
        end = _for_several(flag, value, values) or suggestion(value, choices, f'--{name}=')
        return f'--{name} must be one of {", ".join(choices)}, got {value}{end}'
    if expected := _TYPES.get(flag.flag_type()):
        return f'--{name} must be {expected}, got {value}{_for_several(flag, value, values) or "."}'
    return f'--{name}={value}: {reason}.'


def _for_several(flag: flags.Flag, text: str, values: flags.FlagValues) -> str:
    """The end of a message about several valid values of a flag of one; '' for another text."""
    parts = text.split(',')
    with_comma = flag.flag_type() == 'float' and len(parts) == 2 and all(map(str.isdigit, parts))
    if len(parts) == 1 or with_comma or 'sweep' not in values:  # 0,1 is also one tenth
        return ''
    try:
        for part in parts:
            flag.parser.parse(part)
    except ValueError:
        return ''
    if flag.name == 'seed':
        return f'; to train with {len(parts)} seeds, use --seeds={len(parts)}.'
    return f'; to train with each, use --sweep="{flag.name}={text}".'


class _PlainMessages(absl_logging.PythonFormatter):
    """Messages of jaxfed like those of the console, without time and thread."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name != LOGGER.name:
            return str(super().format(record))
        return 'warning: ' * (record.levelno >= logging.WARNING) + record.getMessage()


def quiet_libraries() -> None:
    """Show log messages of jaxfed, but only errors of libraries, unless --verbosity is set."""
    # Libraries log missing TPUs, font caches and OpenCV, which do not concern the user.
    if not flags.FLAGS['verbosity'].present:
        absl_logging.set_verbosity(absl_logging.ERROR)
        absl_logging.get_absl_handler().setFormatter(_PlainMessages())
        LOGGER.setLevel(logging.INFO)


def parse_program(
    arguments: list[str], unread: config_file.Unread = lambda partition: ()
) -> list[str]:
    """Parse the program's flags and return the other arguments; exit with status 2 on an error."""
    try:
        return flags.FLAGS(config_file.expand(arguments, flags.FLAGS, unread))
    except BrokenPipeError:  # of --help | head
        console.flush()
        sys.exit(0)
    except (flags.Error, OSError, ValueError) as error:
        console.show_error(what_is_wrong(error, flags.FLAGS))
        sys.exit(2)
