"""Checked reading and lossless writing of encoded images."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from jaxfed.data.errors import explain_errors

BLOCK = 1 << 26  # bytes of images decoded at once
GREY = '1', 'L', 'LA'  # Pillow's grey modes of at most 8 bits
LARGEST = 1 << 24  # pixels of an image; a small file may unpack to any number


def formats() -> list[str]:
    """Lists the formats of Pillow that it decodes itself.

    For EPS it starts Ghostscript, and for WMF it calls the renderer of Windows. Pillow recognises
    a format by the content, so a file with the name of another one may be of these.
    """
    Image.init()
    return [name for name in Image.OPEN if name not in ('EPS', 'WMF')]


@contextlib.contextmanager
def reading_image(where: str) -> Iterator[None]:
    """Converts every exception of Pillow in the block to a ValueError that names the file."""
    # Pillow raises OSError, SyntaxError, struct.error and more, by the kind of damage.
    with explain_errors(
        f'{where} cannot be read as an image', 'it is damaged or truncated, replace it'
    ):
        try:
            with warnings.catch_warnings():
                # Callers check the size before they decode.
                warnings.simplefilter('ignore', Image.DecompressionBombWarning)
                yield
        except UnidentifiedImageError as error:  # its text names a Python object
            raise ValueError('unknown format') from error


def check_pixels(size: tuple[int, int], where: str) -> None:
    """Raises a ValueError if an image, not decoded yet, has more than `LARGEST` pixels."""
    if size[0] * size[1] > LARGEST:
        raise ValueError(
            f'{where} has {size[0]} x {size[1]} pixels, more than {LARGEST}; resize the images.'
        )


def is_wide(image: ImageFile.ImageFile) -> bool:
    """Returns whether an image, not loaded yet, has more than 8 bits per channel.

    Pillow may silently reduce them to 8. The depth is in the mode, in the format of the stored
    pixels ('RGB;16B' in PNG, the largest value in PPM), in the codec of SGI or in a TIFF tag.
    """
    stored = any(re.search(r';16[BLN]', str(tile[3])) for tile in image.tile)
    for codec, _, _, form in image.tile:
        stored |= codec == 'SGI16'
        stored |= codec.startswith('ppm') and isinstance(form, tuple) and form[1] > 255
    bits = getattr(image, 'tag_v2', {}).get(TiffImagePlugin.BITSPERSAMPLE, (8,))
    return stored or max(bits) > 8 or image.mode.startswith(('I', 'F'))


def png(pixels: np.ndarray) -> bytes:
    """Encodes an image [H, W] or [H, W, 3] uint8 as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, 'png')
    return buffer.getvalue()


def checked_rgb(data: bytes, size: tuple[int, int], where: str) -> bytes:
    """Checks a PNG or JPEG file; returns it unchanged if it is RGB, else converted to an RGB PNG.

    Args:
      data: content of the file.
      size: required (width, height) in pixels.
      where: flag and file name, for messages.

    Raises:
      ValueError: if the file is damaged, or has another size or more than 8 bits a channel.
    """
    with reading_image(where), Image.open(io.BytesIO(data), formats=('PNG', 'JPEG')) as image:
        wide = is_wide(image)
        if image.size == size:  # others are not decoded: a header may claim any size
            image.load()
    advice = 'it is not part of the official dataset, replace it'
    if wide:
        raise ValueError(f'{where} has more than 8 bits per channel: {advice}.')
    if image.size != size:
        pixels = f'{image.size[0]} x {image.size[1]} pixels instead of {size[0]} x {size[1]}'
        raise ValueError(f'{where} has {pixels}: {advice}.')
    return data if image.mode == 'RGB' else png(np.asarray(image.convert('RGB')))
