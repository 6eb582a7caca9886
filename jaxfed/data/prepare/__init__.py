"""Datasets that TensorFlow Datasets does not have, prepared from their official archives."""

import functools
import os
import pathlib
from collections.abc import Mapping

from jaxfed.data.folders import replacing
from jaxfed.data.prepare.cinic10 import CINIC10
from jaxfed.data.prepare.femnist import FEMNIST
from jaxfed.data.prepare.progress import track
from jaxfed.data.prepare.recipe import Official, Recipe
from jaxfed.data.prepare.tiny_imagenet import TINY_IMAGENET
from jaxfed.data.prepare.write import write_dataset
from jaxfed.data.tfds import data_folder

RECIPES: Mapping[str, Recipe] = {
    'cinic10': CINIC10,
    'femnist': FEMNIST,
    'tiny_imagenet': TINY_IMAGENET,
}
VERSION = '1.0.0'


def prepare(
    name: str,
    archive: str | os.PathLike[str] | None,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    official: Official | None = None,
    overwrite: bool = False,
    quiet: bool = True,
) -> tuple[pathlib.Path, bool]:
    """Prepares a dataset, so that it can be loaded by its name.

    It appears in `data_dir` when it is complete, or not at all. About 1 GB of memory is needed for
    the largest of them.

    Args:
      name: out of RECIPES.
      archive: as its authors distribute it, or the folder that it was unpacked to.
      data_dir: folder of the datasets; None for $TFDS_DATA_DIR or ~/tensorflow_datasets.
      official: the numbers to check; None for those that were published.
      overwrite: make the dataset again if there is one.
      quiet: show no progress.

    Returns:
      The folder of the dataset, and whether it was made now.

    Raises:
      ValueError: if there is no such dataset, or the archive is missing, damaged or not as
        published.
      OSError: if the dataset cannot be written.
    """
    if name not in RECIPES:
        raise ValueError(f'dataset={name!r} cannot be prepared: choose from {", ".join(RECIPES)}.')
    recipe = RECIPES[name]
    folder = data_folder(data_dir) / name / VERSION
    if (folder / 'dataset_info.json').exists() and not overwrite:
        return folder, False
    if archive is None:
        raise ValueError(
            f'archive=None, but {name} is made from its official archive: download it from '
            f'{recipe.homepage} and give --archive=FILE.'
        )
    shown = functools.partial(track, quiet=quiet)
    path = pathlib.Path(archive).expanduser()
    if not path.exists():
        raise ValueError(f'archive={archive} does not exist: give the path of the file or folder.')
    with replacing(folder) as unfinished:
        contents = recipe.read(path, official or recipe.official, unfinished, shown)
        write_dataset(unfinished, name, VERSION, recipe, contents, shown)
    return folder, True


__all__ = ['RECIPES', 'VERSION', 'Official', 'Recipe', 'prepare']
