"""Checks of the settings that need no data."""

import pkgutil
import typing
from collections.abc import Mapping
from typing import Any

from jaxfed.config import MAPPINGS, SETTINGS, Config
from jaxfed.engine.cohorts import candidates
from jaxfed.internal.type_checks import check_value, printable
from jaxfed.metrics.measures import MEASURES, parse_clients, parse_measures
from jaxfed.partition import PARTITIONS, partition_settings


def choices(name: str) -> Mapping[str, Any] | None:
    """The mapping that a setting names an entry of, None if it names none."""
    registry = SETTINGS[name].registry
    return pkgutil.resolve_name(registry) if registry else None


def check(config: Config) -> None:
    """Check every setting that can be checked without data.

    Args:
      config: the settings.

    Raises:
      ValueError: naming the first flag that is of a wrong type or out of range, its value and
        what would do.
    """
    for name in SETTINGS:
        entries = choices(name)
        if entries is not None and getattr(config, name) not in tuple(entries):
            value = printable(str(getattr(config, name)))
            raise ValueError(f'--{name}={value} must be one of {", ".join(entries)}.')
    for name, kind in typing.get_type_hints(Config).items():
        check_value(f'--{name}', getattr(config, name), kind)
    for name in MAPPINGS:
        _require(config, name, isinstance(getattr(config, name), Mapping), 'a mapping by name')
    unread = _settings_of_other_partitions(config.partition)
    for name, setting in SETTINGS.items():
        value = getattr(config, name)
        if setting.range and value is not None and name not in unread:
            _require(config, name, setting.range.holds(value), setting.range.text)
    _check_partition_settings(config)
    _check_clients(config)
    _check_data(config)
    _check_measures(config)
    if config.resume and config.workdir is None:
        raise ValueError('--resume needs the --workdir of the run to go on with.')


def _require(config: Config, name: str, holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f'--{name}={getattr(config, name)} must be {text}.')


def _settings_of_other_partitions(partition: str) -> set[str]:
    every = {name for other in PARTITIONS for name in partition_settings(other)}
    return every - set(partition_settings(partition))


def _check_partition_settings(config: Config) -> None:
    parameters = partition_settings(config.partition)
    taken = [name for name in parameters if name not in SETTINGS]
    for name, value in config.partition_settings.items():
        if name not in taken:
            raise ValueError(
                f'--partition_settings: --partition={config.partition} takes no {name} there; it '
                f'takes {", ".join(taken) or "none"}.'
            )
        check_value(f'--{name}', value, parameters[name].annotation)


def _check_clients(config: Config) -> None:
    limit = f'at most --num_clients={config.num_clients}'
    _require(config, 'clients_per_round', config.clients_per_round <= config.num_clients, limit)
    limit = f'at most --clients_per_round={config.clients_per_round}'
    _require(config, 'lanes', config.lanes <= config.clients_per_round, limit)
    if config.devices.isdecimal():
        lanes = int(config.devices) * max(config.lanes, 1)
        each = f'{limit}, a client for each lane'
        _require(config, 'devices', lanes <= config.clients_per_round, each)
    sampled = candidates(config.clients_per_round, config.over_selection)
    if sampled > config.num_clients:
        raise ValueError(
            f'--over_selection={config.over_selection} samples {sampled} clients a round, but '
            f'--num_clients={config.num_clients}; lower it.'
        )


def _check_data(config: Config) -> None:
    if config.label_noise_form != 'equal' and not config.label_noise:
        raise ValueError(
            f'--label_noise_form={config.label_noise_form} spreads --label_noise over clients, but '
            f'--label_noise={config.label_noise}; give it, as in --label_noise=0.4.'
        )
    if config.personal_test and not config.local_eval_every:
        raise ValueError(
            f'--personal_test={config.personal_test} is for evaluating local models, but '
            '--local_eval_every=0; give it, as in --local_eval_every=10.'
        )
    if (config.dataset == 'npz') != (config.npz is not None):
        raise ValueError(
            f'--dataset={config.dataset} and --npz={config.npz}: a file is read with both '
            '--dataset=npz and --npz=FILE.'
        )
    if (config.dataset == 'image_folder') != (config.path is not None):
        raise ValueError(
            f'--dataset={config.dataset} and --path={config.path}: a folder is read with both '
            '--dataset=image_folder and --path=DIR.'
        )


def _check_measures(config: Config) -> None:
    names, clients = parse_measures(config.measure), parse_clients(config.confusion_clients)
    local = [name for name in names if MEASURES[name].local]
    if local and not config.local_eval_every:
        raise ValueError(
            f'--measure={config.measure}: {", ".join(local)} is taken where local models are '
            'evaluated, but --local_eval_every=0; give it, as in --local_eval_every=10.'
        )
    if not clients:
        return
    flag = f'--confusion_clients={config.confusion_clients}'
    if max(clients) >= config.num_clients:
        raise ValueError(
            f'{flag} must be from 0 to {config.num_clients - 1}, of '
            f'--num_clients={config.num_clients}.'
        )
    if 'confusion' not in names:
        raise ValueError(
            f'{flag} is for --measure=confusion, but --measure={config.measure}; add confusion.'
        )
    if not config.local_eval_every:
        raise ValueError(
            f'{flag} is for evaluating local models, but --local_eval_every=0; give it, as in '
            '--local_eval_every=10.'
        )
