"""The settings of an experiment; the metadata of a field holds every fact about a setting."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from jaxfed.data.feature_shift import FeatureShift
from jaxfed.internal.messages import suggestion
from jaxfed.models import Precision
from jaxfed.models.blocks import Norm, Stem
from jaxfed.models.text import Encoder
from jaxfed.partition import PARTITIONS, NoiseForm, partition_settings

Aggregation = Literal['size', 'uniform']
Schedule = Literal['exponential', 'step', 'cosine']
Attack = Literal['sign_flip', 'gaussian', 'label_flip']
Divergence = Literal['stop', 'record']
Stream = Literal['auto', 'on', 'off']
Conv = Literal['auto', 'grouped', 'unrolled', 'patches', 'fourier', 'blocks']

# What a setting changes: training, its random draws, when the model is evaluated, what is recorded,
# or only how this machine does the work, where results differ by rounding.
Affects = Literal['training', 'randomness', 'evaluation', 'records', 'machine']
# How a compiled program uses a setting: as a constant, so that experiments that share the program
# have the same value; as an argument; or not at all.
InProgram = Literal['constant', 'argument', 'absent']


class Range(NamedTuple):
    """The valid values of a number."""

    holds: Callable[[float], bool]
    text: str  # completes 'must be ...'


class Setting(NamedTuple):
    """The metadata of a field of `Config`."""

    help: str  # --help shows it up to its first ';'
    group: str  # heading in --help, one of `GROUPS`
    range: Range | None = None  # of a number; None is always valid
    registry: str | None = None  # 'module:NAME' of the mapping whose keys are the choices
    affects: Affects = 'training'
    in_program: InProgram = 'constant'
    describes_network: bool = False  # whether the network cannot be rebuilt without it
    local_path: bool = False  # whether it is a path, which may differ between hosts
    searched: bool = False  # whether it is a choice, not the problem, as experiments.search needs


AT_LEAST_0 = Range(lambda value: value >= 0, 'at least 0')
AT_LEAST_1 = Range(lambda value: value >= 1, 'at least 1')
POSITIVE = Range(lambda value: value > 0, 'positive')
FROM_0_TO_1 = Range(lambda value: 0 <= value <= 1, 'from 0 to 1')
BELOW_1 = Range(lambda value: 0 <= value < 1, 'at least 0 and below 1')
SHARE = Range(lambda value: 0 < value <= 1, 'above 0 and at most 1')


def _or_zero(meaning: str) -> Range:
    return Range(AT_LEAST_0.holds, f'at least 1, or 0 {meaning}')


def _setting(default: Any, help_: str, range_: Range | None = None, **facts: Any) -> Any:
    setting = Setting(help_, range=range_, **facts)
    return dataclasses.field(default=default, metadata={'setting': setting})


_method = functools.partial(_setting, group='method')
_data = functools.partial(_setting, group='data and seed')
_seed = functools.partial(_data, range_=AT_LEAST_0, affects='randomness', in_program='absent')
_partition = functools.partial(_setting, group='partition', in_program='absent')
_clients = functools.partial(_setting, group='rounds and clients')
_training = functools.partial(_setting, group='local training', searched=True)
_network = functools.partial(_setting, group='network', describes_network=True)
_record = functools.partial(_setting, group='evaluation and records', affects='records')
_machine = functools.partial(_setting, group='machine', affects='machine')


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python, a path as text."""
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that determines an experiment; every field but the two mappings is a flag."""

    if not TYPE_CHECKING:

        def __new__(cls, *arguments: Any, **settings: Any) -> Self:
            """Raise a TypeError in one line for a name that is not a setting."""
            fields = [field.name for field in dataclasses.fields(cls)]
            for name in settings.keys() - fields:
                partition = settings.get('partition')
                own = partition in PARTITIONS and name in partition_settings(partition)
                what, mapping = 'Hyper-parameters of the method', 'hyperparameters'
                if own:
                    what, mapping = f'Settings of {partition}', 'partition_settings'
                raise TypeError(
                    f'Config has no setting {name}{suggestion(name, fields)} {what} are set as '
                    f'{mapping}={{{name!r}: {settings[name]!r}}}.'
                )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        """Make NumPy's numbers and paths plain values, as flags are, and expand ~ in paths."""
        for name in FIELDS:
            value = _plain(getattr(self, name))
            if isinstance(value, Mapping):
                value = {key: _plain(v) for key, v in value.items()}
            elif name in PATHS and isinstance(value, str):
                value = os.path.expanduser(value)
            object.__setattr__(self, name, value)

    method: str = _method('fedavg', "federated method, parts joined by '+'; 'list' shows all")
    # By 'NAME' or 'METHOD.NAME'; each is a flag.
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    switch_round: int | None = _method(
        None,
        'last round of the first of two methods; as in --method=fedlmd_tf,fedlmd',
        searched=True,
    )

    dataset: str = _data(
        'digits',
        'digits, npz, image_folder, hf:NAME or a prepared set; from Hugging Face, TFDS or '
        'jaxfed.data.prepare',
    )
    data_dir: str | None = _data(
        None,
        'prepared sets; their folder [$TFDS_DATA_DIR or ~/tensorflow_datasets]',
        affects='machine',
        local_path=True,
    )
    npz: str | None = _data(
        None, 'file for --dataset=npz; x_train, y_train, x_test, y_test', local_path=True
    )
    path: str | None = _data(
        None,
        'folder for --dataset=image_folder; train/CLASS/ and test/CLASS/ with image files',
        local_path=True,
    )
    image_column: str | None = _data(
        None, 'for --dataset=hf:NAME; column of the inputs [the only one of images or arrays]'
    )
    label_column: str | None = _data(
        None, 'for --dataset=hf:NAME; column of the labels [that of classes, label or labels]'
    )
    user_column: str | None = _data(
        None, 'for --dataset=hf:NAME; column of the owners, for --partition=natural'
    )
    augment: str = _data('none', "list of crop or reflect_crop, flip, cutout; 'none'")
    auxiliary_per_class: int | None = _data(
        None,
        "the server's examples per class; taken from the training data [what --method needs]",
        AT_LEAST_0,
    )
    validation: float = _data(
        0.0,
        'share of the training data to evaluate on; it replaces the test data, for choosing '
        'hyper-parameters',
        BELOW_1,
    )
    seed: int = _seed(0, 'seed of all randomness')
    partition_seed: int | None = _seed(
        None, 'seed of the partition, validation and personal test data [--seed]'
    )
    cohort_seed: int | None = _seed(None, 'seed of the sampled clients and their failures [--seed]')
    init_seed: int | None = _seed(None, 'seed of the initial parameters [--seed]')
    batch_seed: int | None = _seed(None, 'seed of batches, augmentation and other noise [--seed]')

    partition: str = _partition(
        'dirichlet', 'how clients receive examples', registry='jaxfed.partition:PARTITIONS'
    )
    # Settings of a user's partition that are not fields; each is a flag.
    partition_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alpha: float = _partition(0.1, 'Dirichlet concentration; small values are skewed', POSITIVE)
    size_alpha: float = _partition(
        0.5, "quantity: concentration of the clients' sizes; small values are skewed", POSITIVE
    )
    min_size: int = _partition(
        10, 'fewest examples of a client; Dirichlet of classes, quantity', AT_LEAST_1
    )
    balanced: bool = _partition(
        False, 'dirichlet: no further class after n/N examples; such a client is full'
    )
    shards_per_client: int = _partition(
        2, 'sharding, fedntd_sharding: shards per client; one class each', AT_LEAST_1
    )
    labels_per_client: int = _partition(
        2, 'label_quantity, extended_dirichlet: classes a client', AT_LEAST_1
    )
    num_users: int = _partition(
        0, 'natural: number of users, drawn at random; 0 for all', _or_zero('for all')
    )
    min_user_size: int = _partition(1, 'natural: fewest examples of a user', AT_LEAST_1)
    partition_file: str | None = _partition(
        None, 'file: JSON or NPZ file of the examples of each client', local_path=True
    )
    num_clients: int = _partition(20, 'number of clients', AT_LEAST_1, in_program='constant')
    imbalance: float = _partition(
        1.0, 'examples of class 0 for each one of the last; sizes of classes fall exponentially',
        AT_LEAST_1,
    )  # fmt: skip
    label_noise: float = _partition(
        0.0, 'probability of a wrong training label; at the clients', FROM_0_TO_1
    )
    label_noise_form: NoiseForm = _partition(
        'equal', 'rate of the clients; --label_noise for all, or uniform from 0 to --label_noise'
    )
    feature_shift: FeatureShift = _partition(
        'none', "how the clients' images differ; by client, from least to most",
        in_program='constant',
    )  # fmt: skip
    shift_strength: float | None = _partition(
        None, 'degrees, share or pixels at the last client [45, 0.5, 1]',
        in_program='constant',
    )  # fmt: skip
    personal_test: float = _partition(
        0.0,
        "share of a client's examples kept for testing; 0 for none",
        BELOW_1,
        in_program='constant',
    )

    rounds: int = _clients(30, 'rounds of training', AT_LEAST_1)
    clients_per_round: int = _clients(5, 'clients sampled per round', AT_LEAST_1, searched=True)
    sampling: str = _clients(
        'uniform',
        'choice of clients; uniform, by size, in turn, or by the round alone',
        registry='jaxfed.engine.cohorts:SAMPLINGS',
        in_program='absent',
    )
    aggregation: Aggregation = _clients(
        'size', "clients' weights; by number of examples, or uniform", searched=True
    )
    dropout: float = _clients(
        0.0, 'probability that a client fails; its update is lost', BELOW_1, in_program='argument'
    )
    stragglers: float = _clients(
        0.0,
        'probability that a client is late; it completes some of its --local_epochs',
        FROM_0_TO_1,
        in_program='absent',
    )
    over_selection: float = _clients(
        0.0,
        'share of extra sampled clients; the first --clients_per_round to report count',
        AT_LEAST_0,
        in_program='absent',
    )

    malicious: float = _clients(
        0.0,
        'share of the clients that attack; rounded to whole clients, those with the lowest numbers',
        FROM_0_TO_1,
    )
    attack: Attack = _clients('sign_flip', 'what the clients of --malicious do')
    attack_scale: float = _clients(
        4.0, 'sign_flip, gaussian: size of what they send relative to their update', POSITIVE
    )

    local_epochs: int = _training(5, "passes over a client's examples per round", AT_LEAST_1)
    batch_size: int = _training(50, 'examples in a batch of local training', AT_LEAST_1)
    # Every program takes the learning rate of a round as an argument.
    # A name, or from Python a function of the learning rate, as optax.lion; `simulate` names it.
    optimizer: str | Callable[[Any], Any] = _training(
        'sgd', 'of the clients; starts anew every round',
        registry='jaxfed.engine.optimizers:OPTIMIZERS',
    )  # fmt: skip
    learning_rate: float = _training(
        0.01, 'learning rate of the clients', POSITIVE, in_program='absent'
    )
    schedule: Schedule = _training(
        'exponential', 'how the learning rate falls over the rounds', in_program='absent'
    )
    lr_decay: float = _training(
        1.0,
        'factor of the learning rate after each round; for --schedule=step after --lr_step rounds',
        SHARE,
        in_program='absent',
    )
    lr_step: int | None = _training(
        None, 'for --schedule=step; rounds with the same learning rate', AT_LEAST_1,
        in_program='absent',
    )  # fmt: skip
    warmup_rounds: int = _training(
        0, 'for --schedule=cosine; rounds in which the learning rate rises', AT_LEAST_0,
        in_program='absent',
    )  # fmt: skip
    momentum: float = _training(
        0.9, 'of sgd and nesterov, reset every round', BELOW_1, in_program='argument'
    )
    weight_decay: float = _training(
        1e-5, 'of the clients; coupled as in PyTorch, except adamw', AT_LEAST_0,
        in_program='argument',
    )  # fmt: skip
    clip_norm: float = _training(
        0.0, "largest norm of a step's gradient; 0 for no limit", AT_LEAST_0
    )
    accumulate_steps: int = _training(
        1, 'batches whose mean gradient makes a local step', AT_LEAST_1
    )

    model: str = _network('cnn', 'name of the network', registry='jaxfed.models:MODELS')
    norm: Norm | None = _network(None, 'for resnets, mobilenet, vgg11 [batch]; normalisation')
    stem: Stem | None = _network(
        None, 'for resnets, mobilenet [cifar]; first layers for images of this size'
    )
    width: float | None = _network(None, 'mobilenet: factor on the channels [1.0]')
    encoder: Encoder | None = _network(None, 'text [mean]; what precedes the mean of the tokens')
    remat: bool | None = _network(
        None, 'save memory, take more time [False]; recomputes blocks for the gradient'
    )

    init_from: str | None = _setting(
        None,
        'safetensors file to start from [random parameters]; as model.safetensors of a run',
        group='network',
        in_program='absent',
        local_path=True,
    )

    eval_every: int = _record(
        1, 'rounds between evaluations on the test data', AT_LEAST_1, affects='evaluation'
    )
    local_eval_every: int = _record(
        0,
        'rounds between evaluations of local models; 0 for never',
        _or_zero('for never'),
        affects='evaluation',
    )
    measure: str = _record(
        'none',
        "list of extra measures, 'all' or 'none'; separated by commas; 'list' shows all measures",
    )
    confusion_clients: str | None = _record(
        None, 'clients for --measure=confusion, separated by commas; measures their local models'
    )
    target_accuracy: float | None = _record(
        None,
        'accuracy, above 0, at most 1; summary.json has the first round that reaches it',
        SHARE,
        in_program='absent',
    )
    on_divergence: Divergence = _record('stop', 'raise an error, or record it')
    checkpoint_every: int = _record(
        10,
        'rounds between checkpoints; 0 for one only when interrupted',
        _or_zero('for one only when interrupted'),
        affects='machine',
    )
    keep: int = _record(
        2, 'checkpoints to keep until the run is finished', AT_LEAST_1, affects='machine'
    )
    resume: bool | None = _record(
        None,
        'continue the unfinished run in --workdir [if any]',
        affects='machine',
        in_program='absent',
    )
    workdir: str | None = _record(
        None,
        'directory for the records [a new one in runs/]',
        affects='machine',
        in_program='absent',
    )
    save_clients: bool = _record(
        False,
        'also write clients.safetensors; the parameters that each client keeps',
        affects='machine',
    )
    csv: bool = _record(False, 'also write metrics.csv; a row for each round', affects='machine')
    tensorboard: bool = _record(
        False, 'also write metrics to WORKDIR/tensorboard', affects='machine'
    )
    wandb: bool = _record(
        False,
        'also send metrics to Weights & Biases; WANDB_MODE=offline keeps them in WORKDIR/wandb',
        affects='machine',
    )
    mlflow: bool = _record(
        False,
        'also send metrics to MLflow; in WORKDIR/mlruns or at $MLFLOW_TRACKING_URI',
        affects='machine',
    )

    stream: Stream = _machine(
        'auto', 'send images in waves of clients; auto if they do not fit into memory'
    )
    # float32 on every device, so that the numbers of a GPU or TPU compare with those of a CPU.
    precision: Precision = _machine(
        'float32',
        'arithmetic; parameters are always float32',
        affects='training',
        describes_network=True,
    )
    conv: Conv = _machine(
        'auto',
        'algorithm of convolutions; auto chooses by device and shape',
        affects='training',
        describes_network=True,
    )
    devices: str = _machine('all', "number of devices, or 'all'; each core of a CPU is a device")
    lanes: int = _machine(
        0,
        'clients side by side on a device; 0 chooses by device and sizes',
        _or_zero('to choose'),
    )


# Headings of --help, in their order.
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

FIELDS = tuple(field.name for field in dataclasses.fields(Config))
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}
# Every field that is a flag. The two other fields are mappings.
SETTINGS: dict[str, Setting] = {
    field.name: field.metadata['setting']
    for field in dataclasses.fields(Config)
    if 'setting' in field.metadata
}
MAPPINGS = tuple(name for name in FIELDS if name not in SETTINGS)
# What is solved, such as data and network, and not a choice of how.
PROBLEM = tuple(name for name, s in SETTINGS.items() if not s.searched and name != 'method')
PATHS = ('workdir', *(name for name, setting in SETTINGS.items() if setting.local_path))
# The seed of all randomness, then the seeds of its parts, which default to it.
SEEDS = tuple(name for name, setting in SETTINGS.items() if setting.affects == 'randomness')
PART_SEEDS = SEEDS[1:]  # all but --seed: each of one part of the randomness


def settings_that_affect(*what: Affects) -> tuple[str, ...]:
    """Names of the settings with one of these effects."""
    return tuple(name for name, setting in SETTINGS.items() if setting.affects in what)


def unread_settings(partition: str) -> set[str]:
    """The settings of every run that only other partitions read; none if it is not registered."""
    if partition not in PARTITIONS:
        return set()
    read = {name for other in PARTITIONS for name in partition_settings(other)}
    return (read & set(SETTINGS)) - set(partition_settings(partition))


def partition_values(config: Config) -> dict[str, Any]:
    """Name -> value of the settings of the chosen partition.

    Raises:
      ValueError: if the partition has another default for a setting of every run.
    """
    parameters = partition_settings(config.partition)
    fields = [name for name in parameters if name in SETTINGS]
    for name in fields:
        own = parameters[name].default
        if own not in (inspect.Parameter.empty, DEFAULTS[name]):
            raise ValueError(
                f"PARTITIONS['{config.partition}']: its parameter {name} is the setting --{name}, "
                f'whose default is {DEFAULTS[name]}, got {own}; rename it, or remove its default.'
            )
    return {name: getattr(config, name) for name in fields} | {**config.partition_settings}
