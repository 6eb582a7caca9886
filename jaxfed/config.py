"""The settings of an experiment and their command-line flags; the only place that knows absl."""

import dataclasses
import logging
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from absl import flags
from absl import logging as absl_logging

from jaxfed import methods, usage
from jaxfed.cohorts import candidates
from jaxfed.metrics.measures import MEASURES, parse_clients, parse_measures
from jaxfed.models import MODELS, Precision
from jaxfed.models.blocks import Norm, Stem
from jaxfed.partition import PARTITIONS, NoiseForm, partition_settings
from jaxfed.sampling import SAMPLINGS
from jaxfed.values import check_value, printable

Aggregation = Literal['size', 'uniform']
Divergence = Literal['stop', 'record']
Stream = Literal['auto', 'on', 'off']
Conv = Literal['auto', 'grouped', 'unrolled', 'patches', 'fourier', 'blocks']

# The flags are then the calling program's own, which are those that absl's --help shows.
flags.disclaim_key_flags()


def _setting(default: Any, help_: str, group: str | None = None) -> Any:
    # Without a group a setting belongs to that of the one before it. --help shows the help up to
    # its first ';'.
    return dataclasses.field(default=default, metadata={'help': help_, 'group': group})


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that determines an experiment; every field is a flag of the same name."""

    method: str = _setting(
        'fedavg', "federated method, parts joined by '+'; 'list' shows all", group='method'
    )
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    dataset: str = _setting(
        'digits',
        'digits, npz, image_folder or a prepared set; of TFDS or of jaxfed.data.prepare',
        group='data and seed',
    )
    data_dir: str | None = _setting(
        None, 'of prepared sets; [$TFDS_DATA_DIR or ~/tensorflow_datasets]'
    )
    npz: str | None = _setting(None, 'file for --dataset=npz; x_train, y_train, x_test, y_test')
    path: str | None = _setting(
        None, 'folder for --dataset=image_folder; train/CLASS/ and test/CLASS/ with image files'
    )
    augment: str = _setting('none', "comma list of crop, flip, cutout, or 'none'")
    auxiliary_per_class: int | None = _setting(
        None,
        "the server's own examples a class; taken from the training data [what --method needs]",
    )

    partition: str = _setting('dirichlet', 'how examples are dealt to clients', group='partition')
    partition_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alpha: float = _setting(0.1, 'Dirichlet concentration; small is skewed')
    size_alpha: float = _setting(
        0.5, "quantity: concentration of the clients' sizes; Dirichlet, small is skewed"
    )
    min_size: int = _setting(10, 'Dirichlet and quantity: fewest examples of a client')
    balanced: bool = _setting(
        False, 'Dirichlet: no more of any class to a client with n/N examples'
    )
    shards_per_client: int = _setting(2, 'sharding: shards (about: classes) a client')
    labels_per_client: int = _setting(2, 'label_quantity, extended_dirichlet: classes a client')
    num_users: int = _setting(0, 'natural: users that take part; drawn at random, 0 for all')
    min_user_size: int = _setting(1, 'natural: fewest examples of a user that takes part')
    num_clients: int = _setting(20, 'clients in all')
    sampling: str = _setting(
        'uniform',
        "of a round's clients; uniform, by size, or in turn",
        group='rounds and clients',
    )
    dropout: float = _setting(0.0, 'probability that a client fails; its update is lost')
    stragglers: float = _setting(
        0.0, 'probability that a client is late; it gets only some of its --local_epochs done'
    )
    over_selection: float = _setting(
        0.0,
        'clients sampled in reserve, as a share; of --clients_per_round, of which the first stay',
    )
    label_noise: float = _setting(
        0.0,
        'probability that a training label is wrong; another class, at the clients',
        group='partition',
    )
    label_noise_form: NoiseForm = _setting(
        'equal',
        "over clients; every client's probability is --label_noise, or uniform from 0 to that",
    )
    validation: float = _setting(
        0.0,
        'share of the training data to evaluate on; it is taken out of it, and the test data is '
        'not looked at: for choosing hyper-parameters',
        group='data and seed',
    )
    personal_test: float = _setting(
        0.0,
        "share of a client's examples kept for testing; 0 for none",
        group='partition',
    )

    model: str = _setting('cnn', 'network; ' + ', '.join(MODELS), group='network')
    norm: Norm | None = _setting(None, 'of resnets, mobilenet, vgg11 [batch]; normalisation')
    stem: Stem | None = _setting(
        None, 'first layers of resnets, mobilenet [cifar]; for images as large as theirs'
    )
    width: float | None = _setting(None, 'mobilenet: multiplier of the channels [1.0]')
    remat: bool | None = _setting(
        None, 'less memory, more time [False]; computes the inside of blocks again for the gradient'
    )
    rounds: int = _setting(30, 'rounds of training', group='rounds and clients')
    clients_per_round: int = _setting(5, 'clients sampled a round')
    local_epochs: int = _setting(
        5, 'epochs of a client in a round; over its own examples', group='local training'
    )
    batch_size: int = _setting(50, 'examples in a batch of local training')
    learning_rate: float = _setting(0.01, "of the clients' SGD")
    lr_decay: float = _setting(1.0, 'factor on the learning rate after every round')
    momentum: float = _setting(0.9, "of the clients' SGD, reset every round")
    weight_decay: float = _setting(1e-5, "of the clients' SGD, coupled as in PyTorch")
    aggregation: Aggregation = _setting(
        'size', "clients' weights; by examples held, or uniform", group='rounds and clients'
    )

    seed: int = _setting(0, 'of everything random', group='data and seed')
    partition_seed: int | None = _setting(None, 'of who holds what data, test data kept [--seed]')
    cohort_seed: int | None = _setting(None, "of the rounds' clients and their failures [--seed]")
    init_seed: int | None = _setting(None, 'of the first parameters [--seed]')
    batch_seed: int | None = _setting(None, 'of batches and augmentation [--seed]')
    eval_every: int = _setting(
        1, 'rounds between evaluations on the test data', group='evaluation and records'
    )
    local_eval_every: int = _setting(
        0, 'rounds between evaluations of local models; of all of a round, 0 for never'
    )
    measure: str = _setting(
        'none', "comma list of what else is recorded, 'all' or 'none'; 'list' shows all measures"
    )
    confusion_clients: str | None = _setting(
        None, 'comma list of clients whose local models --measure=confusion looks at, too'
    )
    stream: Stream = _setting(
        'auto',
        'images in waves of clients; auto where they do not fit into memory',
        group='machine',
    )
    precision: Precision = _setting('float32', 'of arithmetic; parameters are always float32')
    conv: Conv = _setting(
        'auto', 'how to compute convolutions; auto chooses for each by device and shape'
    )
    switch_round: int | None = _setting(
        None,
        'last round of the first of two methods; as in --method=fedlmd_tf,fedlmd',
        group='method',
    )
    on_divergence: Divergence = _setting(
        'stop',
        'end with an error, or a record; of the failed round',
        group='evaluation and records',
    )
    devices: str = _setting(
        'all', "how many train, or 'all'; a CPU's are its cores", group='machine'
    )
    lanes: int = _setting(0, 'clients side by side on a device; 0 chooses by device and sizes')
    checkpoint_every: int = _setting(
        10,
        'rounds between checkpoints, to resume from; 0 for none, but when interrupted',
        group='evaluation and records',
    )
    keep: int = _setting(2, 'checkpoints kept until the run is finished')
    resume: bool | None = _setting(None, 'go on with the unfinished run in --workdir [if any]')
    target_accuracy: float | None = _setting(
        None,
        'in 0..1, to tell the rounds needed for it; in summary.json',
        group='evaluation and records',
    )
    workdir: str | None = _setting(None, 'directory of the records [a new one under runs/]')
    csv: bool = _setting(False, 'metrics.csv too, a row a round')
    tensorboard: bool = _setting(False, 'metrics to WORKDIR/tensorboard, too')
    wandb: bool = _setting(
        False, 'metrics to Weights & Biases, too; WANDB_MODE=offline keeps them in WORKDIR/wandb'
    )


# The order of --help.
GROUPS = (
    'method',
    'data and seed',
    'partition',
    'rounds and clients',
    'local training',
    'network',
    'evaluation and records',
    'sweep',
    'machine',
)

# The seed of everything random, and those of its parts, which are it where they are not given.
SEEDS = ('seed', 'partition_seed', 'cohort_seed', 'init_seed', 'batch_seed')

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

# Fields that are no flags themselves: what methods and partitions of one's own take.
_MAPPINGS = ('hyperparameters', 'partition_settings')

# Fields that name an entry of these, which may be one's own.
_REGISTRIES: dict[str, Mapping[str, Any]] = {'partition': PARTITIONS, 'sampling': SAMPLINGS}

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


def quiet_libraries() -> None:
    """Show what jaxfed logs, and of libraries only errors, unless --verbosity says otherwise.

    What they tell of missing TPUs, font caches and OpenCV is nothing to the user.
    """
    if not flags.FLAGS['verbosity'].present:
        absl_logging.set_verbosity(absl_logging.ERROR)
        logging.getLogger('jaxfed').setLevel(logging.INFO)


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
        usage.define_help({group: shown[group] for group in groups}, [*set(into) - before])


def help_rows() -> dict[str, list[usage.Row]]:
    """What --help tells of each setting, by purpose."""
    rows: dict[str, list[usage.Row]] = {group: [] for group in GROUPS}
    types = typing.get_type_hints(Config)
    group = GROUPS[0]
    for field in dataclasses.fields(Config):
        if field.name in _MAPPINGS:
            continue
        group = field.metadata['group'] or group
        literal = _literal(types[field.name])
        named = {**_REGISTRIES, 'model': MODELS}.get(field.name)
        choices = tuple(named) if named else typing.get_args(literal)
        rows[group].append(usage.Row(field.name, field.metadata['help'], field.default, choices))
    rows['sweep'] = [usage.Row(name, text, given) for name, (given, text) in _SWEEP.items()]
    rows['machine'] += [usage.Row(name, text, given) for name, (given, text) in _COMMAND.items()]
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
        print(f'error: {usage.what_is_wrong(error, flags.FLAGS)}', file=sys.stderr)
        sys.exit(2)


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
        raise ValueError(printable(usage.what_is_wrong(error, own))) from error
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
