"""Encoded images: read strictly, written without loss."""

import contextlib
import io
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from jaxfed.data.errors import explain_errors


@contextlib.contextmanager
def reading_image(where: str) -> Iterator[None]:
    """Raises whatever Pillow raises in the block as a ValueError that names the file."""
    # By the kind of damage: OSError, SyntaxError, struct.error and more.
    with explain_errors(
        f'{where} cannot be read as an image', 'it is damaged or cut short, replace it'
    ):
        try:
            yield
        except UnidentifiedImageError as error:  # its text names a Python object
            raise ValueError('of no known kind') from error


def is_wide(image: ImageFile.ImageFile) -> bool:
    """Returns whether an image, not loaded yet, has more than 8 bits a channel.

    Pillow may cut them to 8. They show in its mode, its stored pixels ('RGB;16B' in PNG) or a TIFF
    tag.
    """
    stored = any(re.search(r';16[BLN]', str(tile[3])) for tile in image.tile)
    bits = getattr(image, 'tag_v2', {}).get(TiffImagePlugin.BITSPERSAMPLE, (8,))
    return stored or max(bits) > 8 or image.mode.startswith(('I', 'F'))


def png(pixels: np.ndarray) -> bytes:
    """Encodes an image, [H, W] or [H, W, 3] uint8, as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, 'png')
    return buffer.getvalue()


def checked_rgb(data: bytes, size: tuple[int, int], where: str) -> bytes:
    """Checks a PNG or JPEG file and returns it, as PNG in RGB if it is in another mode.

    Args:
      data: content of the file.
      size: (width, height) in pixels that it must have.
      where: the flag and the file, for messages.
    """
    with reading_image(where), Image.open(io.BytesIO(data), formats=('PNG', 'JPEG')) as image:
        wide = is_wide(image)
        if image.size == size:  # no other is decoded, however large it claims to be
            image.load()
    advice = 'it is not of the official dataset, replace it'
    if wide:
        raise ValueError(f'{where} has more than 8 bits a channel: {advice}.')
    if image.size != size:
        pixels = f'{image.size[0]} x {image.size[1]} pixels instead of {size[0]} x {size[1]}'
        raise ValueError(f'{where} has {pixels}: {advice}.')
    return data if image.mode == 'RGB' else png(np.asarray(image.convert('RGB')))
