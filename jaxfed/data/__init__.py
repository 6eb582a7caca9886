"""Datasets, their statistics and splits, and augmentation on the device.

`--dataset=NAME` reads any image classification dataset of TensorFlow Datasets. To add a dataset
with an official archive, write a `Recipe` in `prepare/NAME.py` and list it in `prepare.RECIPES`;
`python -m jaxfed.data.prepare NAME` then stores it. To add any other source, write a module with a
function that returns a `Dataset`, and call it in `load_dataset`.
"""

import os

from jaxfed.data.auxiliary import split_auxiliary
from jaxfed.data.digits import load_digits
from jaxfed.data.huggingface import (
    NO_COLUMNS,
    PREFIX,
    Columns,
    from_huggingface,
    load_huggingface,
)
from jaxfed.data.image_folder import load_image_folder
from jaxfed.data.npz import load_npz
from jaxfed.data.statistics import channel_statistics
from jaxfed.data.tfds import load_tfds
from jaxfed.types import Dataset

Path = str | os.PathLike[str]

ARRAYS_PREFIX = 'arrays/'  # of the names of datasets that a Python program passes as arrays


def load_dataset(
    name: str,
    *,
    data_dir: Path | None = None,
    npz: Path | None = None,
    path: Path | None = None,
    columns: Columns = NO_COLUMNS,
) -> Dataset:
    """Loads a labelled dataset by name.

    Args:
      name: 'digits' (part of scikit-learn), 'npz' (a file of arrays), 'image_folder' (folders of
        image files), 'hf:NAME' (of Hugging Face's library `datasets`), or an image classification
        dataset of TensorFlow Datasets or of `jaxfed.data.prepare`, such as 'cifar10' or
        'emnist/letters'.
      data_dir: folder of the datasets; by default $TFDS_DATA_DIR or ~/tensorflow_datasets, and of
        'hf:NAME' that of the library.
      npz: the file of 'npz'.
      path: the folder of 'image_folder'.
      columns: of 'hf:NAME'.

    Returns:
      The dataset; its images are in the units of the source and may be read-only.

    Raises:
      ValueError: if the dataset is unknown, missing or malformed, or if `npz`, `path` or `columns`
        do not match the name.
    """
    check_source(name, npz=npz, path=path, columns=columns)
    if name.startswith(PREFIX):
        return load_huggingface(name, data_dir, columns)
    if npz is not None:
        return load_npz(npz)
    if path is not None:
        return load_image_folder(path)
    if name == 'digits':
        return load_digits()
    if name.startswith(ARRAYS_PREFIX):
        raise ValueError(
            f'--dataset={name} is in the memory of a Python program; pass the same arrays again, '
            'as in jaxfed.simulate(config, dataset=...).'
        )
    return load_tfds(name, data_dir)


def reads_data_dir(name: str) -> bool:
    """Whether a dataset is in the folder of --data_dir."""
    others = 'digits', 'npz', 'image_folder'
    return name not in others and not name.startswith(ARRAYS_PREFIX)


def check_source(
    name: str, *, npz: Path | None, path: Path | None, columns: Columns = NO_COLUMNS
) -> None:
    """Raises a ValueError if a dataset's name and its file, folder or columns do not match."""
    if name.startswith(PREFIX) and not name.removeprefix(PREFIX).strip():
        raise ValueError(f'--dataset={name} names no dataset; write --dataset={PREFIX}NAME.')
    for field, column in columns._asdict().items():
        if column is not None and not name.startswith((PREFIX, ARRAYS_PREFIX)):
            raise ValueError(
                f'--{field}_column={column} needs --dataset={PREFIX}NAME, got --dataset={name}.'
            )
    for reader, flag, value, kind in (
        ('npz', '--npz', npz, 'FILE'),
        ('image_folder', '--path', path, 'DIR'),
    ):
        if name == reader and value is None:
            raise ValueError(f'--dataset={reader} needs {flag}={kind}.')
        if name != reader and value is not None:
            raise ValueError(f'{flag}={value} needs --dataset={reader}, got --dataset={name}.')


__all__ = [
    'ARRAYS_PREFIX',
    'Columns',
    'channel_statistics',
    'check_source',
    'from_huggingface',
    'load_dataset',
    'reads_data_dir',
    'split_auxiliary',
]
