"""The settings of an experiment and their command-line flags; the only place that knows absl."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from absl import flags

from jaxfed.models import MODELS, Precision
from jaxfed.models.blocks import Norm, Stem
from jaxfed.partition import NoiseForm

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


# Fields that are no flags themselves: what methods and partitions of one's own take.
_MAPPINGS = ('hyperparameters', 'partition_settings')
