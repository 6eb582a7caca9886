"""A dataset from folders of image files, one folder per class."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from jaxfed.data import cache
from jaxfed.data.errors import explain_errors
from jaxfed.data.images import BLOCK, GREY, check_pixels, formats, is_wide, reading_image
from jaxfed.internal.logger import LOGGER
from jaxfed.types import Dataset

_CACHE_FORMAT = 2  # raise it when the decoded arrays of the same files change


_File = tuple[Path, int]  # an image file and its class


def load_image_folder(path: str | os.PathLike[str]) -> Dataset:
    """Loads images from `path/train/CLASS/*` and `path/test/CLASS/*`, or `val` for `test`.

    The classes are the folders of `train` in sorted order. All images must have the same size, in
    any format that Pillow decodes itself (PNG, JPEG, WebP, BMP and more, but not EPS). The dataset
    has one channel if all images are grey, else three; those with a palette (GIF) count as
    coloured. Transparency, hidden files and the EXIF orientation are ignored. Animations
    contribute their first frame.

    Args:
      path: the folder that contains `train` and `test`.

    Returns:
      The dataset with uint8 images; its name is that of the folder.

    Raises:
      ValueError: if a folder is missing, is empty or has folders where images belong; if a link is
        broken; if `test` has a class that `train` lacks; or if an image cannot be read, has more
        than 8 bits per channel or 2^24 pixels, or differs in size.
    """
    root = Path(path)
    train = root / 'train'
    test = next((root / name for name in ('test', 'val') if (root / name).is_dir()), None)
    if not train.is_dir() or test is None:
        raise ValueError(
            f'--path={path} must contain train/CLASS/ and test/CLASS/ (or val/CLASS/), but there '
            f'is no {train if not train.is_dir() else root / "test"}.'
        )
    if test.name == 'val':
        LOGGER.warning("--path=%s has no folder 'test'; its 'val' replaces it.", path)
    with explain_errors(f'--path={path} cannot be read', 'check permissions', catch=OSError):
        classes = {name: label for label, name in enumerate(_folders(train))}
        unknown = [name for name in _folders(test) if name not in classes]
        if unknown:
            raise ValueError(
                f'--path={path} has the class {unknown[0]!r} in {test}, not in {train}; remove it.'
            )
        files = {'x_train': _files(train, classes), 'x_test': _files(test, classes)}
        paths = [path for found in files.values() for path, _ in found]
        fingerprint = cache.fingerprint(_CACHE_FORMAT, root, paths)
    name = root.resolve().name

    def decode(store: cache.Store) -> Dataset:
        LOGGER.info('Decoding the images of %s; later runs use the cache.', root)
        channels = _check_headers(paths)
        images = [store(x, _blocks(found, channels), len(found)) for x, found in files.items()]
        labels = [np.array([y for _, y in found], np.int32) for found in files.values()]
        return Dataset(name, images[0], labels[0], images[1], labels[1], len(classes))

    key = re.sub(r'[^\w.-]', '_', name)
    return cache.decoded(f'image_folder-{key}-{fingerprint}', decode)


def _visible(folder: Path) -> list[Path]:
    """Returns the entries of a folder, sorted by name, without hidden ones and __MACOSX."""
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith('.'))
    for entry in entries:
        if not entry.exists():
            raise ValueError(f'{entry} is a broken link; repair or remove it.')
    return [entry for entry in entries if entry.name != '__MACOSX']


def _folders(folder: Path) -> list[str]:
    """Returns the sorted names of the classes in train or test."""
    names = [entry.name for entry in _visible(folder) if entry.is_dir()]
    if not names:
        raise ValueError(f'{folder} must contain one folder per class, but has no folders.')
    return names


def _files(folder: Path, classes: dict[str, int]) -> list[_File]:
    """Returns the image files of train or test, sorted by class and name."""
    endings = {e for e, kind in Image.registered_extensions().items() if kind in formats()}
    files: list[_File] = []
    others: list[Path] = []
    for name in _folders(folder):
        before = len(files)
        for entry in _visible(folder / name):
            if entry.is_dir():
                raise ValueError(
                    f'{entry} is a folder, but {folder / name} must contain images only; move it.'
                )
            if entry.suffix.lower() in endings and entry.is_file():
                files.append((entry, classes[name]))
            else:
                others.append(entry)
        if len(files) == before:
            raise ValueError(
                f'{folder / name} has no images of the class {name!r}; add some or remove it.'
            )
    if others:
        LOGGER.warning(
            '%d files that are not images are ignored, such as %s.', len(others), others[0]
        )
    return files


def _check_headers(paths: list[Path]) -> int:
    """Returns the number of channels after checking the size and depth of every image."""
    grey, first = True, None
    for path in paths:
        with reading_image(str(path)), Image.open(path, formats=formats()) as image:
            size, mode, wide = image.size, image.mode, is_wide(image)
        first = first or size
        if size != first:
            raise ValueError(
                f'{path} has {size[0]} x {size[1]} pixels, but {paths[0]} has '
                f'{first[0]} x {first[1]}; resize the images to one size.'
            )
        check_pixels(size, str(path))
        if wide:
            raise ValueError(f'{path} has more than 8 bits per channel; convert it to 8 bits.')
        grey &= mode in GREY
    return 1 if grey else 3


def _blocks(files: list[_File], channels: int) -> Iterator[np.ndarray]:
    """Yields the images as [b, H, W, channels] uint8, in order."""
    step = max(BLOCK // _pixels(files[0][0], channels).nbytes, 1)
    for start in range(0, len(files), step):
        yield np.stack([_pixels(path, channels) for path, _ in files[start : start + step]])


def _pixels(path: Path, channels: int) -> np.ndarray:
    """Returns an image as [H, W, channels] uint8."""
    with reading_image(str(path)), Image.open(path, formats=formats()) as image:
        pixels = np.asarray(image.convert('L' if channels == 1 else 'RGB'))
    return pixels.reshape(*pixels.shape[:2], channels)
