"""The command-line flags of `Config`: one absl flag for each setting and hyper-parameter."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from absl import flags

from jaxfed import methods
from jaxfed.config import _MAPPINGS, GROUPS, Config
from jaxfed.engine.cohorts import SAMPLINGS
from jaxfed.internal import command_line
from jaxfed.internal.type_checks import printable
from jaxfed.models import MODELS
from jaxfed.partition import PARTITIONS, partition_settings

# Flags of the command line that are no settings of an experiment, the first of them for many.
_SWEEP = {
    'sweep': (
        None,
        'numbers to try, as "beta=.1,.3,1 tau=1,3"; every combination is trained, as many at once '
        'as can share a program',
    ),
    'seeds': (1, 'experiments of each setting; with seeds from --seed on'),
    'halving': (
        None,
        'rounds after which the worse half is given up, as 10,20; of a sweep, judged by the '
        'examples of --validation',
    ),
    'together': (
        0,
        'most experiments in a program; 0 chooses 8 on a CPU, else 32, and all with --halving',
    ),
}


_COMMAND = {
    'compilation_cache': (True, 'keep compiled programs for the next start; in ~/.cache/jaxfed'),
    'dry_run': (
        False,
        'tell sizes, memory and time, and stop; data is loaded, programs are compiled and one '
        'round is timed, but no work directory is made',
    ),
    'distributed': (
        False,
        'one of several processes, of SLURM or TPUs; all run the same command, and '
        'without a scheduler --coordinator, --num_processes and --process_id tell',
    ),
}


# Flags that choose what a command does, and not what is trained.
OF_COMMANDS = ('dry_run', *_SWEEP)


# Flags of one of several processes, which may differ between them.
_PROCESS: dict[str, tuple[type, str]] = {
    'coordinator': (str, 'several processes: HOST:PORT of the first, with a port free there'),
    'num_processes': (int, 'several processes: how many'),
    'process_id': (int, 'several processes: number of this one, from 0'),
}


# Fields that name an entry of these, which may be one's own.
_REGISTRIES: dict[str, Mapping[str, Any]] = {'partition': PARTITIONS, 'sampling': SAMPLINGS}


def define_flags(into: flags.FlagValues = flags.FLAGS, *, groups: Sequence[str] = GROUPS) -> None:
    """Define one absl flag a field of `Config`, and the flags of all methods' hyper-parameters.

    A hyper-parameter is `--NAME` where that is not a flag of the experiment, and always
    `--METHOD.NAME`.

    Args:
      into: where to define them. Where they are the program's own, --help shows them by purpose.
      groups: those of `GROUPS` that --help shows.
    """
    before = set(into)
    types = typing.get_type_hints(Config)
    for field in dataclasses.fields(Config):
        if field.name in _REGISTRIES:
            names = list(_REGISTRIES[field.name])
            flags.DEFINE_enum(
                field.name, str(field.default), names, field.metadata['help'], flag_values=into
            )
        elif field.name not in _MAPPINGS:
            _define(into, field.name, types[field.name], field.default, field.metadata['help'])
    for name, (default, text) in {**_SWEEP, **_COMMAND}.items():
        _define(into, name, str if default is None else type(default), default, text)
    for name, (kind, text) in _PROCESS.items():
        _define(into, name, kind, None, text)
    taken = {field.name for field in dataclasses.fields(Config)}
    for name, by in _partitions_by_setting().items():
        if name not in taken:
            parameter = partition_settings(by[0])[name]
            text = f'setting of --partition={" or ".join(by)} [{parameter.default}]'
            _define(into, name, parameter.annotation, None, text)
            taken.add(name)
    owners: dict[str, list[str]] = {}
    for method in methods.METHODS:
        for name, parameter in methods.hyperparameters(method).items():
            text = f'{name} of {method} [{parameter.default}]'
            _define(into, f'{method}.{name}', parameter.annotation, None, text)
            owners.setdefault(name, []).append(method)
    for name, by in owners.items():
        if name not in taken:
            kind = methods.hyperparameters(by[0])[name].annotation
            _define(into, name, kind, None, f'hyper-parameter of {", ".join(by)}')
    if into is flags.FLAGS:
        shown = help_rows()
        command_line.define_help({group: shown[group] for group in groups}, [*set(into) - before])


def help_rows() -> dict[str, list[command_line.Row]]:
    """What --help tells of each setting, by purpose."""
    rows: dict[str, list[command_line.Row]] = {group: [] for group in GROUPS}
    types = typing.get_type_hints(Config)
    group = GROUPS[0]
    for field in dataclasses.fields(Config):
        if field.name in _MAPPINGS:
            continue
        group = field.metadata['group'] or group
        literal = _literal(types[field.name])
        named = {**_REGISTRIES, 'model': MODELS}.get(field.name)
        choices = tuple(named) if named else typing.get_args(literal)
        rows[group].append(
            command_line.Row(field.name, field.metadata['help'], field.default, choices)
        )
    rows['sweep'] = [command_line.Row(name, text, given) for name, (given, text) in _SWEEP.items()]
    rows['machine'] += [
        command_line.Row(name, text, given) for name, (given, text) in _COMMAND.items()
    ]
    return rows


def _partitions_by_setting() -> dict[str, list[str]]:
    by: dict[str, list[str]] = {}
    for partition in PARTITIONS:
        for name in partition_settings(partition):
            by.setdefault(name, []).append(partition)
    return by


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
    define: dict[type, Any] = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    define[kinds.pop()](name, default, help_, flag_values=into)


def from_flags(values: flags.FlagValues = flags.FLAGS) -> Config:
    """Read the parsed flags.

    Args:
      values: where `define_flags` defined them.

    Returns:
      The settings.

    Raises:
      ValueError: if a flag was given that the chosen partition does not read.
    """
    names = [f.name for f in dataclasses.fields(Config) if f.name not in _MAPPINGS]
    partition = str(values['partition'].value)
    of_partitions = _partitions_by_setting()
    for name, by in of_partitions.items():
        if partition not in by and values[name].present:
            raise ValueError(
                f'--{name}={values[name].value} belongs to --partition={" or ".join(by)}, but '
                f'--partition={partition}; leave one of them out.'
            )
    given: dict[str, Any] = {}
    for method in methods.METHODS:
        for hyperparameter in methods.hyperparameters(method):
            for name in (hyperparameter, f'{method}.{hyperparameter}'):
                if name not in {*names, *of_partitions} and values[name].value is not None:
                    given[name] = values[name].value
    settings: dict[str, Any] = {name: values[name].value for name in names}
    own = {
        name: values[name].value
        for name in partition_settings(partition)
        if name not in names and values[name].value is not None
    }
    return Config(**settings, hyperparameters=given, partition_settings=own)


def parse(arguments: Sequence[str]) -> Config:
    """Read settings from flags as on the command line, without touching the program's own.

    Args:
      arguments: flags, as ['--flagfile=FILE', '--method=fedlmd'].

    Returns:
      The settings.

    Raises:
      ValueError: for an unknown flag, a value that does not do, an argument that is no flag or a
        flag file that cannot be read.
    """
    own = flags.FlagValues()
    define_flags(own)
    try:
        left = own(['', *arguments])[1:]
    except (flags.Error, OSError, UnicodeDecodeError) as error:
        raise ValueError(printable(command_line.what_is_wrong(error, own))) from error
    if left:
        raise ValueError(f'unexpected arguments {printable(" ".join(left))}; flags begin with --.')
    for name in (*OF_COMMANDS, 'distributed', *_PROCESS):
        if own[name].present:
            raise ValueError(
                f'--{name}={printable(str(own[name].value))} is a flag of a command, no setting '
                'of a run; leave it out.'
            )
    return from_flags(own)


def shared(config: Config) -> dict[str, Any]:
    """Settings in which processes that train together have to agree.

    Args:
      config: the settings.

    Returns:
      Flag -> value, without those that say where this host has its files.
    """
    given = dataclasses.asdict(config)
    mappings = [given.pop(name) for name in _MAPPINGS]
    flat = {**given, **{name: value for mapping in mappings for name, value in mapping.items()}}
    return {f'--{k}': v for k, v in flat.items() if k not in ('data_dir', 'npz', 'path')}
