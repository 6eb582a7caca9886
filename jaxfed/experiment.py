"""An experiment: its settings checked, its data dealt, its method and network built."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed import config as config_lib
from jaxfed import methods, ops
from jaxfed.config import Config
from jaxfed.data import load_dataset
from jaxfed.data.augment import check_augment, parse_augment
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.devices import check_devices
from jaxfed.method import Method
from jaxfed.models import make_model, with_precision
from jaxfed.partition import (
    hold_out,
    label_counts,
    label_noise,
    make_partition,
    partition_settings,
)
from jaxfed.recording import records, trackers
from jaxfed.round import steps_per_epoch
from jaxfed.types import Dataset, Model


class Dealt(NamedTuple):
    """A dataset and who holds what of its training examples."""

    dataset: Dataset  # with the clients' noisy labels, if they have any
    partition: list[np.ndarray]  # N index arrays, what each client trains on
    auxiliary: np.ndarray  # index array, the server's own examples
    label_counts: np.ndarray  # [N, C] int32, of what the clients train on, as they see it
    personal: list[np.ndarray]  # N index arrays, what each client keeps for testing, true labels


class Experiment(NamedTuple):
    """An experiment that passed every check and has its work directory."""

    config: Config
    parts: list[methods.Part]  # the method's parts and hyper-parameters, empty for one's own
    method: Method
    model: Model
    dealt: Dealt
    workdir: Path


# Separate random streams, so that changing what draws from one leaves the others as they are.
_STREAMS = (
    'partition',
    'cohort',
    'initialisation',
    'batches',
    'auxiliary',
    'label_noise',
    'hold_out',
    'validation',
)


def stream(seed: int, name: str) -> int:
    """The seed of one of the experiment's random streams.

    Args:
      seed: of the experiment.
      name: of the stream, one of `_STREAMS`.

    Returns:
      A 32-bit seed.
    """
    return int(np.random.SeedSequence([seed, _STREAMS.index(name)]).generate_state(1)[0])


def sample_cohort(config: Config, round_: int) -> np.ndarray:
    """The clients of a round, uniformly without replacement.

    Args:
      config: the settings; seed, num_clients and clients_per_round are read.
      round_: number of the round.

    Returns:
      [S] int32 client ids.
    """
    rng = np.random.default_rng([stream(config.seed, 'cohort'), round_])
    chosen = rng.choice(config.num_clients, config.clients_per_round, replace=False)
    return np.sort(chosen).astype(np.int32)


def set_up(config: Config, method: Method | None = None) -> Experiment:
    """Check the settings, load and deal the data, build the method and write config.json.

    Nothing is written before everything else has succeeded.

    Args:
      config: the settings.
      method: a method of one's own, instead of the one that `config.method` names.

    Returns:
      The experiment.

    Raises:
      ValueError: for settings or data that do not do, naming what would.
      OSError: if data cannot be read.
    """
    config_lib.check(config)
    parts = [] if method else methods.resolve(config.method, config.hyperparameters)
    built = method or methods.build(parts, switch_round=config.switch_round)
    augmentations = parse_augment(config.augment)
    check_devices(config.devices)
    trackers.check(config)
    if config.workdir is not None:
        records.check_workdir(Path(config.workdir))
    dealt = deal(config, auxiliary_per_class=built.auxiliary)
    dataset = dealt.dataset
    check_augment(augmentations, dataset.x_train.shape[1:])
    network = make_model(
        config.model,
        input_shape=dataset.x_train.shape[1:],
        num_classes=dataset.num_classes,
        convolution=ops.convolution(None if config.conv == 'auto' else config.conv),
        norm=config.norm,
        stem=config.stem,
        width=config.width,
        remat=config.remat,
    )
    model = with_precision(built.adapt(network), config.precision)
    return Experiment(config, parts, built, model, dealt, records.make_workdir(config, parts))


def deal(config: Config, *, auxiliary_per_class: int = 0) -> Dealt:
    """Load the dataset, set the server's auxiliary data aside and deal the rest to the clients.

    What each client keeps for testing is then taken from its part, and label noise put on what is
    left of it.

    Args:
      config: the settings; of them data, partition, label noise, personal test and seed are read.
      auxiliary_per_class: what the method needs, if the settings do not say.

    Returns:
      The dataset and who holds what of it.

    Raises:
      ValueError: if there is no such dataset, or it cannot be dealt so.
    """
    config_lib.check(config)
    dataset = load_dataset(
        config.dataset, data_dir=config.data_dir, npz=config.npz, path=config.path
    )
    per_class = config.auxiliary_per_class
    if per_class == 0 and auxiliary_per_class:
        raise ValueError(
            f'--auxiliary_per_class=0, but --method={config.method} needs auxiliary data on the '
            f'server; leave the flag out for {auxiliary_per_class} examples a class.'
        )
    dataset, training = hold_out_validation(dataset, config)
    auxiliary, remaining = split_auxiliary(
        dataset.y_train[training],
        per_class=auxiliary_per_class if per_class is None else per_class,
        num_classes=dataset.num_classes,
        seed=stream(config.seed, 'auxiliary'),
    )
    auxiliary, remaining = training[auxiliary], training[remaining]
    own = partition_settings(config.partition)
    parts = make_partition(
        config.partition,
        dataset.y_train[remaining],
        num_clients=config.num_clients,
        seed=stream(config.seed, 'partition'),
        users=None if dataset.users is None else dataset.users[remaining],
        **{name: getattr(config, name) for name in own if hasattr(config, name)},
        **config.partition_settings,
    )
    partition, personal = hold_out(
        [remaining[part] for part in parts],
        dataset.y_train,
        share=config.personal_test,
        seed=stream(config.seed, 'hold_out'),
    )
    if config.personal_test and not any(len(part) for part in personal):
        raise ValueError(
            f'--personal_test={config.personal_test} leaves no client an example to test with: '
            f'the largest has {max(len(part) for part in partition)}; raise it.'
        )
    # Partition and held-out examples follow the true labels; training sees the noisy ones.
    noisy = label_noise(
        dataset.y_train,
        partition,
        num_classes=dataset.num_classes,
        rate=config.label_noise,
        form=config.label_noise_form,
        seed=stream(config.seed, 'label_noise'),
    )
    counts = label_counts(noisy, partition, dataset.num_classes)
    return Dealt(dataset._replace(y_train=noisy), partition, auxiliary, counts, personal)


def hold_out_validation(dataset: Dataset, config: Config) -> tuple[Dataset, np.ndarray]:
    """Puts a share of the training data in the place of the test data, if the settings ask for it.

    Args:
      dataset: with its test data.
      config: the settings; validation and seed are read.

    Returns:
      The dataset, and the [m] indices of the examples that are left to train on.

    Raises:
      ValueError: if the share has no example.
    """
    every = np.arange(len(dataset.y_train))
    if not config.validation:
        return dataset, every
    (training,), (held,) = hold_out(
        [every],
        dataset.y_train,
        share=config.validation,
        seed=stream(config.seed, 'validation'),
    )
    if not held.size:
        raise ValueError(
            f'--validation={config.validation} is no example of {every.size}; raise it.'
        )
    x, y = dataset.x_train[held], dataset.y_train[held]
    return dataset._replace(x_test=x, y_test=y), training


def client_steps(experiment: Experiment) -> np.ndarray:
    """Local steps of every client in a round, K_i = E ceil(n_i / B), as [N] integers."""
    size = np.array([len(part) for part in experiment.dealt.partition])
    config = experiment.config
    return config.local_epochs * steps_per_epoch(size, config.batch_size)
