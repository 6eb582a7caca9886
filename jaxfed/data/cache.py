"""Decoded datasets kept as plain arrays, so that images are decoded once."""

import logging
import os
import pathlib
import tempfile
import zipfile

import numpy as np

from jaxfed.types import Dataset

_log = logging.getLogger(__name__)


def cache_folder() -> pathlib.Path:
    """Returns where jaxfed keeps what can be made again: $JAXFED_CACHE_DIR or ~/.cache/jaxfed."""
    return pathlib.Path(
        os.environ.get('JAXFED_CACHE_DIR') or pathlib.Path('~/.cache/jaxfed').expanduser()
    )


def cache_file(key: str) -> pathlib.Path:
    """Returns where a dataset is kept.

    Args:
      key: names the dataset and changes when it does.

    Returns:
      The path, whether it exists or not.
    """
    return cache_folder() / f'{key}.npz'


def read(path: pathlib.Path) -> Dataset | None:
    """Reads a dataset that `write` wrote.

    Args:
      path: of the file.

    Returns:
      The dataset, or None if the file is missing or damaged (its checksums tell).
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in Dataset._fields}
    except FileNotFoundError:
        return None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        _log.warning('%s is damaged and made again: %s', path, error)
        return None
    name, num_classes = str(arrays.pop('name')), int(arrays.pop('num_classes'))
    return Dataset(name=name, num_classes=num_classes, **arrays)


def write(path: pathlib.Path, dataset: Dataset) -> None:
    """Writes a dataset in one piece: another process sees the whole file or none.

    A folder that cannot be written to is no reason not to train: it is logged.

    Args:
      path: of the file.
      dataset: to keep.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix='.tmp', delete=False) as file:
            temporary = file.name
            np.savez(file, allow_pickle=False, **dataset._asdict())
        os.replace(temporary, path)
    except OSError as error:
        _log.warning('%s cannot be written, images are decoded again next time: %s', path, error)
        if temporary and os.path.exists(temporary):
            os.remove(temporary)
