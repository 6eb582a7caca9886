"""Decoded datasets kept as plain arrays, so that images are decoded once.

A dataset is a folder of .npy files, whose images are memory-mapped: they take memory where they are
read, and all processes of a machine share it.
"""

import json
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxfed.internal.files import cache_folder
from jaxfed.internal.folders import replacing
from jaxfed.types import Dataset

_log = logging.getLogger(__name__)
_DESCRIPTION = 'dataset.json'
_IMAGES = ('x_train', 'x_test')
_LABELS = ('y_train', 'y_test')

# (name of the array, [b, H, W, channels] blocks of it, how many images in all) -> the whole array
Store = Callable[[str, Iterator[np.ndarray], int], np.ndarray]


def decoded(key: str, decode: Callable[[Store], Dataset]) -> Dataset:
    """Reads a dataset from the cache, decoding it into the cache first where it is not there.

    A folder that cannot be written to is no reason not to train: that is logged, and the dataset
    is decoded into memory.

    Args:
      key: names the dataset and changes when it does.
      decode: makes the dataset; it hands its images to the function it is given, block by block,
        so that they are never in memory as a whole.

    Returns:
      The dataset, its images read-only.
    """
    path = cache_folder() / key
    dataset = read(path)
    if dataset is not None:
        return dataset
    try:
        with replacing(path) as folder:
            _describe(folder, decode(_to_files(folder)))
        dataset = read(path)
    except OSError as error:
        _log.warning('%s cannot be written, images are decoded again next time: %s', path, error)
    return decode(_to_memory) if dataset is None else dataset


def read(path: pathlib.Path) -> Dataset | None:
    """Reads a dataset that `decoded` wrote.

    Args:
      path: of its folder.

    Returns:
      The dataset, or None if there is none or it is damaged.
    """
    try:
        description = json.loads((path / _DESCRIPTION).read_text())
        arrays = {
            name: _read_array(path / f'{name}.npy', expected, mapped=name in _IMAGES)
            for name, expected in description['arrays'].items()
        }
        dataset = Dataset(description['name'], num_classes=description['num_classes'], **arrays)
        _check(dataset)
    except FileNotFoundError as error:
        if path.exists():
            _log.warning('%s is damaged and made again: %s', path, error)
        return None
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        _log.warning('%s is damaged and made again: %s', path, error)
        return None
    return dataset


def _to_memory(name: str, blocks: Iterator[np.ndarray], count: int) -> np.ndarray:
    """Keeps images in memory, a `Store`."""
    del name, count
    return np.concatenate(list(blocks))


def _to_files(folder: pathlib.Path) -> Store:
    """Returns a `Store` that writes .npy files to a folder."""

    def store(name: str, blocks: Iterator[np.ndarray], count: int) -> np.ndarray:
        path = folder / f'{name}.npy'
        # Written, not mapped: a full disk is then an error that can be told, and no signal.
        with open(path, 'wb') as file:
            for number, block in enumerate(blocks):
                if number == 0:
                    _write_header(file, (count, *block.shape[1:]), block.dtype)
                file.write(np.ascontiguousarray(block).data)
        return _map(path)

    return store


def _write_header(file: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Writes what precedes the elements of an array in an .npy file."""
    header = {
        'descr': np.lib.format.dtype_to_descr(dtype),
        'fortran_order': False,
        'shape': shape,
    }
    np.lib.format.write_array_header_2_0(file, header)


def _describe(folder: pathlib.Path, dataset: Dataset) -> None:
    """Writes labels, users and the description next to the images."""
    arrays = {name: getattr(dataset, name) for name in (*_IMAGES, *_LABELS)}
    if dataset.users is not None:
        arrays['users'] = dataset.users
    for name in arrays.keys() - set(_IMAGES):
        np.save(folder / f'{name}.npy', arrays[name], allow_pickle=False)
    description = {
        'name': dataset.name,
        'num_classes': dataset.num_classes,
        'arrays': {
            name: {'shape': array.shape, 'dtype': str(array.dtype)}
            for name, array in arrays.items()
        },
    }
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1))


def _read_array(path: pathlib.Path, expected: dict[str, Any], *, mapped: bool) -> np.ndarray:
    """Returns an array of the folder, if it is as the description says."""
    array = _map(path) if mapped else np.load(path, allow_pickle=False)
    if list(array.shape) != expected['shape'] or str(array.dtype) != expected['dtype']:
        raise ValueError(f'{path.name} has shape {array.shape} and dtype {array.dtype}')
    return array


def _map(path: pathlib.Path) -> np.ndarray:
    """Returns the array of an .npy file, whose elements are read when they are used."""
    # A plain array on top of the mapping: what takes arrays need not know of mappings.
    return np.asarray(np.load(path, mmap_mode='r', allow_pickle=False))


def _check(dataset: Dataset) -> None:
    """Raises a ValueError if the arrays of a dataset do not belong together."""
    for x, y in (dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test):
        if x.ndim != 4 or y.shape != x.shape[:1] or not y.size:
            raise ValueError(f'images {x.shape} with labels {y.shape}')
        if not 0 <= y.min() <= y.max() < dataset.num_classes:
            raise ValueError(f'labels from {y.min()} to {y.max()}')
    if dataset.users is not None and dataset.users.shape != dataset.y_train.shape:
        raise ValueError(f'users {dataset.users.shape} with labels {dataset.y_train.shape}')
