"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels."""

import pathlib

from jaxfed.data.images import checked_rgb
from jaxfed.data.prepare.archive import IMAGE, check_checksum, list_files, read_files
from jaxfed.data.prepare.recipe import Contents, Example, Official, Recipe, Track, check_counts
from jaxfed.internal.type_checks import printable

_SIDE = 64  # pixels


def read_tiny_imagenet(
    archive: pathlib.Path, official: Official, scratch: pathlib.Path, track: Track
) -> Contents:
    """Reads train and val of Tiny-ImageNet; val, the labelled rest, becomes the split 'test'.

    Classes are the sorted WordNet ids of wnids.txt. The JPEG files are kept as they are; grey ones
    become RGB, stored without loss. The official test images have no labels and are left out.

    Args:
      archive: tiny-imagenet-200.zip or its folder.
      official: what to check.
      scratch: not used.
      track: shows progress.

    Returns:
      What is stored.

    Raises:
      ValueError: if the archive or an image is damaged or not as published.

    Reference:
      Le and Yang, Tiny ImageNet Visual Recognition Challenge, CS 231N, Stanford, 2015.
    """
    check_checksum(archive, official.checksum)
    names = list_files(archive)
    roots = [name.removesuffix('wnids.txt') for name in names if name.split('/')[-1] == 'wnids.txt']
    if len(roots) != 1:
        raise ValueError(
            f'archive={archive} has {len(roots)} files wnids.txt instead of 1: give '
            'tiny-imagenet-200.zip, or the folder tiny-imagenet-200.'
        )
    classes = sorted(set(_text(archive, f'{roots[0]}wnids.txt').split()))
    annotated = f'{roots[0]}val/val_annotations.txt'
    if annotated not in names:
        raise ValueError(f'archive={archive} has no {annotated}: download it again.')
    val = _annotations(f'archive={archive}: {annotated}', _text(archive, annotated))

    found: dict[str, tuple[str, int]] = {}
    for name in names:
        parts = name.removeprefix(roots[0]).split('/')
        if not name.lower().endswith('.jpeg') or parts[0] not in ('train', 'val'):
            continue
        if parts[0] == 'val' and parts[-1] not in val:
            raise ValueError(f'archive={archive}: {printable(name)} has no class in {annotated}.')
        wnid = parts[1] if parts[0] == 'train' else val.pop(parts[-1])
        if wnid not in classes:
            raise ValueError(
                f'archive={archive}: {printable(name)} is of a class {wnid!r} that is not '
                'in wnids.txt.'
            )
        found[name] = ('train' if parts[0] == 'train' else 'test', classes.index(wnid))
    if val:
        raise ValueError(
            f'archive={archive} has no image {printable(min(val))}, which is in {annotated}.'
        )
    splits: dict[str, list[Example]] = {'train': [], 'test': []}
    labels = {split: [y for s, y in found.values() if s == split] for split in splits}
    check_counts(archive, labels, classes, official)
    for name, data in track(read_files(archive, found, most=IMAGE), 'reading images', len(found)):
        split, label = found[name]
        image = checked_rgb(data, (_SIDE, _SIDE), f'archive={archive}: {printable(name)}')
        splits[split].append(Example(name.removeprefix(roots[0]), image, label))
    return Contents(classes, (_SIDE, _SIDE, 3), splits)


def _text(archive: pathlib.Path, name: str) -> str:
    """Returns what is in a text file, without the mark that editors may put in front of UTF-8."""
    ((_, data),) = read_files(archive, [name])
    return data.decode('utf-8-sig', errors='replace')


def _annotations(where: str, text: str) -> dict[str, str]:
    """Returns the class of each file of val."""
    classes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split('\t')
        if len(fields) < 2:
            raise ValueError(
                f"{where} has line {number} {line!r}, not 'file, class, box' with tabs between: "
                'download the archive again.'
            )
        name, wnid = fields[:2]
        if classes.setdefault(name, wnid) != wnid:
            raise ValueError(
                f'{where} has {printable(name)} both of the class '
                f'{printable(classes[name])} and of {printable(wnid)}: download the archive again.'
            )
    return classes


TINY_IMAGENET = Recipe(
    read=read_tiny_imagenet,
    official=Official(
        checksum='md5:90528d7ca1a48142e341f4ef8d21d0de',
        counts={'train': 100_000, 'test': 10_000},
        balanced=True,
    ),
    description='200 classes of ImageNet, 64 x 64 pixels; the split test is the official val.',
    homepage='http://cs231n.stanford.edu/tiny-imagenet-200.zip',
    citation='Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N, 2015.',
)
