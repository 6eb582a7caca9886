"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels."""

from pathlib import Path

from jaxfed.data.prepare.archive import check_checksum, list_files, read_files
from jaxfed.data.prepare.images import ImageFile, read_images
from jaxfed.data.prepare.recipe import Contents, Official, Recipe, Track
from jaxfed.internal.messages import printable

_SIDE = 64  # pixels


def read_tiny_imagenet(archive: Path, official: Official, track: Track) -> Contents:
    """Reads train and val of Tiny-ImageNet; val, which has labels, becomes the split 'test'.

    The classes are the sorted WordNet ids of wnids.txt. RGB JPEG files are stored unchanged, and
    grey ones become RGB without loss. The official test images have no labels and are omitted.

    Args:
      archive: tiny-imagenet-200.zip or its folder.
      official: the published numbers.
      track: shows progress.

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
            f'--archive={archive} has {len(roots)} files wnids.txt instead of 1: pass '
            'tiny-imagenet-200.zip, or the folder tiny-imagenet-200.'
        )
    (root,) = roots
    classes = sorted(set(_text(archive, f'{root}wnids.txt').split()))
    annotated = f'{root}val/val_annotations.txt'
    if annotated not in names:
        raise ValueError(f'--archive={archive} has no {annotated}: download it again.')
    val = _annotations(f'--archive={archive}: {annotated}', _text(archive, annotated))

    files: dict[str, ImageFile] = {}
    for name in names:
        key = name.removeprefix(root)
        parts = key.split('/')
        if not key.lower().endswith('.jpeg') or parts[0] not in ('train', 'val'):
            continue
        if parts[0] == 'val' and parts[-1] not in val:
            raise ValueError(f'--archive={archive}: {printable(name)} has no class in {annotated}.')
        split, wnid = ('train', parts[1]) if parts[0] == 'train' else ('test', val.pop(parts[-1]))
        if wnid not in classes:
            where = f'--archive={archive}: {printable(name)}'
            raise ValueError(f'{where} has the class {wnid!r}, which is not in wnids.txt.')
        files[name] = ImageFile(split, key, classes.index(wnid))
    if val:
        raise ValueError(
            f'--archive={archive} has no image {printable(min(val))}, which is in {annotated}.'
        )
    return read_images(archive, files, classes, ('train', 'test'), _SIDE, official, track)


def _text(archive: Path, name: str) -> str:
    """Returns the content of a text file, without a byte order mark."""
    ((_, data),) = read_files(archive, [name])
    return data.decode('utf-8-sig', errors='replace')


def _annotations(where: str, text: str) -> dict[str, str]:
    """Returns the class of each file of val."""
    classes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split('\t')
        if len(fields) < 2:
            raise ValueError(
                f"{where} has line {number} {line!r} instead of 'file, class, box' with tabs: "
                'download the archive again.'
            )
        name, wnid = fields[:2]
        if classes.setdefault(name, wnid) != wnid:
            raise ValueError(
                f'{where} has two classes for {printable(name)}, {printable(classes[name])} and '
                f'{printable(wnid)}: download the archive again.'
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
