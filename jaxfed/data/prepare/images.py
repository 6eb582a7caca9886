"""Datasets whose archive has one file per image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxfed.data.images import checked_rgb
from jaxfed.data.prepare.archive import IMAGE, read_files
from jaxfed.data.prepare.recipe import Contents, Example, Official, Track, check_counts
from jaxfed.internal.messages import printable


class ImageFile(NamedTuple):
    """Split, key and label of an image file in an archive."""

    split: str
    key: str  # unique within the split, and independent of the folder of the archive
    label: int  # in 0..C-1


def read_images(
    archive: Path,
    files: Mapping[str, ImageFile],
    classes: Sequence[str],
    splits: Sequence[str],
    side: int,
    official: Official,
    track: Track,
) -> Contents:
    """Checks the number of images, then reads them as RGB images of side x side pixels.

    Args:
      archive: file or folder.
      files: name in the archive -> its split, key and label.
      classes: C names.
      splits: names of all splits.
      side: height and width in pixels.
      official: the published numbers.
      track: shows progress.

    Raises:
      ValueError: if a number differs from the published one, or an image is damaged or has
        another size.
    """
    labels = {split: [f.label for f in files.values() if f.split == split] for split in splits}
    check_counts(archive, labels, classes, official)
    examples: dict[str, list[Example]] = {split: [] for split in splits}
    for name, data in track(read_files(archive, files, most=IMAGE), 'reading images', len(files)):
        split, key, label = files[name]
        image = checked_rgb(data, (side, side), f'--archive={archive}: {printable(name)}')
        examples[split].append(Example(key, image, label))
    return Contents(classes, (side, side, 3), examples)
