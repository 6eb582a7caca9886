"""How a convolution is computed: the one place that chooses, by what was measured.

- `grouped`: `jax.lax.conv_general_dilated` and its automatic gradients; a convolution that is
  mapped over kernels becomes a grouped one.
- `unrolled`: one convolution for each kernel, with gradients of its own (`ops.conv`).
- `patches`: one matrix product with the pixels that each place of the result sees.
- `fourier`: matrix products at each frequency (`ops.fourier`).
- `blocks`: where a 2x2 max-pool follows, a convolution of 2x2 blocks of pixels (`ops.conv_pool`);
  elsewhere the same as `unrolled`.
"""

from collections.abc import Sequence

import jax

LOWERINGS = ('grouped', 'unrolled', 'patches', 'fourier', 'blocks')


def lowering(
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    *,
    pooled: bool = False,
    platform: str | None = None,
) -> str:
    """Chooses how to compute a convolution.

    Args:
      image: height and width of the input.
      kernel: height, width, input and output channels.
      strides: step along height and width.
      pooled: whether a 2x2 max-pool follows.
      platform: 'cpu', 'gpu', 'tpu' ...; None for the default backend's.

    Returns:
      One of `LOWERINGS`.
    """
    if (platform or jax.default_backend()) != 'cpu':
        return 'grouped'
    height, width, channels, _ = kernel
    if pooled and channels < 4:
        return 'blocks'
    if channels < 4 or max(strides) > 1 or height * width == 1:
        return 'unrolled'
    # A large image has too many frequencies for a small kernel to pay for, and with many channels
    # the products at the frequencies take longer than the arithmetic they save.
    large = height * width >= 16 and max(image) <= 32
    small = height * width >= 9 and 4 <= max(image) <= 16 and channels * max(image) <= 1024
    if large or small:
        return 'fourier'
    # On tiny images one product is faster: 5 % on 4x4, 40 % on 2x2, of 512 to 512 channels.
    return 'patches' if max(image) <= 4 else 'unrolled'


def check(use: str | None) -> None:
    """Refuses an unknown way to compute a convolution.

    Args:
      use: one of `LOWERINGS`, or None.

    Raises:
      ValueError: it is neither.
    """
    if use is not None and use not in LOWERINGS:
        raise ValueError(f'use={use!r} must be one of {", ".join(LOWERINGS)}, or None to choose.')
