"""CINIC-10: 270 000 images of the CIFAR-10 classes, most of them from ImageNet."""

from pathlib import Path

from jaxfed.data.prepare.archive import check_checksum, check_one_copy, list_files
from jaxfed.data.prepare.images import ImageFile, read_images
from jaxfed.data.prepare.recipe import Contents, Official, Recipe, Track
from jaxfed.internal.messages import printable

CLASSES = (
    'airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck',
)  # fmt: skip
_SIDE = 32  # pixels
_SPLITS = {'train': 'train', 'valid': 'validation', 'test': 'test'}


def read_cinic10(archive: Path, official: Official, track: Track) -> Contents:
    """Reads train, valid and test/CLASS/*.png of CINIC-10.

    The split 'validation' is stored but not used, as in the released code of FedNTD, whose
    experiments FedLMD follows. Grey images become RGB.

    Args:
      archive: CINIC-10.tar.gz or its folder.
      official: the published numbers.
      track: shows progress.

    Raises:
      ValueError: if the archive or an image is damaged or not as published.

    Reference:
      Darlow, Crowley, Antoniou and Storkey, CINIC-10 Is Not ImageNet or CIFAR-10, 2018.
    """
    check_checksum(archive, official.checksum)
    files: dict[str, ImageFile] = {}
    for name in list_files(archive):
        split, folder, file = ('', '', *name.split('/'))[-3:]
        if split not in _SPLITS or not file.lower().endswith('.png'):
            continue
        if folder not in CLASSES:
            raise ValueError(
                f'--archive={archive} has {printable(name)} of the class {folder!r}, not one of '
                f'{", ".join(CLASSES)}: remove it.'
            )
        files[name] = ImageFile(_SPLITS[split], f'{folder}/{file}', CLASSES.index(folder))
    check_one_copy(archive, 'CINIC-10', ('/'.join(name.split('/')[:-3]) for name in files))
    splits = tuple(_SPLITS.values())
    return read_images(archive, files, CLASSES, splits, _SIDE, official, track)


CINIC10 = Recipe(
    read=read_cinic10,
    official=Official(
        checksum='md5:6ee4d0c996905fe93221de577967a372',
        counts={'train': 90_000, 'validation': 90_000, 'test': 90_000},
        balanced=True,
    ),
    description='CIFAR-10 extended by downsampled images of ImageNet, 32 x 32 pixels, 10 classes.',
    homepage='https://datashare.ed.ac.uk/handle/10283/3192',
    citation='Darlow et al., CINIC-10 Is Not ImageNet or CIFAR-10, arXiv:1810.03505, 2018.',
)
