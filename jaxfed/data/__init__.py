"""Datasets, their statistics and splits, and augmentation on the device."""

import os

from jaxfed.data.augment import AUGMENTATIONS, Augment, make_augment, normalise, parse_augment
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.data.digits import load_digits
from jaxfed.data.image_folder import load_image_folder
from jaxfed.data.npz import load_npz
from jaxfed.data.statistics import channel_statistics
from jaxfed.data.tfds import load_tfds
from jaxfed.types import Dataset


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    npz: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Loads a labelled image dataset by name.

    Args:
      name: 'digits' (comes with scikit-learn), 'npz' (a file of arrays), 'image_folder' (folders
        of image files), or the name of any image classification set of TensorFlow Datasets, such
        as 'cifar10' or 'emnist/letters', or of one that `jaxfed.data.prepare` has prepared.
      data_dir: folder of the TFDS datasets; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.
      npz: the file, for the name 'npz'.
      path: the folder, for the name 'image_folder'.

    Returns:
      The dataset, images in the file's own units and perhaps read-only.

    Raises:
      ValueError: if the dataset is unknown, missing or malformed, or a file or folder is given for
        a name that does not read it.
    """
    if (name == 'npz') != (npz is not None):
        raise ValueError(
            f'dataset={name!r} with npz={npz}: --dataset=npz and --npz=FILE go together.'
        )
    if (name == 'image_folder') != (path is not None):
        raise ValueError(
            f'dataset={name!r} with path={path}: --dataset=image_folder and --path=DIR go together.'
        )
    if npz is not None:
        return load_npz(npz)
    if path is not None:
        return load_image_folder(path)
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
