"""An experiment: its settings checked, its data dealt, its method and network built."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxfed import config as config_lib
from jaxfed import hosts, methods, ops
from jaxfed.cohorts import draw_cohort
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
from jaxfed.types import Cohort, Dataset, Model


class Dealt(NamedTuple):
    """A dataset and who holds what of its training examples."""

    dataset: Dataset  # with the clients' noisy labels, if they have any
    partition: list[np.ndarray]  # N index arrays, what each client trains on
    auxiliary: np.ndarray  # index array, the server's own examples
    label_counts: np.ndarray  # [N, C] int32, of what the clients train on, as they see it
    personal: list[np.ndarray]  # N index arrays, what each client keeps for testing, true labels


class Experiment(NamedTuple):
    """An experiment that passed every check."""

    config: Config
    parts: list[methods.Part]  # the method's parts and hyper-parameters, empty for one's own
    method: Method
    model: Model
    dealt: Dealt
    workdir: Path  # made by `set_up`


# Separate random streams, so that changing what draws from one leaves the others as they are, and
# the setting that each one's seed is read from where it is given.
_STREAMS = {
    'partition': 'partition_seed',
    'cohort': 'cohort_seed',
    'initialisation': 'init_seed',
    'batches': 'batch_seed',
    'auxiliary': 'partition_seed',
    'label_noise': 'partition_seed',
    'hold_out': 'partition_seed',
    'validation': 'partition_seed',
    'availability': 'cohort_seed',
}


def stream(seed: int, name: str) -> int:
    """The seed of one of an experiment's random streams.

    Args:
      seed: of the experiment, or of what the stream belongs to.
      name: of the stream, one of `_STREAMS`.

    Returns:
      A 32-bit seed.
    """
    return int(np.random.SeedSequence([seed, list(_STREAMS).index(name)]).generate_state(1)[0])


def seed_of(config: Config, name: str) -> int:
    """The seed of one of the random streams of an experiment with these settings.

    Args:
      config: the settings; of them the seeds are read.
      name: as in `stream`.

    Returns:
      A 32-bit seed.
    """
    own: int | None = getattr(config, _STREAMS[name])
    return stream(config.seed if own is None else own, name)


def sample_cohort(config: Config, size: np.ndarray, round_: int) -> Cohort:
    """The clients of a round, and what becomes of them.

    Args:
      config: the settings.
      size: [N] examples of each client.
      round_: number of the round.

    Returns:
      The cohort.
    """
    return draw_cohort(
        round_,
        size,
        clients_per_round=config.clients_per_round,
        local_epochs=config.local_epochs,
        sampling=config.sampling,
        dropout=config.dropout,
        stragglers=config.stragglers,
        over_selection=config.over_selection,
        cohort_seed=seed_of(config, 'cohort'),
        availability_seed=seed_of(config, 'availability'),
    )


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
    experiment = look(config, method)
    made = hosts.from_leader(
        'work directory', lambda: str(records.make_workdir(config, experiment.parts))
    )
    return experiment._replace(workdir=Path(made))


def look(config: Config, method: Method | None = None) -> Experiment:
    """All that `set_up` does but for the work directory, which is not made.

    Args:
      config: as in `set_up`.
      method: as in `set_up`.

    Returns:
      The experiment; its work directory is the one above, where no other is named.

    Raises:
      ValueError: as in `set_up`.
      OSError: as in `set_up`.
    """
    config_lib.check(config)
    hosts.agree(config_lib.shared(config))
    hosts.check(config.clients_per_round, config.lanes)
    parts = [] if method else methods.resolve(config.method, config.hyperparameters)
    built = method or methods.build(parts, switch_round=config.switch_round)
    augmentations = parse_augment(config.augment)
    check_devices(config.devices)
    if hosts.leader():  # who records
        trackers.check(config)
        if config.workdir is not None:
            records.check_workdir(Path(config.workdir), config, parts)
    dealt = deal(config, auxiliary_per_class=built.auxiliary)
    dataset = dealt.dataset
    held = (dataset.y_train, dataset.y_test, *dealt.partition, dataset.x_train, dataset.x_test)
    hosts.agree_on_data(config.dataset, held)
    check_augment(augmentations, dataset.x_train.shape[1:])
    network = make_network(config, dataset.x_train.shape[1:], dataset.num_classes)
    model = with_precision(built.adapt(network), config.precision)
    size = dealt.label_counts.sum(axis=1)
    if not any(sample_cohort(config, size, r).epochs.any() for r in range(1, config.rounds + 1)):
        raise ValueError(
            f'--dropout={config.dropout} loses every client of all --rounds={config.rounds}; lower '
            'it, or train for more rounds.'
        )
    return Experiment(config, parts, built, model, dealt, Path(config.workdir or records.RUNS))


def make_network(
    config: Config,
    input_shape: tuple[int, int, int],
    num_classes: int,
    convolution: ops.Convolution | None = None,
) -> Model:
    """The network that the settings name, before a method adapts it.

    Args:
      config: the settings.
      input_shape: height, width and channels of an image.
      num_classes: C.
      convolution: what to compute convolutions with, instead of what --conv says.

    Returns:
      The network.

    Raises:
      ValueError: if there is no such network, or not with these options or for these images.
    """
    return make_model(
        config.model,
        input_shape=input_shape,
        num_classes=num_classes,
        convolution=convolution or ops.convolution(None if config.conv == 'auto' else config.conv),
        norm=config.norm,
        stem=config.stem,
        width=config.width,
        remat=config.remat,
    )


def deal(config: Config, *, auxiliary_per_class: int = 0) -> Dealt:
    """Load the dataset, set the server's auxiliary data aside and deal the rest to the clients.

    What each client keeps for testing is then taken from its part, and label noise put on what is
    left of it.

    Args:
      config: the settings; of them data, partition, label noise, personal test and seeds are read.
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
        seed=seed_of(config, 'auxiliary'),
    )
    auxiliary, remaining = training[auxiliary], training[remaining]
    own = partition_settings(config.partition)
    parts = make_partition(
        config.partition,
        dataset.y_train[remaining],
        num_clients=config.num_clients,
        seed=seed_of(config, 'partition'),
        users=None if dataset.users is None else dataset.users[remaining],
        **{name: getattr(config, name) for name in own if hasattr(config, name)},
        **config.partition_settings,
    )
    partition, personal = hold_out(
        [remaining[part] for part in parts],
        dataset.y_train,
        share=config.personal_test,
        seed=seed_of(config, 'hold_out'),
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
        seed=seed_of(config, 'label_noise'),
    )
    counts = label_counts(noisy, partition, dataset.num_classes)
    return Dealt(dataset._replace(y_train=noisy), partition, auxiliary, counts, personal)


def hold_out_validation(dataset: Dataset, config: Config) -> tuple[Dataset, np.ndarray]:
    """Puts a share of the training data in the place of the test data, if the settings ask for it.

    Images are still normalised by the statistics of all training images.

    Args:
      dataset: with its test data.
      config: the settings; validation and the seeds are read.

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
        seed=seed_of(config, 'validation'),
    )
    if not held.size:
        raise ValueError(
            f'--validation={config.validation} is no example of {every.size}; raise it.'
        )
    x, y = dataset.x_train[held], dataset.y_train[held]
    return dataset._replace(x_test=x, y_test=y), training


def client_steps(experiment: Experiment) -> np.ndarray:
    """Local steps of every client in a round.

    K_i = E ceil(n_i / B)

    Args:
      experiment: from `set_up`.

    Returns:
      [N] integers.
    """
    size, config = experiment.dealt.label_counts.sum(axis=1), experiment.config
    return config.local_epochs * steps_per_epoch(size, config.batch_size)


def cohort_steps(config: Config, size: np.ndarray, cohort: Cohort) -> np.ndarray:
    """Local steps of the clients of a round.

    Args:
      config: the settings.
      size: [N] examples of each client.
      cohort: of the round.

    Returns:
      [S] integers, 0 for those that are lost.
    """
    return cohort.epochs * steps_per_epoch(size[cohort.clients], config.batch_size)
