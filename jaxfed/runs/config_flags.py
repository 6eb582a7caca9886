"""The command-line flags: one for each setting and hyper-parameter, and those of a command."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from absl import flags

from jaxfed import methods
from jaxfed.config import DEFAULTS, GROUPS, MAPPINGS, SETTINGS, Config
from jaxfed.internal import command_line
from jaxfed.internal.type_checks import printable
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.runs.checks import choices

# Key flags, which absl's --help shows, are then those of the program that calls this module.
flags.disclaim_key_flags()


class CommandFlag(NamedTuple):
    """A flag that says what a command does, and is no setting of an experiment."""

    kind: type
    default: Any
    help: str
    group: str = ''  # heading in --help; '' for --helpfull only
    agreed: bool = False  # whether processes that train together need the same value


COMMAND_FLAGS = {
    'sweep': CommandFlag(
        str,
        None,
        'numbers to try, as "beta=.1,.3,1 tau=1,3"; every combination is trained, as many at once '
        'as can share a program',
        'sweep',
        agreed=True,
    ),
    'seeds': CommandFlag(
        int, 1, 'experiments of each setting; with seeds from --seed on', 'sweep', agreed=True
    ),
    'halving': CommandFlag(
        str,
        None,
        'rounds after which the worse half is given up, as 10,20; of a sweep, judged by the '
        'examples of --validation',
        'sweep',
        agreed=True,
    ),
    'together': CommandFlag(
        int,
        0,
        'most experiments in a program; 0 chooses 8 on a CPU, else 32, and all with --halving',
        'sweep',
        agreed=True,
    ),
    'compilation_cache': CommandFlag(
        bool, True, 'keep compiled programs for the next start; in ~/.cache/jaxfed', 'machine'
    ),
    'dry_run': CommandFlag(
        bool,
        False,
        'print sizes, memory and time, and stop; data is loaded, programs are compiled and one '
        'round is timed, but no work directory is made',
        'machine',
        agreed=True,
    ),
    'distributed': CommandFlag(
        bool,
        False,
        'one of several processes, of SLURM or TPUs; all run the same command, and without a '
        'scheduler also give --coordinator, --num_processes and --process_id',
        'machine',
    ),
    'coordinator': CommandFlag(
        str, None, 'several processes: HOST:PORT of the first, with a port free there'
    ),
    'num_processes': CommandFlag(int, None, 'several processes: how many'),
    'process_id': CommandFlag(int, None, 'several processes: number of this one, from 0'),
}

_DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define_flags(into: flags.FlagValues = flags.FLAGS, *, groups: Sequence[str] = GROUPS) -> None:
    """Define the flags of all settings, hyper-parameters, partition settings and commands.

    A hyper-parameter is `--METHOD.NAME`, and also `--NAME` where that is no setting.

    Args:
      into: where to define them. Where they are the program's, --help shows them by group.
      groups: those of `GROUPS` that --help shows.
    """
    before = set(into)
    types = typing.get_type_hints(Config)
    for name, setting in SETTINGS.items():
        registry = choices(name)
        kind = Literal[tuple(registry)] if registry else types[name]
        _define(into, name, kind, DEFAULTS[name], setting.help)
    for name, flag in COMMAND_FLAGS.items():
        _define(into, name, flag.kind, flag.default, flag.help)
    for name, partitions in _partitions_by_setting().items():
        if name not in SETTINGS:
            parameter = partition_settings(partitions[0])[name]
            text = f'setting of --partition={" or ".join(partitions)} [{parameter.default}]'
            _define(into, name, parameter.annotation, None, text)
    for name, owners in _methods_by_hyperparameter().items():
        for method in owners:
            parameter = methods.hyperparameters(method)[name]
            text = f'{name} of {method} [{parameter.default}]'
            _define(into, f'{method}.{name}', parameter.annotation, None, text)
        if name not in into:
            text = f'hyper-parameter of {", ".join(owners)}'
            _define(into, name, methods.hyperparameters(owners[0])[name].annotation, None, text)
    if into is flags.FLAGS:
        rows = help_rows()
        command_line.define_help({group: rows[group] for group in groups}, [*set(into) - before])


def help_rows() -> dict[str, list[command_line.FlagHelp]]:
    """The rows of --help, by group."""
    rows: dict[str, list[command_line.FlagHelp]] = {group: [] for group in GROUPS}
    types = typing.get_type_hints(Config)
    for name, setting in SETTINGS.items():
        values = tuple(choices(name) or typing.get_args(_literal(types[name])))
        rows[setting.group].append(
            command_line.FlagHelp(name, setting.help, DEFAULTS[name], values)
        )
    for name, flag in COMMAND_FLAGS.items():
        if flag.group:
            rows[flag.group].append(command_line.FlagHelp(name, flag.help, flag.default))
    return rows


def _partitions_by_setting() -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for partition in PARTITIONS:
        for name in partition_settings(partition):
            owners.setdefault(name, []).append(partition)
    return owners


def _methods_by_hyperparameter() -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for method in methods.METHODS:
        for name in methods.hyperparameters(method):
            owners.setdefault(name, []).append(method)
    return owners


def _literal(kind: Any) -> Any:
    kinds = (kind, *typing.get_args(kind))
    return next((k for k in kinds if typing.get_origin(k) is Literal), None)


def _define(into: flags.FlagValues, name: str, kind: Any, default: Any, help_: str) -> None:
    literal = _literal(kind)
    if literal is not None:
        values = list(typing.get_args(literal))
        flags.DEFINE_enum(name, default, values, help_, flag_values=into)
        return
    kinds = set(typing.get_args(kind) or (kind,)) - {type(None)}
    _DEFINE[kinds.pop()](name, default, help_, flag_values=into)


def from_flags(values: flags.FlagValues = flags.FLAGS) -> Config:
    """Read the parsed flags.

    Args:
      values: where `define_flags` defined them.

    Returns:
      The settings.

    Raises:
      ValueError: if a flag was given that the chosen partition does not read.
    """
    partition = str(values['partition'].value)
    partitions_of = _partitions_by_setting()
    for name, partitions in partitions_of.items():
        if partition not in partitions and values[name].present:
            raise ValueError(
                f'--{name}={values[name].value} belongs to '
                f'--partition={" or ".join(partitions)}, but --partition={partition}; leave one of '
                'them out.'
            )
    names = [
        flag
        for name, owners in _methods_by_hyperparameter().items()
        for flag in (name, *(f'{method}.{name}' for method in owners))
        if flag not in {*SETTINGS, *partitions_of}
    ]
    extra = [name for name in partition_settings(partition) if name not in SETTINGS]

    def given(names: Sequence[str]) -> dict[str, Any]:
        return {name: values[name].value for name in names if values[name].value is not None}

    settings: dict[str, Any] = {name: values[name].value for name in SETTINGS}
    return Config(
        **settings,
        hyperparameters=given(names),
        partition_settings=given(extra),
    )


def parse(arguments: Sequence[str]) -> Config:
    """Read settings from flags as on the command line, without touching the program's flags.

    Args:
      arguments: flags, as ['--flagfile=FILE', '--method=fedlmd'].

    Returns:
      The settings.

    Raises:
      ValueError: for an unknown flag, an invalid value, an argument that is no flag or a flag file
        that cannot be read.
    """
    values = flags.FlagValues()
    define_flags(values)
    try:
        rest = values(['', *arguments])[1:]
    except (flags.Error, OSError, UnicodeDecodeError) as error:
        raise ValueError(printable(command_line.what_is_wrong(error, values))) from error
    if rest:
        raise ValueError(f'unexpected arguments {printable(" ".join(rest))}; flags begin with --.')
    for name in COMMAND_FLAGS:
        if values[name].present and name != 'compilation_cache':
            raise ValueError(
                f'--{name}={printable(str(values[name].value))} is a flag of a command, no setting '
                'of a run; leave it out.'
            )
    return from_flags(values)


def common_settings(config: Config) -> dict[str, Any]:
    """Flag -> value of the settings in which processes that train together have to agree."""
    values = dataclasses.asdict(config)
    for name in MAPPINGS:
        values |= values.pop(name)
    local = [name for name, setting in SETTINGS.items() if setting.local_path]
    return {f'--{name}': value for name, value in values.items() if name not in local}
