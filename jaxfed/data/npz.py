"""A dataset from one .npz file of arrays."""

import os
import zipfile

import numpy as np

from jaxfed.data.errors import explain_errors
from jaxfed.internal.type_checks import printable
from jaxfed.types import Dataset

_KEYS = ('x_train', 'y_train', 'x_test', 'y_test')
_LARGEST_LABEL = 1_000_000


def load_npz(path: str | os.PathLike[str]) -> Dataset:
    """Loads a dataset from `np.savez(path, x_train=, y_train=, x_test=, y_test=)`.

    Images are [n, H, W] or [n, H, W, channels], uint8 or finite float32; labels are integers [n]
    from 0 on. The number of classes is the largest training label plus one. A class may have no
    examples, but at least half of the classes must have some, so that a stray label is noticed.

    Args:
      path: path of the file.

    Returns:
      The dataset, named by the file's name without its ending.

    Raises:
      ValueError: if the file is missing or unreadable, or an array is not as above.
    """
    arrays = _read_arrays(path)
    for split in ('train', 'test'):
        images, labels = f'x_{split}', f'y_{split}'
        arrays[images] = _checked_images(arrays[images], f'npz={path}', images)
        arrays[labels] = _checked_labels(arrays[labels], f'npz={path}', labels)
        if len(arrays[images]) != len(arrays[labels]):
            raise ValueError(
                f'npz={path} has {len(arrays[images])} images in {images} but '
                f'{len(arrays[labels])} labels in {labels}: store one label an image.'
            )
    train, test = arrays['x_train'], arrays['x_test']
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise ValueError(
            f'npz={path} has images {train.shape[1:]} {train.dtype} in x_train but '
            f'{test.shape[1:]} {test.dtype} in x_test: make shapes and dtypes the same.'
        )
    num_classes = int(arrays['y_train'].max()) + 1
    if arrays['y_test'].max() >= num_classes:
        raise ValueError(
            f'npz={path} has label {arrays["y_test"].max()} in y_test but labels only up to '
            f'{num_classes - 1} in y_train: remove test examples of classes that are not trained.'
        )
    used = np.union1d(arrays['y_train'], arrays['y_test']).size
    if 2 * used < num_classes:
        raise ValueError(
            f'npz={path} has the largest label {num_classes - 1}, but only {used} different '
            f'labels: number the classes 0..{used - 1}, or correct the label if it is wrong.'
        )
    name = os.path.splitext(os.path.basename(path))[0]
    return Dataset(name=name, num_classes=num_classes, **arrays)


def _read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Returns the four arrays of a file, unchecked."""
    if not os.path.isfile(path):
        raise ValueError(f'npz={path} is not a file: give --npz the path of an .npz file.')
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f'npz={path} is not an .npz archive, or was cut short: write it again with '
            f'np.savez(path, {", ".join(f"{key}=..." for key in _KEYS)}).'
        )
    with explain_errors(f'npz={path} cannot be read', 'check its permissions or write it again'):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f'npz={path} is one array and no archive: write it with np.savez.')
    arrays = {}
    with archive:
        missing = [key for key in _KEYS if key not in archive.files]
        if missing:
            raise ValueError(
                f'npz={path} has no {", ".join(missing)}, only '
                f'{printable(", ".join(archive.files)) or "nothing"}: it needs {", ".join(_KEYS)}.'
            )
        for key in _KEYS:
            with explain_errors(
                f'npz={path} has in {key} no plain array that can be read',
                'save numbers that fit into memory, not objects (images of unequal size make an '
                'array of objects), or write it again if it is damaged',
            ):
                arrays[key] = archive[key]
            if not isinstance(arrays[key], np.ndarray):
                raise ValueError(f'npz={path} has in {key} no array: write it with np.savez.')
    return arrays


def _checked_images(array: np.ndarray, where: str, key: str) -> np.ndarray:
    """Returns images as [n, H, W, channels]."""
    if array.ndim not in (3, 4) or not array.size:
        raise ValueError(
            f'{where} has shape {array.shape} in {key}: images are [n, H, W] or '
            '[n, H, W, channels], none of them 0.'
        )
    if array.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"{where} has dtype {array.dtype} in {key}: use .astype('uint8') for pixels 0 to 255, "
            "else .astype('float32')."
        )
    bad = 0 if array.dtype == np.uint8 else np.count_nonzero(~np.isfinite(array))
    if bad:
        raise ValueError(
            f'{where} has {bad} values in {key} that are NaN or infinite: replace them.'
        )
    return array if array.ndim == 4 else array[..., None]


def _checked_labels(array: np.ndarray, where: str, key: str) -> np.ndarray:
    """Returns labels as [n] int32."""
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f'{where} has shape {array.shape} and dtype {array.dtype} in {key}: labels are one '
            'integer an image, [n].'
        )
    if not 0 <= array.min() <= array.max() <= _LARGEST_LABEL:
        labels = f'labels from {array.min()} to {array.max()}'
        raise ValueError(f'{where} has {labels} in {key}: number the classes from 0.')
    return array.astype(np.int32)
