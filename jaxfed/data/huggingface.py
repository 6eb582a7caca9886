"""Datasets of the library `datasets` of Hugging Face, read offline."""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from jaxfed.data import cache
from jaxfed.data.arrays import make_dataset
from jaxfed.data.errors import explain_errors
from jaxfed.data.images import BLOCK, GREY, check_pixels, formats, is_wide, reading_image
from jaxfed.internal.logger import LOGGER
from jaxfed.internal.messages import printable
from jaxfed.types import Dataset

PREFIX = 'hf:'  # of the names of these datasets
_CACHE_FORMAT = 2  # raise it when the decoded arrays of the same dataset change


class Columns(NamedTuple):
    """The names of the columns; None to find one by its type, and no users."""

    image: str | None = None
    label: str | None = None
    user: str | None = None


NO_COLUMNS = Columns()


def load_huggingface(
    name: str, data_dir: str | os.PathLike[str] | None, columns: Columns = NO_COLUMNS
) -> Dataset:
    """Loads 'hf:NAME' from the folder `data_dir`/NAME or from the cache `data_dir`.

    The folder is one that `save_to_disk` has written, or holds files that `load_dataset` reads. A
    cache is that of `load_dataset(NAME, cache_dir=data_dir)`; without `data_dir` that of the user.

    Args:
      name: 'hf:NAME'.
      data_dir: the folder.
      columns: as in `from_huggingface`.

    Raises:
      ValueError: if the package `datasets` is missing, there is no such dataset, or
        `from_huggingface` refuses it.
    """
    source, bare = f'--dataset={name}', name.removeprefix(PREFIX)
    os.environ.setdefault('HF_HUB_OFFLINE', '1')  # `datasets` reads it when it is imported
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{source} needs the package datasets: pip install -e '.[hf]'.") from error
    datasets.disable_progress_bars()
    cache_dir = None if data_dir is None else str(data_dir)
    folder = cache_dir and Path(cache_dir) / bare
    advice = 'name a folder of --data_dir that save_to_disk has written, or a dataset in its cache'
    with explain_errors(f'{source} cannot be read', advice):
        if folder and (folder / 'dataset_dict.json').is_file():
            splits = datasets.load_from_disk(str(folder))
        elif folder and folder.is_dir():
            splits = datasets.load_dataset(str(folder), cache_dir=cache_dir)
        else:
            splits = datasets.load_dataset(bare, cache_dir=cache_dir)
    return from_huggingface(splits, source, columns, name=bare.replace('/', '_'))


def from_huggingface(
    splits: Mapping[str, Any], source: str, columns: Columns = NO_COLUMNS, *, name: str = 'datasets'
) -> Dataset:
    """Makes a dataset from the splits 'train' and 'test' (or 'validation').

    The inputs are the column of images, of one size and 8 bits, or of arrays of one shape; the
    labels are the column of class labels, else that named 'label' or 'labels'. Text labels are
    numbered in sorted order.

    Args:
      splits: a `datasets.DatasetDict`, or a mapping to `datasets.Dataset`.
      source: flag or argument that passed it, for messages.
      columns: the names of the columns.
      name: of the dataset.

    Raises:
      ValueError: if a split or a column is missing, or columns have other values; if a split is
        empty, streamed or has a transform; or if an image cannot be read, has another size than the
        first, or more than 8 bits a channel or 2^24 pixels.
    """
    parts = _parts(splits, source)
    inputs, label = _columns(parts, source, columns)
    arrays, number = _labels(parts, label, source)
    if columns.user:
        arrays['users'] = _column(parts['train'], columns.user)
    if not _is_image(parts['train'].features[inputs]):
        for part, split in parts.items():
            arrays[f'x_{part}'] = _stacked(split, inputs, source)
        return make_dataset(name, source, arrays, number)

    def decode(store: cache.Store) -> Dataset:
        grey = all(_is_grey(split, inputs, f'{source}: {part}') for part, split in parts.items())
        for part, split in parts.items():
            blocks = _images(split, inputs, 'L' if grey else 'RGB', f'{source}: {part}')
            arrays[f'x_{part}'] = store(f'x_{part}', blocks, len(split))
        return make_dataset(name, source, arrays, number)

    marks = [getattr(split, '_fingerprint', '') for split in parts.values()]
    marks += [_files(split, inputs) for split in parts.values()]
    text = repr((_CACHE_FORMAT, marks, inputs, label, columns.user))
    key = f'hf-{hashlib.sha256(text.encode()).hexdigest()[:16]}'
    return cache.decoded(key, decode)._replace(name=name)


def _parts(splits: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The splits for training and testing by name, 'train' and 'test'."""
    test = next((name for name in ('test', 'validation') if name in splits), None)
    if 'train' not in splits or test is None:
        raise ValueError(
            f'{source} has the splits {_list(splits)}; it needs train, and test or validation.'
        )
    if test == 'validation':
        LOGGER.warning("%s has no split 'test'; its 'validation' replaces it.", source)
    parts = {'train': splits['train'], 'test': splits[test]}
    for part, split in parts.items():
        if not (hasattr(split, 'column_names') and hasattr(split, '__len__')):
            raise ValueError(
                f'{source}: {part} must be a datasets.Dataset, got {type(split).__name__}: load it '
                'without streaming.'
            )
        if not len(split):
            raise ValueError(f'{source}: {_list([part])} has no examples.')
        if split.format['type'] == 'custom':
            raise ValueError(
                f'{source}: {part} has a transform, which jaxfed does not apply: remove it.'
            )
    return parts


def _labels(
    parts: Mapping[str, Any], column: str, source: str
) -> tuple[dict[str, np.ndarray], int | None]:
    """The labels as numbers, 'y_train' and 'y_test', and how many classes have names, if any."""
    known, others = (getattr(split.features[column], 'names', None) for split in parts.values())
    for place, (ours, theirs) in enumerate(zip(known or (), others or (), strict=False)):
        if ours != theirs:
            raise ValueError(
                f'{source}: the label {place} of {printable(column)} is {printable(ours)} in train '
                f'and {printable(theirs)} in test: cast the column of one.'
            )
    train, test = (_column(split, column) for split in parts.values())
    for name, values in (('train', train), ('test', test)):
        if values.dtype.kind == 'O' and None in values:
            raise ValueError(
                f'{source}: example {values.tolist().index(None)} of {name} has no label in '
                f'{printable(column)}; remove such examples with the filter() of the split.'
            )
    if train.dtype.kind in 'US':
        known, train = np.unique(train, return_inverse=True)
        unknown = np.setdiff1d(test, known)
        if unknown.size:
            raise ValueError(
                f'{source}: test has the label {str(unknown[0])!r}, which train lacks.'
            )
        test = np.searchsorted(known, test)
    return {'y_train': train, 'y_test': test}, None if known is None else len(known)


def _column(split: Any, name: str) -> np.ndarray:
    """The values of a column, whatever format the user has set."""
    return np.asarray(split.with_format(None)[name])


def _columns(parts: Mapping[str, Any], source: str, columns: Columns) -> tuple[str, str]:
    """The names of the inputs and of the labels."""
    features = parts['train'].features
    for flag, name in zip(('image', 'label', 'user'), columns, strict=True):
        if name is not None and name not in features:
            raise ValueError(f'{source}: --{flag}_column={name} is none of {_list(features)}.')
    label = columns.label
    if label is None:
        found = [n for n, feature in features.items() if hasattr(feature, 'str2int')]
        found = found if len(found) == 1 else [n for n in ('label', 'labels') if n in features]
        if not found:
            raise ValueError(f'{source}: set --label_column to one of {_list(features)}.')
        label = found[0]
    image = columns.image
    if image is None:
        others = {n: f for n, f in features.items() if n not in (label, columns.user)}
        found = [n for n, f in others.items() if _is_image(f)]
        found = found or [n for n, f in others.items() if _is_array(f)]
        if len(found) != 1:
            raise ValueError(f'{source}: set --image_column to one of {_list(others)}.')
        image = found[0]
    if missing := {image, label} - {*parts['test'].column_names}:
        raise ValueError(f'{source}: test lacks the column {_list(missing)} of train.')
    return image, label


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == 'Image'


def _is_array(feature: Any) -> bool:
    return type(feature).__name__ in ('Array2D', 'Array3D', 'List', 'Sequence', 'LargeList')


def _stacked(split: Any, column: str, source: str) -> np.ndarray:
    """The arrays of a column as one array."""
    advice = 'its values must be numbers of one shape; --image_column names another'
    feature = split.features[column]
    while hasattr(feature, 'feature'):  # lists, also of lists
        feature = feature.feature
    # The format makes all integers int64, but those that are not uint8 are token ids.
    kind = {'dtype': np.uint8} if getattr(feature, 'dtype', None) == 'uint8' else {}
    with explain_errors(f'{source}: the column {printable(column)} cannot be used', advice):
        values = split.with_format('numpy', **kind)[column][:]
        return np.stack([np.asarray(value) for value in values])


def _is_grey(split: Any, column: str, where: str) -> bool:
    """Whether all images are grey; opens them up to the first coloured one."""
    mode = split.features[column].mode
    opened = _opened(split, column, where)
    return all((mode or image.mode) in GREY for _, image in opened)


def _images(split: Any, column: str, mode: str, where: str) -> Iterator[np.ndarray]:
    """Yields the images as [b, H, W, channels] uint8, in order."""
    block: list[np.ndarray] = []
    size = None
    for i, (image, wide) in enumerate(_decoded(split, column, where)):
        size = size or image.size
        if image.size != size or wide:
            raise ValueError(
                f'{where}: image {i} is {image.size[0]} x {image.size[1]} {image.mode}, the '
                f'first {size[0]} x {size[1]}; images must have one size and 8 bits.'
            )
        block.append(np.asarray(image.convert(mode)).reshape(*size[::-1], -1))
        if (len(block) + 1) * block[0].nbytes > BLOCK:
            yield np.stack(block)
            block = []
    if block:
        yield np.stack(block)


def _encoded(split: Any, column: str) -> Any:
    """The images of a split as 'bytes' or 'path'; `datasets` itself decodes any size and format."""
    encoded = split.with_format(None).select_columns(column)
    return encoded.cast_column(column, type(split.features[column])(decode=False))


def _files(split: Any, column: str) -> list[Any]:
    """Size and time of the files of a split whose images are outside of it, else nothing.

    The fingerprint of such a split does not change with them.
    """
    encoded, found = _encoded(split, column), []
    if len(encoded) and (first := encoded[0][column]) and first['bytes'] is None:
        for row in encoded:
            path = Path((row[column] or {}).get('path') or '')
            stat = path.stat() if path.is_file() else None
            found.append(stat and (stat.st_size, stat.st_mtime_ns))
    return found


def _decoded(split: Any, column: str, where: str) -> Iterator[tuple[Image.Image, bool]]:
    """Yields each image as `datasets` decodes it, and whether it has more than 8 bits a channel."""
    feature = split.features[column]
    for name, image in _opened(split, column, where):
        with reading_image(name):
            wide = is_wide(image)
            ImageOps.exif_transpose(image, in_place=True)
            decoded = image.convert(feature.mode or image.mode)
        yield decoded, wide


def _opened(split: Any, column: str, where: str) -> Iterator[tuple[str, ImageFile.ImageFile]]:
    """Yields the name of each image for messages, and the image, of which the header was read."""
    for i, row in enumerate(_encoded(split, column)):
        name, value = f'{where}: image {i}', row[column]
        with reading_image(name):
            if value is None:
                raise ValueError('it is missing')
            data = Path(value['path']).read_bytes() if value['bytes'] is None else value['bytes']
            image = Image.open(io.BytesIO(data), formats=formats())
        check_pixels(image.size, name)
        yield name, image


def _list(names: Any) -> str:
    return ', '.join(printable(str(name)) for name in names) or 'none'
