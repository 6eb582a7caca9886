"""The description of a dataset to prepare, and the contents of its archive."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# (items, description, number of items) -> the items; shows progress
Track = Callable[[Iterable[Any], str, int], Iterator[Any]]


class Official(NamedTuple):
    """The published numbers of a dataset; None disables a check."""

    checksum: str | None = None  # of the archive, 'md5:...' or 'sha256:...'
    counts: dict[str, int] | None = None  # examples in each split
    balanced: bool = False  # whether each class of a split has the same number of examples
    users: int | None = None  # number of users


class Example(NamedTuple):
    """A stored example."""

    key: str  # unique within the split
    image: bytes  # encoded
    label: int  # in 0..C-1
    user: str | None = None  # its author


class Contents(NamedTuple):
    """The stored part of a dataset."""

    classes: Sequence[str]  # C names
    shape: tuple[int, int, int]  # (H, W, channels) of the images
    splits: dict[str, list[Example]]


class Recipe(NamedTuple):
    """The instructions to prepare a dataset."""

    # (archive or its folder, numbers to check, progress) -> Contents
    read: Callable[[Path, Official, Track], Contents]
    official: Official
    description: str
    homepage: str
    citation: str


def check_counts(
    archive: Path, labels: dict[str, list[int]], classes: Sequence[str], official: Official
) -> None:
    """Raises a ValueError if a split is empty, or its size or that of equal classes differs.

    Args:
      archive: source of the examples.
      labels: split -> labels of its examples, in 0..C-1.
      classes: C names.
      official: the published numbers.
    """
    for split, y in labels.items():
        if not y:
            raise ValueError(f'--archive={archive} has no examples in the split {split!r}.')
    for split, count in (official.counts or {}).items():
        each = Counter(labels[split])
        by_class = [
            (f' of the class {name!r}', each[label], count // len(classes))
            for label, name in enumerate(classes)
            if official.balanced
        ]
        for of_class, found, expected in [*by_class, ('', each.total(), count)]:
            if found != expected:
                raise ValueError(
                    f'--archive={archive} has {found} examples{of_class} in the split {split!r}, '
                    f'officially {expected}: download it again, or skip this check with '
                    '--nocounts.'
                )
