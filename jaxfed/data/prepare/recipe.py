"""What is known of a dataset before its archive is read, and what is read from it."""

import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# (items, what they are, how many) -> the items, while progress is shown
Track = Callable[[Iterable[Any], str, int], Iterator[Any]]


class Official(NamedTuple):
    """The numbers that its authors published of a dataset; None for what is not to be checked."""

    checksum: str | None = None  # of the archive, 'md5:...' or 'sha256:...'
    counts: dict[str, int] | None = None  # examples in each split
    balanced: bool = False  # whether a split has the same number of each class
    users: int | None = None  # who made the examples


class Example(NamedTuple):
    """An example as it is stored."""

    key: str  # its own within the split
    image: bytes  # encoded
    label: int  # in 0..C-1
    user: str | None = None  # who made it


class Contents(NamedTuple):
    """What is stored of a dataset."""

    classes: list[str]  # C names
    shape: tuple[int, int, int]  # (H, W, channels) of the images
    splits: dict[str, list[Example]]


class Recipe(NamedTuple):
    """How a dataset is prepared."""

    # (archive or its folder, what to check, a folder for files on the way, progress) -> Contents
    read: Callable[[pathlib.Path, Official, pathlib.Path, Track], Contents]
    official: Official
    description: str
    homepage: str
    citation: str


def check_counts(
    archive: pathlib.Path, labels: dict[str, list[int]], classes: list[str], official: Official
) -> None:
    """Checks how many examples there are.

    Args:
      archive: they are from.
      labels: of the examples of each split, in 0..C-1.
      classes: C names.
      official: the numbers to be found.

    Raises:
      ValueError: if a split is empty, or a split or a class has another number of examples.
    """
    for split, found in labels.items():
        if not found:
            raise ValueError(f'archive={archive} has no examples in the split {split!r}.')
    if official.counts is None:
        return
    advice = 'download it again, or prepare what it has with --nocounts'
    for split, count in official.counts.items():
        found = labels[split]
        each = Counter(found)
        for label, name in enumerate(classes if official.balanced else ()):
            if each[label] != count // len(classes):
                raise ValueError(
                    f'archive={archive} has {each[label]} examples of the class {name!r} in the '
                    f'split {split!r}, officially {count // len(classes)}: {advice}.'
                )
        if len(found) != count:
            raise ValueError(
                f'archive={archive} has {len(found)} examples in the split {split!r}, officially '
                f'{count}: {advice}.'
            )
