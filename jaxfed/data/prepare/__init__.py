"""Datasets that TensorFlow Datasets does not have, prepared from their official archives."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Mapping

from jaxfed.data.prepare.cinic10 import CINIC10
from jaxfed.data.prepare.femnist import FEMNIST
from jaxfed.data.prepare.progress import track
from jaxfed.data.prepare.recipe import Official, Recipe
from jaxfed.data.prepare.tiny_imagenet import TINY_IMAGENET
from jaxfed.data.prepare.write import write_dataset
from jaxfed.internal.files import data_folder
from jaxfed.internal.folders import replacing

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

    It appears in `data_dir` when it is complete, or not at all: what is there already, whatever it
    is, stays unless it is to be overwritten. About 1 GB of memory is needed for
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
      ValueError: if there is no such dataset, the archive is missing, damaged or not as published,
        something else is in the dataset's place, or `data_dir` cannot be written to.
      OSError: if the dataset cannot be written.
    """
    if name not in RECIPES:
        raise ValueError(f'dataset={name!r} cannot be prepared: choose from {", ".join(RECIPES)}.')
    recipe = RECIPES[name]
    root = data_folder(data_dir)
    folder = root / name / VERSION
    if os.path.lexists(folder) and not overwrite:
        if os.path.exists(folder / 'dataset_info.json'):
            return folder, False
        raise ValueError(
            f'{folder} is there, but is no prepared dataset: move it away, give another '
            '--data_dir, or put the dataset in its place with --overwrite.'
        )
    if not archive:
        raise ValueError(
            f'archive={archive}, but {name} is made from its official archive: download it from '
            f'{recipe.homepage} and give --archive=FILE.'
        )
    shown = functools.partial(track, quiet=quiet)
    path = pathlib.Path(archive).expanduser()
    if not path.exists():
        raise ValueError(f'archive={archive} does not exist: give the path of the file or folder.')
    with contextlib.ExitStack() as stack:
        if not os.path.lexists(folder.parent):
            stack.callback(_remove_if_empty, folder.parent)
        try:
            unfinished = stack.enter_context(replacing(folder))
        except OSError as error:
            raise ValueError(
                f'data_dir={root} cannot be written to ({error}): give --data_dir a folder that '
                'can be.'
            ) from error
        contents = recipe.read(path, official or recipe.official, unfinished, shown)
        write_dataset(unfinished, name, VERSION, recipe, contents, shown)
    return folder, True


def _remove_if_empty(folder: pathlib.Path) -> None:
    """Removes a folder that nothing was put in."""
    with contextlib.suppress(OSError):
        folder.rmdir()


__all__ = ['RECIPES', 'VERSION', 'Official', 'Recipe', 'prepare']
