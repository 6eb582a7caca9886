"""Datasets, their statistics and splits, and augmentation on the device.

To add a dataset that TensorFlow Datasets has: nothing, `--dataset=NAME` reads it. One with an
official archive: write `prepare/NAME.py` with a `Recipe`, which says how its examples are read, and
list it in `prepare.RECIPES`; `python -m jaxfed.data.prepare NAME` then stores it. Any other source:
write a module with a function that returns a `Dataset`, and call it in `load_dataset`.
"""

import os

from jaxfed.data.augment import AUGMENTATIONS, Augment, make_augment, normalise, parse_augment
from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.data.digits import load_digits
from jaxfed.data.image_folder import load_image_folder
from jaxfed.data.npz import load_npz
from jaxfed.data.statistics import channel_statistics
from jaxfed.data.tfds import load_tfds
from jaxfed.types import Dataset

Path = str | os.PathLike[str]


def load_dataset(
    name: str, *, data_dir: Path | None = None, npz: Path | None = None, path: Path | None = None
) -> Dataset:
    """Loads a labelled image dataset by name.

    Args:
      name: 'digits' (comes with scikit-learn), 'npz' (a file of arrays), 'image_folder' (folders
        of image files), the name of an image classification dataset of TensorFlow Datasets, such
        as 'cifar10' or 'emnist/letters', or of one that `jaxfed.data.prepare` has prepared.
      data_dir: folder of the TFDS datasets; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.
      npz: the file, for the name 'npz'.
      path: the folder, for the name 'image_folder'.

    Returns:
      The dataset; its images are in the units of the source and may be read-only.

    Raises:
      ValueError: if the dataset is unknown, missing or malformed, or its name does not go
        together with the file or folder.
    """
    check_source(name, npz=npz, path=path)
    if npz is not None:
        return load_npz(npz)
    if path is not None:
        return load_image_folder(path)
    if name == 'digits':
        return load_digits()
    return load_tfds(name, data_dir)


def check_source(name: str, *, npz: Path | None, path: Path | None) -> None:
    """Raises a ValueError if a dataset's name and its file or folder do not go together."""
    for reader, flag, value in ('npz', '--npz', npz), ('image_folder', '--path', path):
        if (name == reader) != (value is not None):
            raise ValueError(
                f'--dataset={name} and {flag}={value}: give both --dataset={reader} and '
                f'{flag}={"FILE" if reader == "npz" else "DIR"}, or neither.'
            )


__all__ = [
    'AUGMENTATIONS',
    'Augment',
    'channel_statistics',
    'check_source',
    'load_dataset',
    'make_augment',
    'normalise',
    'parse_augment',
    'split_auxiliary',
]
