"""Chooses how a convolution is computed, from measurements.

- `grouped`: `jax.lax.conv_general_dilated` and its automatic gradients; `jax.vmap` over
  kernels makes it a grouped convolution.
- `unrolled`: one convolution for each kernel, with explicit gradients (`ops.unrolled`).
- `patches`: one matrix product with the receptive field of each pixel of the result.
- `fourier`: matrix products at each frequency (`ops.fourier`).
- `blocks`: `patches` of blocks of pixels (`ops.conv_pool`) if a 2x2 max-pool follows, otherwise
  the same as `unrolled`.
"""

from collections.abc import Sequence

from jaxfed.internal.backend import backend, on_cpu

Pads = tuple[tuple[int, int], tuple[int, int]]  # zeros (low, high) along height and width
LAYOUT = ('NHWC', 'HWIO', 'NHWC')  # of all fast lowerings
LOWERINGS = ('grouped', 'unrolled', 'patches', 'fourier', 'blocks')


def lowering(
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    *,
    batch: int = 1,
    pooled: bool = False,
) -> str:
    """Chooses one of `LOWERINGS` for `batch` images [H, W] and a kernel [height, width, in, out].

    `pooled` is whether a 2x2 max-pool follows.
    """
    height, width, channels, _ = kernel
    if backend() == 'gpu' and pooled and height == width == 5:
        # In float32 on an H200, training of `cnn` takes 0.8 times as long as with `grouped`, and of
        # `lenet` 0.5 times (BUILD_NOTES.md, a GPU, measured).
        return 'blocks'
    if not on_cpu():
        # Compiled for an H100 and a TPU, it moves the fewest bytes (BUILD_NOTES.md, accelerators).
        return 'grouped'
    if pooled and channels < 4:
        return 'blocks'
    if height * width == 1:
        return 'patches'
    # The frequencies of a large image cost more than a small kernel saves, and with many channels
    # the products at the frequencies take longer than the arithmetic they save.
    large = height * width >= 16 and max(image) <= 32
    small = height * width >= 9 and 4 <= max(image) <= 16 and channels * max(image) <= 1024
    # A pool saves the order of the results; the frequencies of a kernel cost as much as 20 images.
    many = pooled and height * width >= 9 and max(image) <= 32 and batch >= 32
    if channels >= 4 and max(strides) == 1 and (large or small or many):
        return 'fourier'
    # On tiny images one product is faster: 5 % on 4x4, 40 % on 2x2, of 512 to 512 channels.
    return 'patches' if max(image) <= 4 else 'unrolled'


def check_lowering(use: str | None) -> None:
    """Raises a ValueError unless `use` is one of `LOWERINGS` or None."""
    if use is not None and use not in LOWERINGS:
        names = ', '.join(LOWERINGS)
        raise ValueError(f'use must be one of {names}, or None to choose, got {use!r}.')
