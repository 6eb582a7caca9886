"""Loads a dataset and deals the training examples to the clients."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.config import Config, partition_values
from jaxfed.data import Columns, load_dataset
from jaxfed.data.arrays import ARRAYS
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.internal.digest import digest
from jaxfed.partition import hold_out, label_counts, label_noise, long_tail, make_partition
from jaxfed.runs.attack import flip_labels
from jaxfed.runs.seeds import seed_of
from jaxfed.types import Dataset

MOST_HASHED = 1 << 28  # bytes of an array, 0.4 s; larger ones may be memory-mapped


class Dealt(NamedTuple):
    """A dataset and the partition of its training examples; index arrays refer to `dataset`."""

    dataset: Dataset  # y_train includes --label_noise and --attack=label_flip
    partition: list[np.ndarray]  # N index arrays, the examples that each client trains on
    auxiliary: np.ndarray  # index array, the server's examples
    label_counts: np.ndarray  # [N, C] int32, of `partition`, label noise included
    size: np.ndarray  # [N], training examples of each client
    personal: list[np.ndarray]  # N index arrays, held-out examples of each client, true labels
    digest: str  # of the partition before --personal_test


def deal(config: Config, dataset: Dataset | None = None, *, auxiliary_per_class: int = 0) -> Dealt:
    """Load the dataset, reserve validation and auxiliary data, and deal the rest to the clients.

    Args:
      config: settings that passed `checks.check`.
      dataset: arrays in memory, used instead of the data that `config.dataset` names.
      auxiliary_per_class: examples that the method needs; --auxiliary_per_class replaces it.
    """
    if dataset is None:
        dataset = load_dataset(
            config.dataset,
            data_dir=config.data_dir,
            npz=config.npz,
            path=config.path,
            columns=columns_of(config),
        )
    per_class = config.auxiliary_per_class
    if per_class == 0 and auxiliary_per_class:
        raise ValueError(
            f'--auxiliary_per_class=0, but --method={config.method} needs auxiliary data on the '
            f'server; omit the flag to use {auxiliary_per_class} examples a class.'
        )
    dataset, training = hold_out_validation(dataset, config)
    split = split_auxiliary(
        dataset.y_train[training],
        per_class=auxiliary_per_class if per_class is None else per_class,
        num_classes=dataset.num_classes,
        seed=seed_of(config, 'auxiliary'),
    )
    auxiliary, remaining = (training[places] for places in split)
    parts = deal_to_clients(config, dataset, remaining)
    partition, personal = hold_out(
        parts,
        dataset.y_train,
        share=config.personal_test,
        seed=seed_of(config, 'hold_out'),
    )
    if config.personal_test and not any(len(part) for part in personal):
        raise ValueError(
            f'--personal_test={config.personal_test} holds out no example of any client: the '
            f'largest has {max(len(part) for part in partition)} examples; raise it.'
        )
    # Partition and held-out examples use the true labels, training the noisy ones.
    noisy = label_noise(
        dataset.y_train,
        partition,
        num_classes=dataset.num_classes,
        rate=config.label_noise,
        form=config.label_noise_form,
        seed=seed_of(config, 'label_noise'),
    )
    noisy = flip_labels(config, noisy, partition, dataset.num_classes)
    counts = label_counts(noisy, partition, dataset.num_classes)
    return Dealt(
        dataset._replace(y_train=noisy),
        partition,
        auxiliary,
        counts,
        counts.sum(axis=1),
        personal,
        partition_digest(parts),
    )


def deal_to_clients(config: Config, dataset: Dataset, examples: np.ndarray) -> list[np.ndarray]:
    """Deal what `--imbalance` leaves of the examples to the clients."""
    kept = examples[
        long_tail(
            dataset.y_train[examples],
            num_classes=dataset.num_classes,
            imbalance=config.imbalance,
            seed=seed_of(config, 'imbalance'),
        )
    ]
    try:
        parts = make_partition(
            config.partition,
            dataset.y_train[kept],
            num_clients=config.num_clients,
            seed=seed_of(config, 'partition'),
            users=None if dataset.users is None else dataset.users[kept],
            dealt=np.isin(np.arange(len(dataset.y_train)), kept),
            **partition_values(config),
        )
    except ValueError as error:
        # Others are not about too few examples.
        few = config.imbalance > 1 or config.num_clients > kept.size
        if kept.size == len(dataset.y_train) or not few:
            raise
        left = (
            f'{kept.size} of {len(dataset.y_train)} training examples are left after --validation, '
            'the examples of the server and --imbalance'
        )
        raise ValueError(f'{str(error).rstrip(".")}; {left}.') from error
    return [np.sort(kept[part]) for part in parts]  # a file may have any order


def columns_of(config: Config) -> Columns:
    """The columns of --dataset=hf:NAME."""
    return Columns(config.image_column, config.label_column, config.user_column)


def partition_digest(parts: Sequence[np.ndarray]) -> str:
    """A digest of the examples of each client, which do not depend on the images."""
    sizes = np.array([len(part) for part in parts], np.int64)
    return digest({'sizes': sizes, 'indices': np.concatenate(parts).astype(np.int64)})


def data_digest(dataset: Dataset, known: dict[int, str]) -> str:
    """A digest of images and labels.

    Args:
      dataset: of an experiment.
      known: id of an array -> its digest, for experiments that share arrays; filled by this.
    """
    for array in (arrays := [getattr(dataset, name) for name in ARRAYS]):
        if id(array) not in known:
            known[id(array)] = digest({'': array}, most=MOST_HASHED)
    return hashlib.blake2b(
        ' '.join(known[id(array)] for array in arrays).encode(), digest_size=16
    ).hexdigest()


def hold_out_validation(dataset: Dataset, config: Config) -> tuple[Dataset, np.ndarray]:
    """Replace the test data by --validation of the training data; return the other indices.

    `x_train` keeps all images, so normalisation does not depend on --validation.
    """
    indices = np.arange(len(dataset.y_train))
    if not config.validation:
        return dataset, indices
    (training,), (held_out,) = hold_out(
        [indices], dataset.y_train, share=config.validation, seed=seed_of(config, 'validation')
    )
    if not held_out.size:
        raise ValueError(
            f'--validation={config.validation} holds out none of {indices.size} examples; raise it.'
        )
    x, y = dataset.x_train[held_out], dataset.y_train[held_out]
    return dataset._replace(x_test=x, y_test=y), training


def padded(parts: Sequence[np.ndarray], count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Stack index arrays as zero-padded rows [count, length], with a mask of the real entries."""
    rows = np.zeros((count, length), np.int64)
    mask = np.zeros(rows.shape, bool)
    for place, part in enumerate(parts):
        rows[place, : len(part)], mask[place, : len(part)] = part, True
    return rows, mask
