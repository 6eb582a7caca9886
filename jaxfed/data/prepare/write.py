"""Prepared datasets in the layout of TensorFlow Datasets, written without TensorFlow."""

import contextlib
import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

from jaxfed.data.prepare.recipe import Contents, Example, Recipe, Track

_BLOCK = 1000  # examples written between two descriptions of what there is
_SHARD = 200_000  # examples in a file


def write_dataset(
    folder: pathlib.Path, name: str, version: str, recipe: Recipe, contents: Contents, track: Track
) -> None:
    """Writes a dataset as array_record files with their descriptions.

    Examples lie in the order of their keys' hashes, as TFDS shuffles them, whatever the order of
    the archive.

    Args:
      folder: empty, it becomes the folder of this version.
      name: of the dataset.
      version: 'major.minor.patch'.
      recipe: description, homepage and citation are written too.
      contents: the examples.
      track: shows progress.

    Raises:
      OSError: if something cannot be written, or cannot be read again.
    """
    import tensorflow_datasets as tfds

    features: dict[str, Any] = {
        'image': tfds.features.Image(shape=contents.shape),
        'label': tfds.features.ClassLabel(names=contents.classes),
    }
    with_users = any(example.user is not None for example in contents.splits['train'])
    if with_users:
        features['user'] = tfds.features.Text()
    identity = tfds.core.DatasetIdentity(
        name=name, version=tfds.core.Version(version), data_dir=str(folder), module_name=''
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description=recipe.description,
        features=tfds.features.FeaturesDict(features),
        supervised_keys=('image', 'label'),
        homepage=recipe.homepage,
        citation=recipe.citation,
    )
    writer = tfds.core.SequentialWriter(info, _SHARD, file_format='array_record')
    with _writing(folder):
        writer.initialize_splits(list(contents.splits))
    for split, examples in contents.splits.items():
        by_hash = sorted(examples, key=_hashed)
        tracked = track(by_hash, f'writing {split}', len(by_hash))
        while block := list(itertools.islice(tracked, _BLOCK)):
            written: list[dict[str, Any]] = [{'image': e.image, 'label': e.label} for e in block]
            for example, entry in zip(block, written, strict=True):
                if with_users:
                    entry['user'] = example.user
            with _writing(folder):
                writer.add_examples({split: written})
    with _writing(folder):
        writer.close_all()
    _read_again(folder, contents)


def _hashed(example: Example) -> bytes:
    """Returns the hash of an example's key, which may be a file's name that is not UTF-8."""
    return hashlib.sha256(example.key.encode(errors='surrogateescape')).digest()


@contextlib.contextmanager
def _writing(folder: pathlib.Path) -> Iterator[None]:
    """Turns what array_record raises where a disk is full into an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f'{folder} cannot be written ({error}): is the disk full?') from error


def _read_again(folder: pathlib.Path, contents: Contents) -> None:
    """Raises an OSError if the files do not hold all examples."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    for split, examples in contents.splits.items():
        try:
            source = builder.as_data_source(split)
            whole = len(source) == len(examples) and source[len(source) - 1]['image'] is not None
        except Exception as error:  # by what is missing
            raise OSError(f'{folder} cannot be read again ({error}): is the disk full?') from error
        if not whole:
            raise OSError(f'{folder} has {len(source)} of {len(examples)} examples of {split}.')
