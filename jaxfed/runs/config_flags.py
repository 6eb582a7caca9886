"""The command-line flags: one for each setting and hyper-parameter, and those of a command."""

import dataclasses
import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from absl import flags

from jaxfed import methods
from jaxfed.config import DEFAULTS, GROUPS, MAPPINGS, SETTINGS, Config, unread_settings
from jaxfed.internal import command_line, config_file
from jaxfed.internal.include import HELP
from jaxfed.internal.messages import printable
from jaxfed.internal.type_checks import choices_of
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.runs.checks import annotations

# absl's --help shows key flags: with this, those of the program that calls this module.
flags.disclaim_key_flags()


class CommandFlag(NamedTuple):
    """A flag of a command, which is not a setting of an experiment."""

    kind: type
    default: Any
    help: str
    group: str = ''  # heading in --help; '' for --helpfull only
    agreed: bool = False  # whether processes that train together need the same value


COMMAND_FLAGS = {
    'include': CommandFlag(str, None, HELP, 'method'),
    'sweep': CommandFlag(
        str,
        None,
        'grid of values to train, as "method=kd,mse tau=1,3"; experiments share compiled programs',
        'sweep',
        agreed=True,
    ),
    'seeds': CommandFlag(
        int, 1, 'seeds of each setting; they start at --seed', 'sweep', agreed=True
    ),
    'halving': CommandFlag(
        str,
        None,
        'rounds after which the worse half stops, as 10,20; ranks the settings of a sweep by the '
        'accuracy on the data of --validation',
        'sweep',
        agreed=True,
    ),
    'together': CommandFlag(
        int,
        0,
        'largest number of experiments in a program; 0 chooses 8 on a CPU, else 32, and all with '
        '--halving',
        'sweep',
        agreed=True,
    ),
    'compilation_cache': CommandFlag(
        bool, True, 'keep compiled programs for the next start; in ~/.cache/jaxfed', 'machine'
    ),
    'dry_run': CommandFlag(
        bool,
        False,
        'print sizes, memory and time, and stop; loads data, compiles programs and times one '
        'round, but makes no work directory',
        'machine',
        agreed=True,
    ),
    'distributed': CommandFlag(
        bool,
        False,
        'join the processes of SLURM or TPUs; all run the same command; without a scheduler, set '
        '--coordinator, --num_processes and --process_id instead',
        'machine',
    ),
    'coordinator': CommandFlag(str, None, 'several processes: HOST:PORT of the first'),
    'num_processes': CommandFlag(int, None, 'several processes: their number'),
    'process_id': CommandFlag(int, None, 'several processes: index of this one, from 0'),
}

_DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define_flags(
    into: flags.FlagValues = flags.FLAGS,
    *,
    groups: Sequence[str] = GROUPS,
    commands: Mapping[str, CommandFlag] = COMMAND_FLAGS,
) -> None:
    """Define the flags of all settings, hyper-parameters, partition settings and commands.

    A hyper-parameter is `--METHOD.NAME`, and also `--NAME` unless that is another flag.

    Args:
      into: where to define them; `flags.FLAGS` also shows them in --help.
      groups: those of `GROUPS` that --help shows.
      commands: flags of the program's command.
    """
    before = set(into)
    kinds = annotations()
    for name, setting in SETTINGS.items():
        _define(into, name, kinds[name], DEFAULTS[name], setting.help)
    for name, flag in commands.items():
        _define(into, name, flag.kind, flag.default, flag.help)
    for name, owners in _owners(PARTITIONS, partition_settings).items():
        if name not in SETTINGS:
            first = next(iter(owners.values()))
            text = f'setting of --partition={" or ".join(owners)} [{first.default}]'
            _define(into, name, first.annotation, None, text)
    for name, owners in _owners(methods.METHODS, methods.hyperparameters).items():
        for method, parameter in owners.items():
            text = f'{name} of {method} [{parameter.default}]'
            _define(into, f'{method}.{name}', parameter.annotation, None, text)
        if name not in into:
            text = f'hyper-parameter of {", ".join(owners)}'
            _define(into, name, _common_kind(owners.values()), None, text)
    if into is flags.FLAGS:
        rows = help_rows()
        command_line.define_help({group: rows[group] for group in groups}, [*set(into) - before])


def help_rows() -> dict[str, list[command_line.FlagHelp]]:
    """The rows of --help, by group."""
    rows: dict[str, list[command_line.FlagHelp]] = {group: [] for group in GROUPS}
    kinds = annotations()
    for name, setting in SETTINGS.items():
        row = command_line.FlagHelp(name, setting.help, DEFAULTS[name], choices_of(kinds[name]))
        rows[setting.group].append(row)
    for name, flag in COMMAND_FLAGS.items():
        if flag.group:
            rows[flag.group].append(command_line.FlagHelp(name, flag.help, flag.default))
    return rows


def _owners(
    registry: Mapping[str, Any], settings_of: Callable[[str], Mapping[str, inspect.Parameter]]
) -> dict[str, dict[str, inspect.Parameter]]:
    """Setting -> entry of a registry -> the parameter, for the entries that have it."""
    owners: dict[str, dict[str, inspect.Parameter]] = {}
    for entry in registry:
        for name, parameter in settings_of(entry).items():
            owners.setdefault(name, {})[entry] = parameter
    return owners


def _common_kind(parameters: Iterable[inspect.Parameter]) -> Any:
    """The annotation of a flag that stands for several hyper-parameters; all choices of any."""
    kinds = [parameter.annotation for parameter in parameters]
    choices = dict.fromkeys(itertools.chain(*map(choices_of, kinds)))
    return Literal[tuple(choices)] if all(map(choices_of, kinds)) else kinds[0]


def hyperparameter_flags() -> set[str]:
    """The flags of all hyper-parameters, NAME and METHOD.NAME."""
    others = _other_flags()
    return {
        flag
        for method in methods.METHODS
        for name in methods.hyperparameters(method)
        for flag in (name, f'{method}.{name}')
        if flag not in others
    }


def flag_of(method: str, name: str) -> str:
    """The flag of a hyper-parameter: its name, or METHOD.NAME if that is another flag."""
    return f'{method}.{name}' if name in _other_flags() else name


def _other_flags() -> set[str]:
    """The flags that are of no method."""
    return {*SETTINGS, *COMMAND_FLAGS, *_owners(PARTITIONS, partition_settings)}


def _define(into: flags.FlagValues, name: str, kind: Any, default: Any, help_: str) -> None:
    if choices := choices_of(kind):
        flags.DEFINE_enum(name, default, choices, help_, flag_values=into)
        return
    (plain,) = set(typing.get_args(kind) or (kind,)) - {type(None)}
    _DEFINE[plain](name, default, help_, flag_values=into)


def from_flags(values: flags.FlagValues = flags.FLAGS) -> Config:
    """Read the parsed flags.

    Args:
      values: where `define_flags` defined them.

    Returns:
      The settings.

    Raises:
      ValueError: if a flag of another partition is set.
    """
    partition = str(values['partition'].value)
    partitions_of = _owners(PARTITIONS, partition_settings)
    # A sweep over partitions checks that one of them takes the setting.
    grid = (values['sweep'].value or '') if 'sweep' in values else ''
    swept = any(word.removeprefix('--').startswith('partition=') for word in grid.split())
    for name, partitions in partitions_of.items():
        if partition not in partitions and values[name].present and not swept:
            raise ValueError(
                f'--{name}={values[name].value} belongs to --partition={" or ".join(partitions)}, '
                f'but --partition is {partition}; omit one of them.'
            )

    def chosen(names: Iterable[str]) -> dict[str, Any]:
        return {name: values[name].value for name in names if values[name].value is not None}

    settings: dict[str, Any] = {name: values[name].value for name in SETTINGS}
    return Config(
        **settings,
        hyperparameters=chosen(hyperparameter_flags()),
        partition_settings=chosen(
            name
            for name in (partitions_of if swept else partition_settings(partition))
            if name not in SETTINGS
        ),
    )


def read_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Name -> value of the flags that are set, also by flag files; arguments as of `parse`."""
    values = _parse(arguments)
    return {name: values[name].value for name in values if values[name].present}


def parse(arguments: Sequence[str]) -> Config:
    """Read settings from command-line flags, separate from the flags of the program.

    Args:
      arguments: flags, as ['--flagfile=FILE', '--method=fedlmd'].

    Returns:
      The settings.

    Raises:
      ValueError: for an unknown flag, a flag of the command, a setting of another partition, an
        invalid value, an argument that is not a flag, or an unreadable flag file.
    """
    return from_flags(_parse(arguments))


def parse_program(arguments: list[str]) -> list[str]:
    """Parse the flags of a program with settings; as `command_line.parse_program`."""
    return command_line.parse_program(arguments, unread_settings)


def _parse(arguments: Sequence[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    define_flags(values)
    try:
        rest = values(['', *config_file.expand(arguments, values, unread_settings)])[1:]
    except (flags.Error, OSError, ValueError) as error:
        raise ValueError(printable(command_line.what_is_wrong(error, values))) from error
    if rest:
        raise ValueError(f'unexpected arguments {printable(" ".join(rest))}; flags begin with --.')
    for name in COMMAND_FLAGS:
        if values[name].present and name != 'compilation_cache':
            raise ValueError(
                f'--{name}={printable(str(values[name].value))} is a flag of a command, not a '
                'setting; omit it.'
            )
    return values


def common_settings(config: Config) -> dict[str, Any]:
    """Flag -> value of the settings that all processes of a run must have in common."""
    values = dataclasses.asdict(config)
    for name in MAPPINGS:
        values |= values.pop(name)
    local = [name for name, setting in SETTINGS.items() if setting.local_path]
    return {f'--{name}': value for name, value in values.items() if name not in local}
