"""Checks of the settings that need no data."""

import typing
from collections.abc import Mapping

from jaxfed.config import _MAPPINGS, SEEDS, Config
from jaxfed.engine.cohorts import candidates
from jaxfed.internal.type_checks import check_value, printable
from jaxfed.metrics.measures import MEASURES, parse_clients, parse_measures
from jaxfed.partition import partition_settings
from jaxfed.runs.config_flags import _REGISTRIES

_COUNTS = (
    'num_clients',
    'rounds',
    'clients_per_round',
    'local_epochs',
    'batch_size',
    'eval_every',
)


def check(config: Config) -> None:
    """Check every setting that can be checked without data.

    Args:
      config: the settings.

    Raises:
      ValueError: naming the first flag that is of a wrong type or out of range, its value and
        what would do.
    """
    for name, registry in _REGISTRIES.items():
        if getattr(config, name) not in tuple(registry):
            told = printable(str(getattr(config, name)))
            raise ValueError(f'--{name}={told} must be one of {", ".join(registry)}.')
    for name, kind in typing.get_type_hints(Config).items():
        check_value(f'--{name}', getattr(config, name), kind)

    def need(name: str, holds: bool, range_: str) -> None:
        if not holds:
            raise ValueError(f'--{name}={getattr(config, name)} must be {range_}.')

    for name in _MAPPINGS:
        mapping = isinstance(getattr(config, name), Mapping)
        need(name, mapping, 'a mapping from names to values')
    for name in _COUNTS:
        need(name, getattr(config, name) >= 1, 'at least 1')
    need('local_eval_every', config.local_eval_every >= 0, 'at least 1, or 0 for never')
    need('checkpoint_every', config.checkpoint_every >= 0, 'at least 1, or 0 for none')
    need('keep', config.keep >= 1, 'at least 1')
    if config.resume and config.workdir is None:
        raise ValueError('--resume needs the --workdir of the run to go on with.')
    need('learning_rate', config.learning_rate > 0, 'above 0')
    need('lr_decay', 0 < config.lr_decay <= 1, 'above 0 and at most 1')
    need('momentum', 0 <= config.momentum < 1, 'at least 0 and below 1')
    need('weight_decay', config.weight_decay >= 0, 'at least 0')
    for name in SEEDS:
        need(name, getattr(config, name) is None or getattr(config, name) >= 0, 'at least 0')
    need('lanes', config.lanes >= 0, 'at least 1, or 0 to choose')
    need(
        'clients_per_round',
        config.clients_per_round <= config.num_clients,
        f'at most --num_clients={config.num_clients}',
    )
    need(
        'lanes',
        config.lanes <= config.clients_per_round,
        f'at most --clients_per_round={config.clients_per_round}',
    )
    if config.devices.isdecimal():
        wanted = int(config.devices) * max(config.lanes, 1)
        limit = f'at most --clients_per_round={config.clients_per_round}, a client for each lane'
        need('devices', wanted <= config.clients_per_round, limit)
    own = partition_settings(config.partition)
    for name in ('alpha', 'size_alpha'):
        need(name, name not in own or getattr(config, name) > 0, 'above 0')
    for name in ('min_size', 'shards_per_client', 'labels_per_client', 'min_user_size'):
        need(name, name not in own or getattr(config, name) >= 1, 'at least 1')
    need('num_users', config.num_users >= 0, 'at least 1, or 0 for all')
    need('label_noise', 0 <= config.label_noise <= 1, 'from 0 to 1')
    if config.label_noise_form != 'equal' and not config.label_noise:
        raise ValueError(
            f'--label_noise_form={config.label_noise_form} tells how --label_noise is spread over '
            f'clients, but --label_noise={config.label_noise}; give it, as in --label_noise=0.4.'
        )
    need('dropout', 0 <= config.dropout < 1, 'at least 0 and below 1')
    need('stragglers', 0 <= config.stragglers <= 1, 'from 0 to 1')
    need('over_selection', config.over_selection >= 0, 'at least 0')
    sampled = candidates(config.clients_per_round, config.over_selection)
    if sampled > config.num_clients:
        raise ValueError(
            f'--over_selection={config.over_selection} samples {sampled} clients a round, but '
            f'--num_clients={config.num_clients}; lower it.'
        )
    need('validation', 0 <= config.validation < 1, 'at least 0 and below 1')
    need('personal_test', 0 <= config.personal_test < 1, 'at least 0 and below 1')
    if config.personal_test and not config.local_eval_every:
        raise ValueError(
            f'--personal_test={config.personal_test} is for evaluating local models, but '
            '--local_eval_every=0; give it, as in --local_eval_every=10.'
        )
    _check_measures(config)
    for name, value in config.partition_settings.items():
        extra = [key for key in own if not hasattr(config, key)]
        if name not in extra:
            raise ValueError(
                f'--partition_settings: --partition={config.partition} takes no {name} there; it '
                f'takes {", ".join(extra) or "none"}.'
            )
        check_value(f'--{name}', value, own[name].annotation)
    if config.auxiliary_per_class is not None:
        need('auxiliary_per_class', config.auxiliary_per_class >= 0, 'at least 0')
    if config.target_accuracy is not None:
        need('target_accuracy', 0 < config.target_accuracy <= 1, 'above 0 and at most 1')
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
    given = f'--confusion_clients={config.confusion_clients}'
    if max(clients) >= config.num_clients:
        raise ValueError(
            f'{given} must be from 0 to {config.num_clients - 1}, of '
            f'--num_clients={config.num_clients}.'
        )
    if 'confusion' not in names:
        raise ValueError(
            f'{given} is for --measure=confusion, but --measure={config.measure}; add confusion.'
        )
    if not config.local_eval_every:
        raise ValueError(
            f'{given} is for evaluating local models, but --local_eval_every=0; give it, as in '
            '--local_eval_every=10.'
        )
