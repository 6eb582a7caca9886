"""Normalisation and augmentation of batches on the device."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.types import Array

AUGMENTATIONS = ('crop', 'flip', 'cutout')
Augment = Callable[[Array, Array], Array]  # (key, raw [B, H, W, ch]) -> x [B, H, W, ch] float32

_PADDING = 4
_HOLE = 16


def parse_augment(text: str) -> tuple[str, ...]:
    """Parses a comma list of augmentations.

    Args:
      text: names out of AUGMENTATIONS joined by commas, or 'none'.

    Returns:
      The names.

    Raises:
      ValueError: if a name is unknown or given twice.
    """
    names = () if text == 'none' else tuple(name.strip() for name in text.split(','))
    for name in names:
        if name not in AUGMENTATIONS:
            raise ValueError(
                f'augment={text!r} names {name!r}: choose from {", ".join(AUGMENTATIONS)} with '
                "commas between, or 'none'."
            )
        if names.count(name) > 1:
            raise ValueError(f'augment={text!r} names {name!r} twice: name it once.')
    return names


def check_augment(names: tuple[str, ...], image_shape: tuple[int, ...]) -> None:
    """Checks that augmentations leave something of images of this size.

    Args:
      names: out of AUGMENTATIONS.
      image_shape: (H, W, ch) of the dataset's images.

    Raises:
      ValueError: if the hole of cutout is as large as the image.
    """
    height, width = image_shape[:2]
    if 'cutout' in names and min(height, width) <= _HOLE:
        raise ValueError(
            f'--augment={",".join(names)}: cutout blanks a square of {_HOLE} x {_HOLE} pixels, but '
            f'the images have {height} x {width}; leave cutout out, or take larger images.'
        )


def normalise(x: Array, mean: np.ndarray | Array, std: np.ndarray | Array) -> Array:
    """Normalises images, `(x - mean) / std`.

    Args:
      x: [..., ch] pixels in the dataset's units, of any dtype.
      mean: [ch] in the same units.
      std: [ch] in the same units.

    Returns:
      [..., ch] float32.
    """
    mean, std = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
    return (x.astype(jnp.float32) - mean) / std


def make_augment(names: tuple[str, ...], *, mean: np.ndarray, std: np.ndarray) -> Augment:
    """Builds the function that augments and normalises a training batch.

    Always in the order crop, flip, normalise, cutout, and for each example on its own:

    - crop: as large as the image, at a random place of the image padded by 4 raw zeros.
    - flip: left to right with probability one half.
    - cutout: a square of 16 pixels, its centre uniform over the image and cut off at the border,
      becomes 0 after normalisation, the mean colour.

    Args:
      names: out of AUGMENTATIONS; none for normalisation alone.
      mean: [ch] in the dataset's units.
      std: [ch] in the dataset's units.

    Returns:
      A pure function from a random key and raw images [B, H, W, ch] to [B, H, W, ch] float32.

    Raises:
      ValueError: if a name is unknown or given twice.

    Reference:
      The released training code of FedNTD (Lee et al., NeurIPS 2022) and FedLMD; cutout from
      DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout,
      2017.
    """
    parse_augment(','.join(names) or 'none')

    def augment(key: Array, raw: Array) -> Array:
        batch, height, width, _ = raw.shape
        # One draw for all choices: every call is a loop of its own on the CPU. What taking the
        # remainder prefers, it prefers by less than height / 2^32.
        bits = jax.random.bits(key, (5, batch))
        if 'crop' in names:
            row, column = (bits[:2] % (2 * _PADDING + 1)).astype(jnp.int32)
            raw = crop(raw, row, column)
        if 'flip' in names:
            raw = flip(raw, bits[2] % 2 == 1)
        x = normalise(raw, mean, std)
        if 'cutout' in names:
            row, column = (bits[3] % height).astype(jnp.int32), (bits[4] % width).astype(jnp.int32)
            x = cutout(x, row, column)
        return x

    return augment


def crop(raw: Array, row: Array, column: Array) -> Array:
    """Cuts images out of themselves padded by 4 zeros on each side.

    Args:
      raw: [B, H, W, ch].
      row: [B] int32 in 0..8, where the cut begins in the padded image; 4 leaves it in place.
      column: [B] int32 in 0..8.

    Returns:
      [B, H, W, ch].
    """
    pad = ((_PADDING, _PADDING), (_PADDING, _PADDING), (0, 0))

    def one(x: Array, r: Array, c: Array) -> Array:
        return jax.lax.dynamic_slice(jnp.pad(x, pad), (r, c, 0), x.shape)

    return jax.vmap(one)(raw, row, column)


def flip(raw: Array, chosen: Array) -> Array:
    """Mirrors the chosen images left to right.

    Args:
      raw: [B, H, W, ch].
      chosen: [B] bool.

    Returns:
      [B, H, W, ch].
    """
    return jnp.where(chosen[:, None, None, None], raw[:, :, ::-1], raw)


def cutout(x: Array, row: Array, column: Array) -> Array:
    """Sets a square of 16 pixels to zero, cut off at the border.

    Args:
      x: [B, H, W, ch].
      row: [B] int32, the square spans rows row - 8 to row + 7.
      column: [B] int32, likewise.

    Returns:
      [B, H, W, ch].
    """

    def inside(centre: Array, length: int) -> Array:
        distance = jnp.arange(length) - centre[:, None]
        return (distance >= -_HOLE // 2) & (distance < _HOLE // 2)

    hole = inside(row, x.shape[1])[:, :, None] & inside(column, x.shape[2])[:, None, :]
    return jnp.where(hole[..., None], 0, x)
