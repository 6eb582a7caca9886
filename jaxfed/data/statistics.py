"""Mean and standard deviation of the pixels, for normalisation."""

import numpy as np

_BLOCK = 1000  # images converted to float64 at once


def channel_statistics(x_train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the mean and standard deviation of each channel over all pixels.

    Args:
      x_train: [n, H, W, ch] uint8 or float32, or int32 token ids.

    Returns:
      Mean and population standard deviation, [ch] float32 each, in the units of `x_train`. The
      deviation of a channel that is constant, or varies by less than the smallest normal float32,
      is 1, so that division by it is safe. 0 and 1 for token ids.

    Raises:
      ValueError: if `x_train` is not four-dimensional or empty.
    """
    if x_train.ndim != 4 or not x_train.size:
        raise ValueError(f'x_train has shape {x_train.shape}: pass images [n, H, W, channels].')
    if x_train.dtype == np.int32:  # token ids
        return np.zeros(x_train.shape[-1:], np.float32), np.ones(x_train.shape[-1:], np.float32)
    if x_train.dtype == np.uint8:
        values = np.arange(256)
        counts = np.stack([_histogram(x_train[..., c]) for c in range(x_train.shape[-1])])
        weights = counts / counts.sum(axis=1, keepdims=True)
        mean = weights @ values
        variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1)
    else:
        blocks = [x_train[i : i + _BLOCK] for i in range(0, len(x_train), _BLOCK)]
        pixels = x_train.size / x_train.shape[-1]
        mean = sum(block.sum((0, 1, 2), np.float64) for block in blocks) / pixels
        variance = sum(((block - mean) ** 2).sum((0, 1, 2)) for block in blocks) / pixels
    std = np.sqrt(variance)
    normal = std >= np.finfo(np.float32).tiny  # XLA takes smaller numbers for 0
    return mean.astype(np.float32), np.where(normal, std, 1).astype(np.float32)


def _histogram(pixels: np.ndarray) -> np.ndarray:
    """Returns how often each of the 256 values occurs."""
    # In blocks, because bincount converts its argument to int64.
    blocks = (pixels[i : i + _BLOCK] for i in range(0, len(pixels), _BLOCK))
    return np.sum([np.bincount(block.ravel(), minlength=256) for block in blocks], axis=0)
