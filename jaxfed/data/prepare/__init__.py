"""Datasets that TensorFlow Datasets lacks, prepared from their official archives."""

import functools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rich.progress

from jaxfed.data.prepare.cinic10 import CINIC10
from jaxfed.data.prepare.femnist import FEMNIST
from jaxfed.data.prepare.recipe import Official, Recipe
from jaxfed.data.prepare.tiny_imagenet import TINY_IMAGENET
from jaxfed.data.prepare.write import write_dataset
from jaxfed.internal.console import TERMINAL
from jaxfed.internal.files import check_writable, data_folder
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
) -> tuple[Path, bool]:
    """Prepares a dataset, so that `load_dataset` finds it by name.

    The dataset is written to `data_dir` completely or not at all. An existing one is replaced only
    if `overwrite` is set. The largest dataset takes about 1 GB of memory.

    Args:
      name: one of RECIPES.
      archive: the official archive, or the folder it was unpacked to.
      data_dir: folder of the datasets; by default $TFDS_DATA_DIR or ~/tensorflow_datasets.
      official: numbers to check; by default the published ones.
      overwrite: whether to replace an existing dataset.
      quiet: whether to show no progress.

    Returns:
      The folder of the dataset, and whether this call made it.

    Raises:
      ValueError: if the name is unknown; if the archive is missing, damaged or not as published; if
        other files occupy the dataset's folder; or if `data_dir` is not writable.
      OSError: if the dataset cannot be written.
    """
    if name not in RECIPES:
        raise ValueError(f'{name!r} is not a dataset that can be prepared: {", ".join(RECIPES)}.')
    recipe = RECIPES[name]
    root = data_folder(data_dir)
    folder = root / name / VERSION
    if os.path.lexists(folder) and not overwrite:
        if os.path.exists(folder / 'dataset_info.json'):
            return folder, False
        raise ValueError(
            f'{folder} exists, but is not a prepared dataset: move it, choose another '
            '--data_dir, or replace it with --overwrite.'
        )
    if not archive:
        raise ValueError(
            f'{name} needs its official archive: download it from {recipe.homepage} and pass '
            '--archive=FILE.'
        )
    path = Path(archive).expanduser()
    if not path.exists():
        raise ValueError(f'--archive={archive} does not exist; pass an archive or its folder.')
    track = functools.partial(_track, quiet=quiet)
    check_writable(root, '--data_dir')
    with replacing(folder) as unfinished:
        contents = recipe.read(path, official or recipe.official, track)
        write_dataset(unfinished, name, VERSION, recipe, contents, track)
    return folder, True


def _track(items: Iterable[Any], text: str, total: int, *, quiet: bool) -> Iterator[Any]:
    """Yields items and shows progress: a bar in a terminal, about ten lines in a log file."""
    as_bar = TERMINAL.is_terminal and not quiet
    bar = rich.progress.track(items, text, total, console=TERMINAL, disable=not as_bar)
    every, began = max(total // 10, 1), time.perf_counter()
    for done, item in enumerate(bar, 1):
        yield item
        if not (as_bar or quiet) and (done % every == 0 or done == total):
            left = (time.perf_counter() - began) / done * (total - done)
            TERMINAL.print(f'{text} {done}/{total}  {left:.0f} s left')


__all__ = ['RECIPES', 'VERSION', 'Official', 'Recipe', 'prepare']
