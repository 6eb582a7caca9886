"""The settings of an experiment and their command-line flags; the only place that knows absl."""

import dataclasses
import logging
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from absl import flags
from absl import logging as absl_logging

from jaxfed import methods
from jaxfed.metrics.measures import MEASURES, parse_clients, parse_measures
from jaxfed.models import MODELS, Precision
from jaxfed.models.blocks import Norm, Stem
from jaxfed.partition import PARTITIONS, NoiseForm, partition_settings
from jaxfed.values import check_value

Aggregation = Literal['size', 'uniform']
Divergence = Literal['stop', 'record']
Stream = Literal['auto', 'on', 'off']
Conv = Literal['auto', 'grouped', 'unrolled', 'patches', 'fourier', 'blocks']

# The flags are then the calling program's own, which are those that absl's --help shows.
flags.disclaim_key_flags()


def _setting(default: Any, help_: str) -> Any:
    return dataclasses.field(default=default, metadata={'help': help_})


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that determines an experiment; every field is a flag of the same name."""

    method: str = _setting('fedavg', "federated method, parts joined by '+'; 'list' shows all")
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    dataset: str = _setting(
        'digits', "'digits', 'npz', 'image_folder', or a set of TFDS or of jaxfed.data.prepare"
    )
    data_dir: str | None = _setting(
        None, 'directory of prepared datasets [$TFDS_DATA_DIR or ~/tensorflow_datasets]'
    )
    npz: str | None = _setting(None, 'file for --dataset=npz: x_train, y_train, x_test, y_test')
    path: str | None = _setting(
        None, 'directory for --dataset=image_folder: train/CLASS/ and test/CLASS/ with image files'
    )
    augment: str = _setting('none', "comma list of crop, flip, cutout, or 'none'")
    auxiliary_per_class: int | None = _setting(
        None, 'examples a class taken from the training data for the server [what --method needs]'
    )

    partition: str = _setting('dirichlet', 'how examples are dealt to clients')
    partition_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alpha: float = _setting(0.1, 'Dirichlet concentration; small is skewed')
    size_alpha: float = _setting(
        0.5, "quantity: Dirichlet concentration of the clients' sizes; small is skewed"
    )
    min_size: int = _setting(10, 'Dirichlet and quantity: fewest examples of a client')
    balanced: bool = _setting(
        False, 'Dirichlet: no more of a class to a client with >= n/N examples'
    )
    shards_per_client: int = _setting(2, 'sharding: shards (about: classes) a client')
    labels_per_client: int = _setting(2, 'label_quantity, extended_dirichlet: classes a client')
    num_users: int = _setting(0, 'natural: users that take part, drawn at random; 0 for all')
    min_user_size: int = _setting(1, 'natural: fewest examples of a user that takes part')
    num_clients: int = _setting(20, 'clients in all')
    label_noise: float = _setting(
        0.0, "probability with which a client's training label becomes another class"
    )
    label_noise_form: NoiseForm = _setting(
        'equal', "every client's probability is --label_noise, or uniform from 0 to that"
    )
    validation: float = _setting(
        0.0,
        'share of the training data taken out of it to evaluate on instead of the test data, which '
        'is then not looked at; for choosing hyper-parameters',
    )
    personal_test: float = _setting(
        0.0, "share of each client's examples that it keeps for testing; 0 for none"
    )

    model: str = _setting('cnn', 'network: ' + ', '.join(MODELS))
    norm: Norm | None = _setting(None, 'normalisation of resnets, mobilenet and vgg11 [batch]')
    stem: Stem | None = _setting(
        None, 'first layers of resnets and mobilenet, for images as large as theirs [cifar]'
    )
    width: float | None = _setting(None, 'mobilenet: multiplier of the channels [1.0]')
    remat: bool | None = _setting(
        None, 'compute the inside of blocks again for the gradient: less memory, more time [False]'
    )
    rounds: int = _setting(30, 'rounds of training')
    clients_per_round: int = _setting(5, 'clients sampled a round')
    local_epochs: int = _setting(5, 'epochs over its own examples a client trains in a round')
    batch_size: int = _setting(50, 'examples in a batch of local training')
    learning_rate: float = _setting(0.01, "of the clients' SGD")
    lr_decay: float = _setting(1.0, 'factor on the learning rate after every round')
    momentum: float = _setting(0.9, "of the clients' SGD, reset every round")
    weight_decay: float = _setting(1e-5, "of the clients' SGD, coupled as in PyTorch")
    aggregation: Aggregation = _setting('size', "clients' weights: by examples held, or uniform")

    seed: int = _setting(0, 'of everything random')
    eval_every: int = _setting(1, 'rounds between evaluations on the test data')
    local_eval_every: int = _setting(
        0, 'rounds between evaluations of all local models of a round; 0 for never'
    )
    measure: str = _setting(
        'none', "comma list of what else is recorded, 'all' or 'none'; 'list' shows all measures"
    )
    confusion_clients: str | None = _setting(
        None, 'comma list of clients whose local models --measure=confusion looks at, too'
    )
    stream: Stream = _setting(
        'auto', "whether a round's images are read in waves of clients; auto where they do not fit"
    )
    precision: Precision = _setting(
        'float32', "of the networks' arithmetic; parameters are always float32"
    )
    conv: Conv = _setting(
        'auto', 'how convolutions are computed; auto chooses for each by device and shape'
    )
    switch_round: int | None = _setting(
        None, 'last round of the first method where two follow each other: fedlmd_tf,fedlmd'
    )
    on_divergence: Divergence = _setting(
        'stop', 'stop with an error, or record the round as failed and end the run'
    )
    devices: str = _setting('all', "how many devices train, or 'all'; a CPU's are its cores")
    lanes: int = _setting(
        0, 'clients that a device trains side by side; 0 chooses by device and sizes'
    )
    target_accuracy: float | None = _setting(
        None, 'test accuracy in 0..1 for which summary.json tells the rounds needed'
    )
    workdir: str | None = _setting(None, 'directory of the records [a new one under runs/]')
    csv: bool = _setting(False, 'metrics.csv too, a row a round')
    tensorboard: bool = _setting(False, 'metrics to WORKDIR/tensorboard, too')
    wandb: bool = _setting(
        False, 'metrics to Weights & Biases, too; WANDB_MODE=offline keeps them in WORKDIR/wandb'
    )


# Fields that are no flags themselves: what methods and partitions of one's own take.
_MAPPINGS = ('hyperparameters', 'partition_settings')

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
    if config.partition not in tuple(PARTITIONS):
        raise ValueError(f'--partition={config.partition} must be one of {", ".join(PARTITIONS)}.')
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
    need('learning_rate', config.learning_rate > 0, 'above 0')
    need('lr_decay', 0 < config.lr_decay <= 1, 'above 0 and at most 1')
    need('momentum', 0 <= config.momentum < 1, 'at least 0 and below 1')
    need('weight_decay', config.weight_decay >= 0, 'at least 0')
    need('seed', config.seed >= 0, 'at least 0')
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


def quiet_libraries() -> None:
    """Show what jaxfed logs, and of libraries only errors, unless --verbosity says otherwise.

    What they tell of missing TPUs, font caches and OpenCV is nothing to the user.
    """
    if not flags.FLAGS['verbosity'].present:
        absl_logging.set_verbosity(absl_logging.ERROR)
        logging.getLogger('jaxfed').setLevel(logging.INFO)


def define_flags(into: flags.FlagValues = flags.FLAGS) -> None:
    """Define one absl flag a field of `Config`, and the flags of all methods' hyper-parameters.

    A hyper-parameter is `--NAME` where that is not a flag of the experiment, and always
    `--METHOD.NAME`.

    Args:
      into: where to define them.
    """
    types = typing.get_type_hints(Config)
    for field in dataclasses.fields(Config):
        if field.name == 'partition':
            names = list(PARTITIONS)  # with any of one's own
            flags.DEFINE_enum(
                field.name, str(field.default), names, field.metadata['help'], flag_values=into
            )
        elif field.name not in _MAPPINGS:
            _define(into, field.name, types[field.name], field.default, field.metadata['help'])
    flags.DEFINE_bool(
        'compilation_cache',
        True,
        'keep compiled programs in ~/.cache/jaxfed for the next start',
        flag_values=into,
    )
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


def _partitions_by_setting() -> dict[str, list[str]]:
    by: dict[str, list[str]] = {}
    for partition in PARTITIONS:
        for name in partition_settings(partition):
            by.setdefault(name, []).append(partition)
    return by


def _define(into: flags.FlagValues, name: str, kind: Any, default: Any, help_: str) -> None:
    literal = next(
        (k for k in (kind, *typing.get_args(kind)) if typing.get_origin(k) is Literal), None
    )
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
    except (flags.Error, OSError) as error:
        raise ValueError(str(error)) from error
    if left:
        raise ValueError(f'unexpected arguments {" ".join(left)}; flags begin with --.')
    return from_flags(own)
