"""Normalisation and augmentation of batches on the device."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.types import Array

AUGMENTATIONS = ('crop', 'reflect_crop', 'flip', 'cutout')
Augment = Callable[[Array, Array], Array]  # (key, raw [B, H, W, ch]) -> x [B, H, W, ch] float32

_PADDING = 4
_HOLE = 16


def parse_augment(text: str) -> tuple[str, ...]:
    """Parses distinct names of AUGMENTATIONS joined by commas, or 'none'."""
    names = () if text == 'none' else tuple(name.strip() for name in text.split(','))
    for name in names:
        if name not in AUGMENTATIONS or names.count(name) > 1:
            raise ValueError(
                f'--augment={text} must be none, or distinct names of {", ".join(AUGMENTATIONS)} '
                f'joined by commas, got {name!r}.'
            )
    if {'crop', 'reflect_crop'} <= set(names):
        raise ValueError(f'--augment={text} crops twice; remove crop or reflect_crop.')
    return names


def check_augment(names: tuple[str, ...], image_shape: tuple[int, ...]) -> None:
    """Raises a ValueError if `names` do not suit images of `image_shape` (H, W, ch)."""
    height, width = image_shape[:2]
    if names and height == 1:
        raise ValueError(
            f'--augment must be none for vectors, signals and text, got {",".join(names)}: it '
            'moves pixels of images.'
        )
    if 'reflect_crop' in names and min(height, width) <= _PADDING:
        raise ValueError(
            f'--augment={",".join(names)}: reflect_crop mirrors {_PADDING} pixels, but the images '
            f'have {height} x {width}; use crop, or larger images.'
        )
    if 'cutout' in names and min(height, width) <= _HOLE:
        raise ValueError(
            f'--augment={",".join(names)}: cutout blanks a square of {_HOLE} x {_HOLE} pixels, but '
            f'the images have {height} x {width}; remove cutout or use larger images.'
        )


def normalise(x: Array, mean: np.ndarray | Array, std: np.ndarray | Array) -> Array:
    """Normalises images [..., ch] of any dtype, `(x - mean) / std`, to float32.

    `mean` and `std`, [ch], are in the units of the images. Token ids, int32, remain as they are.
    """
    if x.dtype == jnp.int32:
        return jnp.asarray(x)
    mean, std = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
    return (x.astype(jnp.float32) - mean) / std


def make_augment(
    names: tuple[str, ...], *, mean: np.ndarray, std: np.ndarray, batch_size: int = 0
) -> Augment:
    """Builds the function that augments and normalises a training batch.

    The order is always crop, flip, normalise, cutout. Each example draws independently:

    - crop: pads the image by 4 raw zeros on each side and cuts the image size at a random place.
    - reflect_crop: pads with the mirrored image instead, as the released code does for CINIC-10.
    - flip: mirrors the image left to right with probability 1/2.
    - cutout: sets a square of 16 x 16 pixels to 0 after normalisation, the mean colour. The centre
      is uniform over the image; the border clips the square.

    Args:
      names: distinct names of AUGMENTATIONS; empty for normalisation only.
      mean: [ch] mean of the pixels, in the dataset's units.
      std: [ch] standard deviation of the pixels, in the dataset's units.
      batch_size: of full batches. Smaller ones, if every client has fewer examples, have the first
        draws of it, so that they do not depend on the largest client.

    Returns:
      A pure function from a random key and raw images [B, H, W, ch] to [B, H, W, ch] float32.

    Raises:
      ValueError: if a name is unknown or occurs twice, or both kinds of crop are named.

    Reference:
      The released training code of FedNTD (Lee et al., NeurIPS 2022) and FedLMD; cutout from
      DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout,
      2017.
    """
    parse_augment(','.join(names) or 'none')

    def augment(key: Array, raw: Array) -> Array:
        batch, height, width, _ = raw.shape
        # One draw for all choices, because every call is a separate loop on the CPU. The remainder
        # favours some places, by less than height / 2^32.
        bits = jax.random.bits(key, (5, max(batch, batch_size)))[:, :batch]
        if 'crop' in names or 'reflect_crop' in names:
            row, column = (bits[:2] % (2 * _PADDING + 1)).astype(jnp.int32)
            raw = crop(raw, row, column, 'constant' if 'crop' in names else 'reflect')
        if 'flip' in names:
            raw = flip(raw, bits[2] % 2 == 1)
        x = normalise(raw, mean, std)
        if 'cutout' in names:
            row, column = (bits[3] % height).astype(jnp.int32), (bits[4] % width).astype(jnp.int32)
            x = cutout(x, row, column)
        return x

    return augment


def crop(raw: Array, row: Array, column: Array, mode: str = 'constant') -> Array:
    """Pads images [B, H, W, ch] by 4 pixels on each side and cuts them out at (row, column).

    The cut begins at `row` and `column`, [B] int32 in 0..8; 4 is the unshifted image. The pixels
    are zeros, or with the mode 'reflect' those inside of the border, mirrored.
    """
    pad = ((_PADDING, _PADDING), (_PADDING, _PADDING), (0, 0))

    def one(x: Array, r: Array, c: Array) -> Array:
        return jax.lax.dynamic_slice(jnp.pad(x, pad, mode), (r, c, 0), x.shape)

    return jax.vmap(one)(raw, row, column)


def flip(raw: Array, chosen: Array) -> Array:
    """Mirrors the `chosen` images, [B] bool of [B, H, W, ch], left to right."""
    return jnp.where(chosen[:, None, None, None], raw[:, :, ::-1], raw)


def cutout(x: Array, row: Array, column: Array) -> Array:
    """Sets a square of 16 x 16 pixels of each image [B, H, W, ch] to zero.

    The square spans `row` - 8 to `row` + 7, [B] int32, and the same for `column`; the border clips
    it.
    """

    def inside(centre: Array, length: int) -> Array:
        distance = jnp.arange(length) - centre[:, None]
        return (distance >= -_HOLE // 2) & (distance < _HOLE // 2)

    hole = inside(row, x.shape[1])[:, :, None] & inside(column, x.shape[2])[:, None, :]
    return jnp.where(hole[..., None], 0, x)
