"""Label noise at the clients."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

NoiseForm = Literal['equal', 'uniform']


def label_noise(
    labels: np.ndarray,
    parts: Sequence[np.ndarray],
    *,
    num_classes: int,
    rate: float,
    seed: int,
    form: NoiseForm = 'equal',
) -> np.ndarray:
    """Corrupts labels of the clients with symmetric noise.

    Client `i` replaces each of its labels with probability `rho_i` by one of the `C - 1` other
    classes, all equally likely; `rho_i = rho`, or `rho_i ~ U(0, rho)` in the form 'uniform'. The
    draws of a client depend only on the seed and its id. An example that is wrong at one rate has
    the same wrong label at every higher rate.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example.
      parts: N index arrays into labels, the examples of each client.
      num_classes: number of classes C.
      rate: rho, from 0 to 1.
      seed: random seed of the noise.
      form: 'equal' for the same rate at all clients, 'uniform' for a random rate at each client.

    Returns:
      [n] integers, the noisy labels; labels of examples without a client are unchanged.

    Raises:
      ValueError: if rate or form is invalid, or the rate is above 0 and there is only one class.

    Reference:
      Symmetric noise as in Patrini et al., Making Deep Neural Networks Robust to Label Noise,
      CVPR 2017; a rate for each client as in Xu et al., FedCorr: Multi-Stage Federated
      Learning for Label Noise Correction, CVPR 2022, section 3.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f'--label_noise must be from 0 (none) to 1 (all), got {rate}.')
    if form not in ('equal', 'uniform'):
        raise ValueError(f'--label_noise_form must be equal or uniform, got {form!r}.')
    if rate > 0 and num_classes < 2:
        raise ValueError(
            f'--label_noise must be 0 with num_classes={num_classes}, got {rate}: there is no '
            'other class.'
        )
    noisy = np.array(labels)
    if rate == 0:
        return noisy
    for i, part in enumerate(parts):
        rng = np.random.default_rng([seed, i])
        scale = rng.random()
        wrong = rng.random(len(part)) < rate * (scale if form == 'uniform' else 1)
        shift = rng.integers(1, num_classes, len(part))
        noisy[part] = np.where(wrong, (noisy[part] + shift) % num_classes, noisy[part])
    return noisy
