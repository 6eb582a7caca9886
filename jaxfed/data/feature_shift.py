"""Feature skew: the images of every client are rotated, brighter or darker, or blurred."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from jaxfed.types import Array

FeatureShift = Literal['none', 'rotation', 'brightness', 'blur']
Shift = Callable[[Array, Array], Array]  # (raw images [B, H, W, ch], client []) -> images

# Kind -> the largest strength by default: degrees, share of the pixel's value, pixels.
STRENGTHS = {'rotation': 45.0, 'brightness': 0.5, 'blur': 1.0}


def check_feature_shift(
    kind: FeatureShift, strength: float | None, x_train: np.ndarray, source: str
) -> None:
    """Raises a ValueError in one line if a shift or its strength does not suit the images.

    Args:
      kind: of the shift.
      strength: of the client that differs most; None for the default.
      x_train: [n, H, W, channels].
      source: flag that passed the images, for messages.
    """
    if kind == 'none':
        if strength is not None:
            raise ValueError(
                f'--shift_strength={strength} has no effect; set --feature_shift, or remove it.'
            )
        return
    height, width = x_train.shape[1:3]
    if height == 1 or x_train.dtype == np.int32:
        raise ValueError(
            f'--feature_shift={kind} changes images; {source} has vectors, signals or text. Choose '
            'none.'
        )
    most = {'rotation': 180.0, 'brightness': 1.0, 'blur': min(height, width) / 6}[kind]
    strength = STRENGTHS[kind] if strength is None else strength
    if not 0 < strength <= most:
        unit = {'rotation': 'degrees', 'brightness': 'of the value', 'blur': 'pixels'}[kind]
        raise ValueError(
            f'--shift_strength={strength} must be above 0 and at most {most:g} ({unit}) for '
            f'--feature_shift={kind}.'
        )


def make_shift(kind: FeatureShift, strength: float | None, num_clients: int) -> Shift | None:
    """Makes the function that shifts the images of a client; None for 'none'.

    Client i of N has the place p_i = 2 i / (N - 1) - 1, from -1 to 1 (0 if N = 1), and S is the
    strength:

    - rotation: by p_i S degrees about the centre, bilinear, zeros outside.
    - brightness: pixels times 1 + p_i S; uint8 is cut off at 255.
    - blur: Gaussian with the deviation (1 + p_i) S / 2 pixels, edges repeated.

    Args:
      kind: of the shift.
      strength: S; None for `STRENGTHS`.
      num_clients: N.

    Returns:
      A pure function from raw images [B, H, W, ch] and a client [] to float32 images.

    Reference:
      Rotated clients as in Ghosh et al., An Efficient Framework for Clustered Federated Learning,
      NeurIPS 2020; brightness and blur as in Hendrycks and Dietterich, Benchmarking Neural Network
      Robustness to Common Corruptions and Perturbations, ICLR 2019.
    """
    if kind == 'none':
        return None
    largest = STRENGTHS[kind] if strength is None else strength

    def shift(images: Array, client: Array) -> Array:
        place = 2 * client / (num_clients - 1) - 1 if num_clients > 1 else jnp.zeros(())
        if kind == 'rotation':
            return rotate(images.astype(jnp.float32), jnp.deg2rad(place * largest))
        if kind == 'brightness':
            bright = images.astype(jnp.float32) * (1 + place * largest)
            return jnp.minimum(bright, 255) if images.dtype == jnp.uint8 else bright
        deviation = (1 + place) * largest / 2
        return blur(images.astype(jnp.float32), deviation, radius=math.ceil(3 * largest))

    return shift


def rotate(images: Array, angle: Array) -> Array:
    """Rotates images [B, H, W, ch] by `angle` radians about the centre, anticlockwise."""
    height, width = images.shape[1:3]
    rows = jnp.arange(height)[:, None] - (height - 1) / 2
    columns = jnp.arange(width)[None] - (width - 1) / 2
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    places = [
        cos * rows + sin * columns + (height - 1) / 2,
        cos * columns - sin * rows + (width - 1) / 2,
    ]
    plane = partial(map_coordinates, coordinates=places, order=1)
    return jax.vmap(jax.vmap(plane, in_axes=-1, out_axes=-1))(images)


def blur(images: Array, deviation: Array, *, radius: int) -> Array:
    """Convolves images [B, H, W, ch] with a Gaussian that is cut off at `radius` pixels."""
    offsets = jnp.arange(-radius, radius + 1)
    # A deviation of 0 gives the image itself.
    weights = jnp.exp(-0.5 * (offsets / jnp.maximum(deviation, 1e-3)) ** 2)
    weights = weights / weights.sum()
    for axis in (1, 2):
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(4)]
        padded, size = jnp.pad(images, pad, 'edge'), images.shape[axis]
        images = sum(
            weight * jax.lax.slice_in_dim(padded, start, start + size, axis=axis)
            for start, weight in enumerate(weights)
        )
    return images
