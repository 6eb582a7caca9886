"""A cache of decoded datasets, so that images are decoded once.

A cached dataset is a folder of .npy files. Its images are memory-mapped: only the pages that are
read take memory, and all processes of a machine share them.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.errors import check_memory
from jaxfed.internal.files import cache_folder
from jaxfed.internal.folders import replacing
from jaxfed.internal.logger import LOGGER
from jaxfed.types import Dataset

_DESCRIPTION = 'dataset.json'
_IMAGES = ('x_train', 'x_test')
_LABELS = ('y_train', 'y_test')

# (array name, blocks [b, H, W, channels], number of images) -> all images
Store = Callable[[str, Iterator[np.ndarray], int], np.ndarray]


def decoded(key: str, decode: Callable[[Store], Dataset]) -> Dataset:
    """Reads a dataset from the cache, or decodes it into the cache first; images are read-only.

    If the cache cannot be written, or another user could have written to it, logs a warning and
    decodes the dataset into memory.

    Args:
      key: folder name in the cache; it identifies the content of the dataset.
      decode: makes the dataset. It passes the images to a `Store` block by block, so that they are
        never in memory as a whole.
    """
    dataset = None
    try:
        path = cache_folder(key)
        dataset = read(path)
        if dataset is None:
            with replacing(path) as folder:
                _describe(folder, decode(_to_files(folder)))
            dataset = read(path)
    except OSError as error:
        LOGGER.warning('The cache cannot be used; the next run decodes again: %s.', error)
    return decode(_to_memory) if dataset is None else dataset


def fingerprint(version: int, root: Path, files: Iterable[Path], extra: bytes = b'') -> str:
    """Returns a digest of a version, a folder's path and the name, size and time of its files."""
    digest = hashlib.sha256(f'{version} '.encode() + os.fsencode(root.resolve()) + extra)
    for file in files:
        stat = file.stat()  # array_record pads files to whole blocks, so the size may not change
        # Relative names do not depend on the spelling of `root`; they need not be UTF-8.
        digest.update(os.fsencode(file.relative_to(root)))
        digest.update(f' {stat.st_size} {stat.st_mtime_ns}\n'.encode())
    return digest.hexdigest()[:16]


def read(path: Path) -> Dataset | None:
    """Reads a dataset that `decoded` wrote; returns None if it is missing or damaged."""
    try:
        if not path.exists():
            return None
        description = json.loads((path / _DESCRIPTION).read_text())
        arrays: dict[str, Any] = {}
        for name, expected in description['arrays'].items():
            array = _map(path / f'{name}.npy')
            if list(array.shape) != expected['shape'] or str(array.dtype) != expected['dtype']:
                raise ValueError(f'{name} has shape {array.shape} and dtype {array.dtype}')
            arrays[name] = array if name in _IMAGES else array.copy()
        dataset = Dataset(description['name'], num_classes=description['num_classes'], **arrays)
        _check(dataset)
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        LOGGER.warning('%s is damaged and is written again: %s', path, error)
        return None
    return dataset


def _to_memory(name: str, blocks: Iterator[np.ndarray], count: int) -> np.ndarray:
    """Concatenates the blocks in memory; a `Store`."""
    first = next(blocks)
    check_memory(f'The array {name} of the dataset', count * first[0].nbytes)
    return np.concatenate([first, *blocks])


def _to_files(folder: Path) -> Store:
    """Returns a `Store` that writes .npy files to a folder."""

    def store(name: str, blocks: Iterator[np.ndarray], count: int) -> np.ndarray:
        path = folder / f'{name}.npy'
        # On a full disk, a write raises an OSError; a memory map would kill the process.
        with open(path, 'wb') as file:
            for number, block in enumerate(blocks):
                if number == 0:
                    size = count * block[0].nbytes
                    if size > shutil.disk_usage(folder).free:
                        raise OSError(errno.ENOSPC, f'{name} needs {size} bytes')
                    shape, descr = (count, *block.shape[1:]), block.dtype.str
                    header = {'descr': descr, 'fortran_order': False, 'shape': shape}
                    np.lib.format.write_array_header_2_0(file, header)
                file.write(np.ascontiguousarray(block).data)
        return _map(path)

    return store


def _describe(folder: Path, dataset: Dataset) -> None:
    """Writes labels, users and the description next to the images."""
    fields = ((name, getattr(dataset, name)) for name in (*_IMAGES, *_LABELS, 'users'))
    arrays = {name: array for name, array in fields if array is not None}
    for name in arrays.keys() - set(_IMAGES):
        np.save(folder / f'{name}.npy', arrays[name], allow_pickle=False)
    description = {
        'name': dataset.name,
        'num_classes': dataset.num_classes,
        'arrays': {n: {'shape': a.shape, 'dtype': str(a.dtype)} for n, a in arrays.items()},
    }
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=1))


def _map(path: Path) -> np.ndarray:
    """Returns the memory-mapped array of an .npy file."""
    # A plain array behaves the same in every NumPy function; a memmap does not.
    return np.asarray(np.load(path, mmap_mode='r', allow_pickle=False))


def _check(dataset: Dataset) -> None:
    """Raises a ValueError if the arrays of a dataset do not match."""
    for x, y in (dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test):
        if x.ndim != 4 or y.shape != x.shape[:1] or not y.size:
            raise ValueError(f'images {x.shape} with labels {y.shape}')
        if not 0 <= y.min() <= y.max() < dataset.num_classes:
            raise ValueError(f'labels from {y.min()} to {y.max()}')
    if dataset.users is not None and dataset.users.shape != dataset.y_train.shape:
        raise ValueError(f'users {dataset.users.shape} with labels {dataset.y_train.shape}')
