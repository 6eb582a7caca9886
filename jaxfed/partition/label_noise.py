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
    classes, all equally likely; `rho_i = rho`, or `rho_i ~ U(0, rho)` in the form 'uniform'. A
    client's draws depend only on the seed and its id, and an example that is wrong at some rate has
    the same wrong label at every higher rate.

    Args:
      labels: [n] integers in 0..C-1, the class of each training example; not changed.
      parts: N index arrays into labels, the examples of each client.
      num_classes: number of classes C.
      rate: rho, 0..1.
      seed: of the noise.
      form: 'equal' for the same rate at all clients, 'uniform' for a random rate at each.

    Returns:
      [n] integers, a copy of labels with the noise; labels of examples that no client holds do not
      change.

    Raises:
      ValueError: if rate or form is invalid, or there is only one class.

    Reference:
      Symmetric noise as in Patrini et al., Making Deep Neural Networks Robust to Label Noise,
      CVPR 2017; a rate for each client as in Xu et al., FedCorr: Multi-Stage Federated
      Learning for Label Noise Correction, CVPR 2022, section 3.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f'label_noise={rate} must be from 0 (none) to 1 (all).')
    if form not in ('equal', 'uniform'):
        raise ValueError(f'label_noise_form={form!r} must be equal or uniform.')
    if rate > 0 and num_classes < 2:
        raise ValueError(
            f'label_noise={rate} with num_classes={num_classes}: there is no other class; choose '
            '--label_noise=0.'
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
