"""A dataset from folders of image files, one folder a class."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from jaxfed.data import cache
from jaxfed.data.errors import explain_errors
from jaxfed.data.images import is_wide, reading_image
from jaxfed.types import Dataset

_log = logging.getLogger(__name__)
_BLOCK = 1000  # images decoded at once
_CACHE_FORMAT = 2  # raise it when the same files are decoded to something else
_GREY = ('1', 'L', 'LA')  # Pillow's modes of grey that fit into 8 bits


class _File(NamedTuple):
    """An image file and its class."""

    path: Path
    label: int


def load_image_folder(path: str | os.PathLike[str]) -> Dataset:
    """Loads images from `path/train/CLASS/*` and `path/test/CLASS/*`, or `val` for `test`.

    Classes are the folders of `train` in sorted order. Files may be of any kind that Pillow reads
    (PNG, JPEG, WebP, BMP and more) and must have one size. If all of them are grey the dataset has
    one channel, else three; transparency is dropped. Hidden files are ignored, and so is the
    orientation in EXIF data. Of animations the first frame is read.

    Args:
      path: folder that has `train` and `test`.

    Returns:
      The dataset, images uint8, named by the folder's name.

    Raises:
      ValueError: if a folder is missing, empty or has folders where images belong, a link leads
        nowhere, a class is tested but not trained, or an image cannot be read, has more than 8 bits
        a channel or differs from the others in size.
    """
    root = Path(path).expanduser()
    train = root / 'train'
    test = next((root / name for name in ('test', 'val') if (root / name).is_dir()), None)
    if not train.is_dir() or test is None:
        raise ValueError(
            f'path={path} must be a folder with train/CLASS/ and test/CLASS/, or val/CLASS/, in '
            f'it: there is no {train if not train.is_dir() else root / "test"}.'
        )
    with explain_errors(f'path={path} cannot be read', 'check permissions', catch=OSError):
        classes = {name: label for label, name in enumerate(_folders(train))}
        unknown = [name for name in _folders(test) if name not in classes]
        if unknown:
            raise ValueError(
                f'path={path} has the class {unknown[0]!r} in {test} but not in {train}: remove it.'
            )
        files = {'x_train': _files(train, classes), 'x_test': _files(test, classes)}
        paths = [file.path for found in files.values() for file in found]
        fingerprint = cache.fingerprint(_CACHE_FORMAT, root, paths)
    name = root.resolve().name

    def decode(store: cache.Store) -> Dataset:
        _log.info('Decoding the images of %s, once.', root)
        channels = _check_headers(paths)
        images = [store(x, _blocks(found, channels), len(found)) for x, found in files.items()]
        labels = [np.array([file.label for file in found], np.int32) for found in files.values()]
        return Dataset(name, images[0], labels[0], images[1], labels[1], len(classes))

    key = re.sub(r'[^\w.-]', '_', name)
    return cache.decoded(f'image_folder-{key}-{fingerprint}', decode)


def _visible(folder: Path) -> list[Path]:
    """Returns the entries of a folder, sorted by name, without hidden ones and __MACOSX."""
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith('.'))
    for entry in entries:
        if not entry.exists():
            raise ValueError(f'{entry} is a link that leads nowhere: mend or remove it.')
    return [entry for entry in entries if entry.name != '__MACOSX']


def _folders(folder: Path) -> list[str]:
    """Returns the sorted names of the classes in train or test."""
    names = [entry.name for entry in _visible(folder) if entry.is_dir()]
    if not names:
        raise ValueError(f'{folder} has no folders in it: make one for each class.')
    return names


def _files(folder: Path, classes: dict[str, int]) -> list[_File]:
    """Returns the image files of train or test, sorted by class and name."""
    endings = {e for e, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    files: list[_File] = []
    others: list[Path] = []
    for name in _folders(folder):
        before = len(files)
        for entry in _visible(folder / name):
            if entry.is_dir():
                raise ValueError(
                    f'{entry} is a folder, but images lie in {folder / name}: move or remove it.'
                )
            if entry.suffix.lower() in endings and entry.is_file():
                files.append(_File(entry, classes[name]))
            else:
                others.append(entry)
        if len(files) == before:
            raise ValueError(
                f'{folder / name} has no images of the class {name!r} in it: add some or remove it.'
            )
    if others:
        _log.warning('%d files are no images and are ignored, such as %s.', len(others), others[0])
    return files


def _check_headers(paths: list[Path]) -> int:
    """Returns the number of channels after checking every image's size and kind."""
    grey, first = True, None
    for path in paths:
        with reading_image(str(path)), Image.open(path) as image:
            size, mode, wide = image.size, image.mode, is_wide(image)
        first = first or size
        if size != first:
            raise ValueError(
                f'{path} has {size[0]} x {size[1]} pixels, but {paths[0]} has '
                f'{first[0]} x {first[1]}: resize them to one size.'
            )
        if wide:
            raise ValueError(f'{path} has more than 8 bits a channel: convert it to 8 bits.')
        grey &= mode in _GREY
    return 1 if grey else 3


def _blocks(files: list[_File], channels: int) -> Iterator[np.ndarray]:
    """Yields the images as [b, H, W, channels] uint8, in order."""
    for start in range(0, len(files), _BLOCK):
        yield np.stack([_pixels(path, channels) for path, _ in files[start : start + _BLOCK]])


def _pixels(path: Path, channels: int) -> np.ndarray:
    """Returns an image as [H, W, channels] uint8."""
    with reading_image(str(path)), Image.open(path) as image:
        pixels = np.asarray(image.convert('L' if channels == 1 else 'RGB'))
    return pixels.reshape(*pixels.shape[:2], channels)
