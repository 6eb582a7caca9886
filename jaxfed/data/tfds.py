"""Image classification datasets of TensorFlow Datasets, read without TensorFlow."""

import difflib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data import cache
from jaxfed.data.errors import explain_errors
from jaxfed.data.prepare import RECIPES, VERSION
from jaxfed.internal.files import data_folder
from jaxfed.internal.logger import LOGGER
from jaxfed.types import Dataset

_BLOCK = 1000  # examples decoded at once; one at a time takes 1.5 times as long
_CACHE_FORMAT = 3  # raise it when the decoded arrays of the same records change
_NAME = re.compile(r'\w[\w.+-]*(/\w[\w.+-]*)?(:\d+\.\d+\.\d+)?')


def load_tfds(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a prepared TFDS dataset, from the cache of decoded datasets if possible.

    The test examples are the split 'test', or 'validation' if there is no 'test'; the name of the
    dataset then says so. If TensorFlow is installed, an unprepared dataset is downloaded and
    prepared.

    The feature 'user' (class label, integer or text) is the author of an example. The users of the
    training examples are numbered from 0, in the order of their labels, numbers or texts.

    TFDS stores the images of EMNIST transposed; they are transposed back, like those of MNIST. The
    labels of 'emnist/letters', 1 to 26 of 37 classes in TFDS, become 0 to 25.

    Args:
      name: 'name' or 'name/config' of the dataset, optionally with ':version'.
      data_dir: folder of the datasets; by default $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Returns:
      The dataset, with uint8 images.

    Raises:
      ValueError: if `data_dir` is not a folder; or if the dataset is unknown, is damaged, cannot be
        prepared on this machine, or has no labelled images of one size.

    Reference:
      TensorFlow Datasets, https://www.tensorflow.org/datasets.
    """
    if name.endswith('.npz'):
        raise ValueError(f'--dataset={name} is a file; use --dataset=npz --npz={name}.')
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"--dataset={name!r} is not a dataset name: use 'name' or 'name/config', optionally "
            "with a version, ':1.2.3'."
        )
    root = data_folder(data_dir)
    if root.exists() and not root.is_dir():
        raise ValueError(f'--data_dir must be the folder of the datasets, but {root} is a file.')
    directory = _find(name, root) or _prepare(name, root)
    base = name.partition(':')[0]
    description = (directory / 'dataset_info.json').read_bytes()
    files = sorted(directory.iterdir())
    fingerprint = cache.fingerprint(_CACHE_FORMAT, directory, files, description)
    key = f'{base.replace("/", "_")}-{directory.name}-{fingerprint}'
    return cache.decoded(key, lambda store: _decode(base, directory, store))


def _find(name: str, root: Path) -> Path | None:
    """Returns the folder of a prepared dataset, by default of the newest version."""
    base, _, version = name.partition(':')
    folders = [file.parent for file in (root / base).glob('*/dataset_info.json')]
    folders = [f for f in folders if f.name == version or (not version and _number(f.name))]
    configs = sorted({f.parent.parent.name for f in (root / base).glob('*/*/dataset_info.json')})
    if not folders and configs:
        names = ', '.join(f'{base}/{config}' for config in configs)
        raise ValueError(f'--dataset={name} has configurations: choose one of {names}.')
    return max(folders, key=lambda folder: _number(folder.name), default=None)


def _number(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version; empty if it is not a version."""
    parts = version.split('.')
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()


def _prepare(name: str, root: Path) -> Path:
    """Downloads and prepares a dataset with TensorFlow; returns its folder."""
    import tensorflow_datasets as tfds

    base = name.partition(':')[0].partition('/')[0]
    missing = f'--dataset={name} is not prepared in --data_dir={root}'
    parent = next((p for p in root.absolute().parents[:3] if _find(name, p)), None)
    if parent:
        raise ValueError(f'{missing}; pass the parent folder, --data_dir={parent}.')
    if base in RECIPES and name not in (base, f'{base}:{VERSION}'):
        raise ValueError(
            f'{missing}, and {base} has only version {VERSION} and no configurations; use '
            f'--dataset={base}.'
        )
    if base in RECIPES:
        raise ValueError(
            f'{missing}; pass another --data_dir, or download the official archive from '
            f'{RECIPES[base].homepage} and run: '
            f"python -m jaxfed.data.prepare {base} --archive=FILE --data_dir='{root}'"
        )
    known = tfds.list_builders(with_community_datasets=False)
    if base not in known:
        names = ['digits', 'npz', 'image_folder', *RECIPES, *known]
        near = difflib.get_close_matches(base.lower(), names)
        question = f' Did you mean {" or ".join(near)}?' if near else ''
        raise ValueError(
            f'{missing}, and TensorFlow Datasets does not have it.{question} Pass another '
            '--data_dir if it is prepared elsewhere, or use --dataset=npz for your own arrays.'
        )
    if importlib.util.find_spec('tensorflow') is None:
        raise ValueError(
            f'{missing}; pass another --data_dir, or install TensorFlow with '
            "pip install -e '.[prepare]' and repeat the command, which then downloads it."
        )
    LOGGER.info('Preparing %s in %s; later runs read it.', name, root)
    builder = tfds.builder(name, data_dir=root, file_format='array_record')
    with explain_errors(
        f'--dataset={name} could not be prepared in {root}',
        'check network and disk, or pass the --data_dir of a prepared copy',
        catch=OSError,
    ):
        builder.download_and_prepare()
    return Path(builder.data_dir)


def _decode(name: str, directory: Path, store: cache.Store) -> Dataset:
    """Returns the decoded dataset, with its images in the `store`."""
    LOGGER.info('Decoding %s from %s; later runs use the cache.', name, directory)
    builder = _open(name, directory)
    features, splits = dict(builder.info.features.items()), builder.info.splits
    test = 'test' if 'test' in splits else 'validation'
    if 'train' not in splits or test not in splits:
        raise ValueError(
            f'--dataset={name} must have the splits train and test (or validation), got '
            f'{", ".join(splits)}: choose another --dataset.'
        )
    x_train, y_train, users = _decode_split(name, directory, builder, 'train', store)
    x_test, y_test, _ = _decode_split(name, directory, builder, test, store)
    _check_shapes(name, {x_train.shape[1:], x_test.shape[1:]})
    num_classes = features['label'].num_classes
    if name == 'emnist/letters':
        num_classes, y_train, y_test = 26, y_train - 1, y_test - 1
    for split, y in ('train', y_train), (test, y_test):
        if not 0 <= y.min() <= y.max() < num_classes:
            raise ValueError(
                f'--dataset={name} has labels from {y.min()} to {y.max()} in the split {split!r}, '
                f'outside its {num_classes} classes: choose a dataset with all labels.'
            )
    numbers = _numbered(name, features['user'], users) if 'user' in features else None
    if test == 'validation':
        LOGGER.warning("%s has no split 'test'; its 'validation' replaces it.", name)
        name = f'{name} (validation)'
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes, numbers)


def _open(name: str, directory: Path) -> Any:
    """Returns the TFDS builder of a prepared image classification dataset."""
    with _reading(name, directory, 'dataset_info.json'):
        file_format = json.loads((directory / 'dataset_info.json').read_text()).get('fileFormat')
    if file_format != 'array_record':
        raise ValueError(
            f'--dataset={name} in {directory} is stored as {file_format or "tfrecord"}, which '
            "cannot be read without TensorFlow: prepare it with file_format='array_record' in "
            'another --data_dir.'
        )
    import tensorflow_datasets as tfds

    with _reading(name, directory, 'dataset_info.json or features.json'):
        builder = tfds.builder_from_directory(directory)
        features = dict(builder.info.features.items())
    for key, kind in (('image', tfds.features.Image), ('label', tfds.features.ClassLabel)):
        if not isinstance(features.get(key), kind):
            raise ValueError(
                f'--dataset={name} has no feature {key!r} of type {kind.__name__}, only '
                f'{", ".join(features)}: choose an image classification dataset.'
            )
    return builder


def _decode_split(
    name: str, directory: Path, builder: Any, split: str, store: cache.Store
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Returns a split's images [n, H, W, channels] uint8, labels [n] int32 and n users or Nones."""
    files = f'*-{split}.array_record*'
    with _reading(name, directory, files):
        source = builder.as_data_source(split)
    if not len(source):
        raise ValueError(f'--dataset={name} has no examples in the split {split!r}.')
    labels: list[int] = []
    users: list[Any] = []

    def blocks() -> Iterator[np.ndarray]:
        shapes: set[tuple[int, ...]] = set()
        for start in range(0, len(source), _BLOCK):
            with _reading(name, directory, files):
                block = source.__getitems__(range(start, min(start + _BLOCK, len(source))))
            shapes |= {example['image'].shape for example in block}
            _check_shapes(name, shapes)
            images = np.stack([example['image'] for example in block])
            if images.dtype != np.uint8:
                raise ValueError(
                    f'--dataset={name} has {images.dtype} images: only uint8 is supported.'
                )
            labels.extend(example['label'] for example in block)
            users.extend(example.get('user') for example in block)
            yield images.swapaxes(1, 2) if name.split('/')[0] == 'emnist' else images

    images = store('x_train' if split == 'train' else 'x_test', blocks(), len(source))
    return images, np.array(labels, np.int32), users


def _numbered(name: str, feature: Any, users: list[Any]) -> np.ndarray | None:
    """Returns the users of the training examples, numbered from 0, [n] int32."""
    import tensorflow_datasets as tfds

    integer = feature.shape == () and np.issubdtype(feature.np_dtype, np.integer)
    if not integer and not isinstance(feature, tfds.features.Text):
        kind = type(feature).__name__
        LOGGER.warning("%s has a feature 'user' of type %s, which is ignored.", name, kind)
        return None
    # UTF-8 bytes sort like the text.
    return np.unique(np.array(users), return_inverse=True)[1].astype(np.int32)


def _reading(name: str, directory: Path, files: str) -> Any:
    """Converts every exception of the libraries that read prepared files to a ValueError."""
    # They raise RuntimeError, KeyError, ParseError and more, by the kind of damage.
    return explain_errors(
        f'--dataset={name} cannot be read, {directory / files} is damaged or missing',
        f'delete the folder {directory} and prepare the dataset again',
    )


def _check_shapes(name: str, shapes: set[tuple[int, ...]]) -> None:
    """Raises a ValueError if images have several shapes."""
    if len(shapes) > 1:
        raise ValueError(
            f'--dataset={name} has unequal images {sorted(shapes)[:2]}: use --dataset=npz.'
        )
