"""Image classification sets of TensorFlow Datasets, read without TensorFlow."""

import contextlib
import difflib
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxfed.data import cache
from jaxfed.types import Dataset

_log = logging.getLogger(__name__)
_BLOCK = 1000  # examples decoded at once; one by one takes half as long again
_CACHE_FORMAT = 1  # raise it when the same records are decoded to something else
_NAME = re.compile(r'\w[\w.+-]*(/\w[\w.+-]*)?(:\d+\.\d+\.\d+)?')


def load_tfds(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a prepared TFDS dataset, from its decoded copy if there is one.

    The test examples are the split 'test' or, where there is none, 'validation' (the dataset's
    name then says so). A dataset that is not prepared is downloaded and prepared if TensorFlow is
    installed.

    Args:
      name: of the dataset, 'name', 'name/config' or either with ':version'.
      data_dir: folder of the datasets; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Returns:
      The dataset, images uint8.

    Raises:
      ValueError: if the dataset is unknown, neither prepared nor preparable here, damaged, or no
        labelled images of one size.

    Reference:
      TensorFlow Datasets, https://www.tensorflow.org/datasets.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"dataset={name!r} is no name of a dataset: write 'name' or 'name/config', either "
            "with or without ':1.2.3' for its version."
        )
    root = pathlib.Path(data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets')
    root = root.expanduser()
    directory = _find(name, root) or _prepare(name, root)
    base = name.partition(':')[0]
    path = cache.cache_file(f'{base.replace("/", "_")}-{directory.name}-{_fingerprint(directory)}')
    dataset = cache.read(path)
    if dataset is None:
        _log.info('Decoding %s from %s, once.', name, directory)
        dataset = _decode(base, directory)
        cache.write(path, dataset)
    return dataset


def _find(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of the prepared dataset, its newest version if none is asked for."""
    base, _, version = name.partition(':')
    folders = [file.parent for file in (root / base).glob('*/dataset_info.json')]
    folders = [f for f in folders if f.name == version or (not version and _number(f.name))]
    configs = sorted({f.parent.parent.name for f in (root / base).glob('*/*/dataset_info.json')})
    if not folders and configs:
        names = ', '.join(f'{base}/{config}' for config in configs)
        raise ValueError(f'dataset={name!r} has configurations: choose one of {names}.')
    return max(folders, key=lambda folder: _number(folder.name)) if folders else None


def _number(version: str) -> tuple[int, ...]:
    """Returns a version as numbers, empty if it is none."""
    parts = version.split('.')
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()


def _prepare(name: str, root: pathlib.Path) -> pathlib.Path:
    """Downloads and prepares a dataset, which needs TensorFlow, and returns its folder."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    base = name.partition(':')[0].partition('/')[0]
    if base not in known:
        near = difflib.get_close_matches(base, ['digits', 'npz', *known])
        raise ValueError(
            f'dataset={name!r} is not prepared in {root} and no name that TensorFlow Datasets '
            f'knows: {"did you mean " + " or ".join(near) + "?" if near else "check it, or"} '
            'Give --data_dir if it is prepared elsewhere, or use --dataset=npz with your arrays.'
        )
    if importlib.util.find_spec('tensorflow') is None:
        raise ValueError(
            f'dataset={name!r} is not prepared in {root}: give its --data_dir, use --dataset=npz, '
            "or prepare it with\n  pip install 'jaxfed[prepare]'\n  "
            f'python -c "import tensorflow_datasets as tfds; tfds.builder({name!r}, '
            f"data_dir='{root}', file_format='array_record').download_and_prepare()\""
        )
    _log.info('Preparing %s in %s, once.', name, root)
    builder = tfds.builder(name, data_dir=root, file_format='array_record')
    try:
        builder.download_and_prepare()
    except OSError as error:  # no network, no room, no permission
        raise ValueError(
            f'dataset={name!r} could not be prepared in {root} ({error}): check network and disk, '
            'or give --data_dir of a prepared copy.'
        ) from error
    return pathlib.Path(builder.data_dir)


def _fingerprint(directory: pathlib.Path) -> str:
    """Returns a digest of the dataset's description and its files' names and sizes."""
    digest = hashlib.sha256(f'{_CACHE_FORMAT}'.encode())
    digest.update((directory / 'dataset_info.json').read_bytes())
    for file in sorted(directory.iterdir()):
        digest.update(f'{file.name} {file.stat().st_size}\n'.encode())
    return digest.hexdigest()[:16]


def _decode(name: str, directory: pathlib.Path) -> Dataset:
    """Returns the decoded dataset."""
    with _reading(name, directory, 'dataset_info.json'):
        file_format = json.loads((directory / 'dataset_info.json').read_text()).get('fileFormat')
    if file_format != 'array_record':
        raise ValueError(
            f'dataset={name!r} in {directory} is stored as {file_format or "tfrecord"}, which '
            "cannot be read without TensorFlow: prepare it with file_format='array_record' in "
            'another --data_dir.'
        )
    import tensorflow_datasets as tfds

    with _reading(name, directory, 'dataset_info.json or features.json'):
        builder = tfds.builder_from_directory(directory)
        features, splits = dict(builder.info.features.items()), builder.info.splits
    for key, kind in (('image', tfds.features.Image), ('label', tfds.features.ClassLabel)):
        if not isinstance(features.get(key), kind):
            raise ValueError(
                f'dataset={name!r} has no feature {key!r} of type {kind.__name__}, only '
                f'{", ".join(features)}: choose an image classification set.'
            )
    test = 'test' if 'test' in splits else 'validation'
    if 'train' not in splits or test not in splits:
        raise ValueError(
            f"dataset={name!r} has the splits {', '.join(splits)}: 'train' is needed, and 'test' "
            "or 'validation'."
        )
    num_classes = features['label'].num_classes
    x_train, y_train = _decode_split(name, directory, builder, 'train', num_classes)
    x_test, y_test = _decode_split(name, directory, builder, test, num_classes)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(_unequal(name, {x_train.shape[1:], x_test.shape[1:]}))
    if test == 'validation':
        _log.warning("%s has no split 'test': its 'validation' is tested on.", name)
        name = f'{name} (validation)'
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes)


def _decode_split(
    name: str, directory: pathlib.Path, builder: Any, split: str, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, H, W, channels] uint8 and labels [n] int32 of a split."""
    files = f'*-{split}.array_record*'
    with _reading(name, directory, files):
        source = builder.as_data_source(split)
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for start in range(0, len(source), _BLOCK):
        with _reading(name, directory, files):
            block = source.__getitems__(range(start, min(start + _BLOCK, len(source))))
        shapes = {example['image'].shape for example in block}
        if start:
            shapes.add(images[0].shape[1:])
        if len(shapes) > 1:
            raise ValueError(_unequal(name, shapes))
        images.append(np.stack([example['image'] for example in block]))
        labels.append(np.array([example['label'] for example in block], np.int32))
    if not images:
        raise ValueError(f'dataset={name!r} has no examples in the split {split!r}.')
    x, y = np.concatenate(images), np.concatenate(labels)
    if x.dtype != np.uint8:
        raise ValueError(f'dataset={name!r} has {x.dtype} images: only uint8 is supported.')
    if not 0 <= y.min() <= y.max() < num_classes:
        raise ValueError(
            f'dataset={name!r} has labels from {y.min()} to {y.max()} in the split {split!r}, '
            f'outside of its {num_classes} classes: choose a dataset with all labels.'
        )
    return x, y


@contextlib.contextmanager
def _reading(name: str, directory: pathlib.Path, files: str) -> Iterator[None]:
    """Turns whatever the libraries raise while reading prepared files into one ValueError."""
    try:
        yield
    except Exception as error:  # RuntimeError, KeyError, ParseError and more, by what is damaged
        raise ValueError(
            f'dataset={name!r} cannot be read, {directory / files} is damaged or missing '
            f'({error}): delete the folder {directory} and prepare the dataset again.'
        ) from error


def _unequal(name: str, shapes: set[tuple[int, ...]]) -> str:
    """Returns the message about images of several shapes."""
    return (
        f'dataset={name!r} has images of unequal shapes, such as {sorted(shapes)[:2]}: resize '
        'them and use --dataset=npz.'
    )
