"""Prepared datasets in the layout of TensorFlow Datasets, written without TensorFlow."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

from jaxfed.data.errors import explain_errors
from jaxfed.data.prepare.recipe import Contents, Example, Recipe, Track

_BLOCK = 1000  # examples written between two descriptions of the files
_SHARD = 200_000  # examples in a file
_ADVICE = 'check free space on the disk'


def write_dataset(
    folder: Path, name: str, version: str, recipe: Recipe, contents: Contents, track: Track
) -> None:
    """Writes a dataset to an empty folder, as array_record files with their descriptions.

    Examples are sorted by the hashes of their keys, as in TFDS, so the order of the archive does
    not matter.

    Raises:
      OSError: if something cannot be written, or cannot be read again.
    """
    import tensorflow_datasets as tfds

    features: dict[str, Any] = {
        'image': tfds.features.Image(shape=contents.shape),
        'label': tfds.features.ClassLabel(names=contents.classes),
    }
    if any(example.user is not None for example in contents.splits['train']):
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
    # array_record raises a RuntimeError on a full disk.
    with explain_errors(f'{folder} cannot be written', _ADVICE, catch=RuntimeError, raises=OSError):
        writer.initialize_splits(list(contents.splits))
        for split, examples in contents.splits.items():
            tracked = track(sorted(examples, key=_hashed), f'writing {split}', len(examples))
            while block := list(itertools.islice(tracked, _BLOCK)):
                entries = [{feature: getattr(e, feature) for feature in features} for e in block]
                writer.add_examples({split: entries})
        writer.close_all()
    _read_again(folder, contents)


def _hashed(example: Example) -> bytes:
    """Returns the hash of an example's key, which may be a file's name that is not UTF-8."""
    return hashlib.sha256(example.key.encode(errors='surrogateescape')).digest()


def _read_again(folder: Path, contents: Contents) -> None:
    """Raises an OSError if the files do not hold all examples."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    for split, examples in contents.splits.items():
        with explain_errors(f'{folder} cannot be read again', _ADVICE, raises=OSError):
            source = builder.as_data_source(split)
            if len(source) != len(examples):
                raise ValueError(f'{len(source)} of {len(examples)} examples of {split}')
            source[len(source) - 1]
