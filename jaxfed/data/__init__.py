"""Datasets in host memory, their statistics and splits, and augmentation on the device."""

import os

from jaxfed.data.augment import AUGMENTATIONS, Augment, make_augment, normalise, parse_augment
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.data.digits import load_digits
from jaxfed.data.npz import load_npz
from jaxfed.data.statistics import channel_statistics
from jaxfed.data.tfds import load_tfds
from jaxfed.types import Dataset


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    npz: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Loads a labelled image dataset by name.

    Args:
      name: 'digits' (comes with scikit-learn), 'npz' (a file of arrays), or the name of any image
        classification set of TensorFlow Datasets, such as 'cifar10' or 'emnist/letters'.
      data_dir: folder of the TFDS datasets; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.
      npz: the file, for the name 'npz'.

    Returns:
      The dataset, images in the file's own units.

    Raises:
      ValueError: if the dataset is unknown, missing or malformed, or a file is given for another
        name than 'npz'.
    """
    if (name == 'npz') != (npz is not None):
        raise ValueError(
            f'dataset={name!r} with npz={npz}: --dataset=npz and --npz=FILE go together.'
        )
    if npz is not None:
        return load_npz(npz)
    if name == 'digits':
        return load_digits()
    return load_tfds(name, data_dir)


__all__ = [
    'AUGMENTATIONS',
    'Augment',
    'channel_statistics',
    'load_dataset',
    'make_augment',
    'normalise',
    'parse_augment',
    'split_auxiliary',
]
