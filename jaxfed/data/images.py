"""Encoded images: read strictly, written without loss."""

import contextlib
import io
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError


@contextlib.contextmanager
def reading_image(where: str) -> Iterator[None]:
    """Turns whatever Pillow raises while it reads an image into one ValueError.

    Args:
      where: names the flag and the file.

    Yields:
      Nothing.

    Raises:
      ValueError: if the block raises anything, so that the file is named.
    """
    try:
        yield
    except Exception as error:  # OSError, SyntaxError, struct.error and more, by what is damaged
        # What Pillow says of these names a Python object.
        reason = 'of no known kind' if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(
            f'{where} cannot be read as an image ({reason}): it is damaged or cut short, replace '
            'it.'
        ) from error


def is_wide(image: ImageFile.ImageFile) -> bool:
    """Tells whether an image file has more than 8 bits a channel, which Pillow may cut to 8.

    Args:
      image: opened, and not loaded yet.

    Returns:
      Whether its mode is of such, its pixels are stored as such, 'RGB;16B' in PNG, or TIFF says so.
    """
    stored = any(re.search(r';16[BLN]', str(tile[3])) for tile in image.tile)
    bits = getattr(image, 'tag_v2', {}).get(TiffImagePlugin.BITSPERSAMPLE, (8,))
    return stored or max(bits) > 8 or image.mode.startswith(('I', 'F'))


def png(pixels: np.ndarray) -> bytes:
    """Encodes an image as PNG, without loss.

    Args:
      pixels: [H, W] or [H, W, 3] uint8.

    Returns:
      The bytes of the file.
    """
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, 'png')
    return buffer.getvalue()


def checked_rgb(data: bytes, size: tuple[int, int], where: str) -> bytes:
    """Checks an encoded image and makes it RGB.

    Args:
      data: of a PNG or JPEG file.
      size: (width, height) in pixels that it must have.
      where: names the flag and the file.

    Returns:
      The same bytes where the image is RGB, else the same image as RGB in PNG.

    Raises:
      ValueError: if the image is damaged, of another size or has more than 8 bits a channel.
    """
    with reading_image(where), Image.open(io.BytesIO(data), formats=('PNG', 'JPEG')) as image:
        wide = is_wide(image)
        if image.size == size:  # no other is decoded, however large it says it is
            image.load()
    if wide:
        raise ValueError(
            f'{where} has more than 8 bits a channel: it is not of the official dataset, replace '
            'it.'
        )
    if image.size != size:
        raise ValueError(
            f'{where} has {image.size[0]} x {image.size[1]} pixels instead of '
            f'{size[0]} x {size[1]}: it is not of the official dataset, replace it.'
        )
    return data if image.mode == 'RGB' else png(np.asarray(image.convert('RGB')))
