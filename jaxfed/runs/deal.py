"""Loads a dataset and deals its training examples to the clients."""

from typing import NamedTuple

import numpy as np

from jaxfed.config import Config, partition_values
from jaxfed.data import load_dataset
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.partition import hold_out, label_counts, label_noise, make_partition
from jaxfed.runs import checks
from jaxfed.runs.seeds import seed_of
from jaxfed.types import Dataset


class Dealt(NamedTuple):
    """A dataset and who holds what of its training examples."""

    dataset: Dataset  # with the clients' noisy labels, if they have any
    partition: list[np.ndarray]  # N index arrays, what each client trains on
    auxiliary: np.ndarray  # index array, the server's own examples
    label_counts: np.ndarray  # [N, C] int32, of what the clients train on, as they see it
    personal: list[np.ndarray]  # N index arrays, what each client keeps for testing, true labels


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
    checks.check(config)
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
    parts = make_partition(
        config.partition,
        dataset.y_train[remaining],
        num_clients=config.num_clients,
        seed=seed_of(config, 'partition'),
        users=None if dataset.users is None else dataset.users[remaining],
        **partition_values(config),
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
