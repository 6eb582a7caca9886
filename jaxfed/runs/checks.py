"""Checks of the settings that need no data."""

import pkgutil
import typing
from collections.abc import Mapping
from typing import Any, Literal

from jaxfed.config import MAPPINGS, SETTINGS, Config
from jaxfed.data import check_source
from jaxfed.engine.cohorts import candidates
from jaxfed.internal.type_checks import check_value
from jaxfed.metrics.measures import MEASURES
from jaxfed.metrics.selection import check_measures, parse_clients, parse_measures
from jaxfed.partition import PARTITIONS, partition_settings
from jaxfed.recording.entries import RESERVED
from jaxfed.runs.attack import check_attack
from jaxfed.runs.deal import columns_of
from jaxfed.runs.learning_rate import check_learning_rate


def annotations() -> dict[str, Any]:
    """Field of `Config` -> its type, a Literal of the current keys if it names a registry."""
    types = typing.get_type_hints(Config)
    registries = {name: setting.registry for name, setting in SETTINGS.items() if setting.registry}
    for name, registry in registries.items():
        types[name] = Literal[tuple(pkgutil.resolve_name(registry))]
    return types


def check_types(config: Config) -> None:
    """Raise a ValueError for a setting of another type or without such a choice."""
    if not isinstance(config.method, str):
        raise ValueError(
            f'--method must be a name, got a {type(config.method).__name__}: pass a method object '
            'as simulate(config, method=...).'
        )
    for name, kind in annotations().items():
        check_value(f'--{name}', getattr(config, name), kind)
    for name in MAPPINGS:
        _require(config, name, isinstance(getattr(config, name), Mapping), 'a mapping by name')


def check(config: Config) -> None:
    """Check every setting that can be checked without data.

    Args:
      config: the settings.

    Raises:
      ValueError: if a setting is invalid; names the first such flag, the rule and the value.
    """
    check_types(config)
    every = {name for partition in PARTITIONS for name in partition_settings(partition)}
    unread = every - set(partition_settings(config.partition))
    for name, setting in SETTINGS.items():
        value = getattr(config, name)
        if setting.range and value is not None and name not in unread:
            _require(config, name, setting.range.holds(value), setting.range.text)
    if config.workdir == '':
        raise ValueError('--workdir must name a folder, got an empty text; omit it for a new one.')
    _check_partition_settings(config)
    _check_clients(config)
    check_attack(config)
    check_learning_rate(config)
    if config.label_noise_form != 'equal' and not config.label_noise:
        raise ValueError(
            f'--label_noise_form={config.label_noise_form} needs --label_noise, as in '
            f'--label_noise=0.4, got {config.label_noise}.'
        )
    columns = columns_of(config)
    check_source(config.dataset, npz=config.npz, path=config.path, columns=columns)
    _check_measures(config)
    if config.resume and config.workdir is None:
        raise ValueError('--resume needs the --workdir of the run to continue.')


def _require(config: Config, name: str, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f'--{name} must be {rule}, got {getattr(config, name)}.')


def _check_partition_settings(config: Config) -> None:
    parameters = partition_settings(config.partition)
    names = [name for name in parameters if name not in SETTINGS]
    for name, value in config.partition_settings.items():
        if name in SETTINGS and name in parameters:
            raise ValueError(
                f'--partition_settings must not have {name}, a setting of its own; set it as '
                f'--{name}={value}, from Python as Config({name}={value!r}).'
            )
        if name not in names:
            raise ValueError(
                f'--partition_settings: --partition={config.partition} has no setting {name} '
                f'there; its settings are {", ".join(names) or "none"}.'
            )
        check_value(f'--{name}', value, parameters[name].annotation)


def _check_clients(config: Config) -> None:
    limit = f'at most --num_clients={config.num_clients}'
    _require(config, 'clients_per_round', config.clients_per_round <= config.num_clients, limit)
    limit = f'at most --clients_per_round={config.clients_per_round}'
    _require(config, 'lanes', config.lanes <= config.clients_per_round, limit)
    if config.devices.isdecimal():
        most = config.clients_per_round // max(config.lanes, 1)
        each = f'a client of --clients_per_round={config.clients_per_round} for each lane'
        _require(config, 'devices', int(config.devices) <= most, f'at most {most}, {each}')
    fails = config.dropout or config.stragglers or config.over_selection
    if config.cohort_seed is not None and config.sampling == 'fedntd' and not fails:
        raise ValueError(
            f'--cohort_seed={config.cohort_seed} has no effect with --sampling=fedntd, which has '
            'the same clients for every seed; remove it.'
        )
    effective = not config.stragglers or config.local_epochs > 1
    rule = '0 with --local_epochs=1, which a late client completes, too'
    _require(config, 'stragglers', effective, rule)
    sampled = candidates(config.clients_per_round, config.over_selection)
    if sampled > config.num_clients:
        raise ValueError(
            f'--over_selection={config.over_selection} samples {sampled} clients a round, but '
            f'--num_clients={config.num_clients}; lower it.'
        )


def _check_measures(config: Config) -> None:
    names, clients = parse_measures(config.measure), parse_clients(config.confusion_clients)
    check_measures(names, RESERVED)
    last = config.num_clients - 1
    _require(config, 'confusion_clients', max(clients, default=0) <= last, f'from 0 to {last}')
    if clients and 'confusion' not in names:
        raise ValueError(
            f'--confusion_clients={config.confusion_clients} needs --measure=confusion, got '
            f'--measure={config.measure}.'
        )
    evaluates_locally = {
        'personal_test': config.personal_test,
        'measure': any(MEASURES[name].local for name in names),
        'confusion_clients': clients,
    }
    for name, evaluates in evaluates_locally.items():
        if evaluates and not config.local_eval_every:
            raise ValueError(
                f'--{name}={getattr(config, name)} evaluates local models, but '
                '--local_eval_every=0; set it, as in --local_eval_every=10.'
            )
