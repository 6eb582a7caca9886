"""A dataset from one .npz file of arrays."""

import contextlib
import os
import tokenize
import zipfile
from collections.abc import Iterator

import numpy as np

from jaxfed.internal.type_checks import printable
from jaxfed.types import Dataset

_KEYS = ('x_train', 'y_train', 'x_test', 'y_test')


def load_npz(path: str | os.PathLike[str]) -> Dataset:
    """Loads a dataset from `np.savez(path, x_train=, y_train=, x_test=, y_test=)`.

    Images are [n, H, W] or [n, H, W, channels], uint8 or finite float32; labels are integers [n]
    from 0 on. The number of classes is the largest training label plus one; a class may lack
    examples, but at least half of the classes must have some, so that a stray label is noticed.

    Args:
      path: of the file.

    Returns:
      The dataset, named by the file's name without its ending.

    Raises:
      ValueError: if the file is missing or unreadable or an array is not as above.
    """
    if not os.path.isfile(path):
        raise ValueError(f'npz={path} is not a file: give --npz the path of an .npz file.')
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f'npz={path} is not an .npz archive, or was cut short: write it again with '
            f'np.savez(path, {", ".join(f"{key}=..." for key in _KEYS)}).'
        )
    with _reading(path):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f'npz={path} is one array and no archive: write it with np.savez.')
    with archive:
        missing = [key for key in _KEYS if key not in archive.files]
        if missing:
            raise ValueError(
                f'npz={path} has no {", ".join(missing)}, only '
                f'{printable(", ".join(archive.files)) or "nothing"}: it needs {", ".join(_KEYS)}.'
            )
        arrays = {key: _read(archive, key, path) for key in _KEYS}
    for split in ('train', 'test'):
        images, labels = f'x_{split}', f'y_{split}'
        arrays[images] = _checked_images(arrays[images], images, path)
        arrays[labels] = _checked_labels(arrays[labels], labels, path)
        if len(arrays[images]) != len(arrays[labels]):
            raise ValueError(
                f'npz={path} has {len(arrays[images])} images in {images} but '
                f'{len(arrays[labels])} labels in {labels}: there must be one label an image.'
            )
    train, test = arrays['x_train'], arrays['x_test']
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise ValueError(
            f'npz={path} has images {train.shape[1:]} {train.dtype} in x_train but '
            f'{test.shape[1:]} {test.dtype} in x_test: make height, width, channels and dtype '
            'the same.'
        )
    num_classes = int(arrays['y_train'].max()) + 1
    if arrays['y_test'].max() >= num_classes:
        raise ValueError(
            f'npz={path} has label {arrays["y_test"].max()} in y_test but labels only up to '
            f'{num_classes - 1} in y_train: leave out test examples of classes that are not '
            'trained.'
        )
    used = np.union1d(arrays['y_train'], arrays['y_test']).size
    if 2 * used < num_classes:
        raise ValueError(
            f'npz={path} has the largest label {num_classes - 1}, which makes {num_classes} '
            f'classes, but only {used} different labels: number the classes 0..{used - 1}, or '
            'correct the label if it is wrong.'
        )
    name = os.path.splitext(os.path.basename(path))[0]
    return Dataset(name=name, num_classes=num_classes, **arrays)


class _NoArray(ValueError):
    """What an archive holds is no array to train on."""


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns whatever is raised while reading an archive into a ValueError that names it."""
    try:
        yield
    except _NoArray:
        raise
    # BadZipFile, zlib's and lzma's, RuntimeError, NotImplementedError and more, by what is damaged.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f'npz={path} cannot be read ({reason}): check its permissions or write it again.'
        ) from error


def _read(archive: np.lib.npyio.NpzFile, key: str, path: str | os.PathLike[str]) -> np.ndarray:
    """Returns an array of the archive."""
    with _reading(path):
        try:
            array = archive[key]
        except (ValueError, tokenize.TokenError) as error:  # objects, or no header that parses
            reason = str(error).splitlines()[0][:200]
            raise _NoArray(
                f'npz={path} has in {key} no plain array ({reason}): save numbers, not objects '
                '(images of unequal size make an array of objects).'
            ) from error
        except MemoryError as error:
            raise _NoArray(
                f'npz={path} has in {key} more than fits into memory ({error}): make it smaller, '
                'or write it again if it is damaged.'
            ) from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f'npz={path} has in {key} no array: write it with np.savez.')
    return array


def _checked_images(array: np.ndarray, key: str, path: str | os.PathLike[str]) -> np.ndarray:
    """Returns images as [n, H, W, channels]."""
    if array.ndim not in (3, 4) or not array.size:
        raise ValueError(
            f'npz={path} has shape {array.shape} in {key}: images are [n, H, W] or '
            '[n, H, W, channels], none of them 0.'
        )
    if array.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"npz={path} has dtype {array.dtype} in {key}: use .astype('uint8') for pixels 0 to "
            "255, else .astype('float32')."
        )
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise ValueError(
            f'npz={path} has {np.count_nonzero(~np.isfinite(array))} values in {key} that are '
            'NaN or infinite: replace them.'
        )
    return array if array.ndim == 4 else array[..., None]


def _checked_labels(array: np.ndarray, key: str, path: str | os.PathLike[str]) -> np.ndarray:
    """Returns labels as int32 [n]."""
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f'npz={path} has shape {array.shape} and dtype {array.dtype} in {key}: labels are one '
            'integer an image, [n].'
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 1_000_000:
        raise ValueError(
            f'npz={path} has labels from {low} to {high} in {key}: number the classes from 0.'
        )
    return array.astype(np.int32)
