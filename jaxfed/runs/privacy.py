"""The privacy of clients that the noise of a method gives, by the library dp-accounting."""

import functools
import importlib.util
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from jaxfed.config import Config
from jaxfed.methods import Method

MOST_NOISE = 1e6  # in multiples of the norm; 10^8 is the most that dp-accounting computes with


class Release(NamedTuple):
    """A noisy sum of a round's updates, as the accounting sees it."""

    num_clients: int
    clients_per_round: int
    dropout: float
    noise: float

    @property
    def neighbours(self) -> str:
        """How the sets of clients differ that epsilon compares."""
        # A sample of fixed size always has one client instead of another; if all clients take part
        # but those that fail at random, each is in the sum or not, independently of the others.
        return 'replace_one' if self.clients_per_round < self.num_clients else 'add_or_remove_one'


def check_privacy(config: Config, method: Method) -> None:
    """Raises a ValueError in one line if epsilon cannot be computed, or does not bound the loss."""
    if method.privacy is None:
        return
    if config.sampling != 'uniform':
        raise ValueError(
            f'--sampling={config.sampling} with --method={config.method}: epsilon is known for '
            '--sampling=uniform only; remove the flag.'
        )
    if config.over_selection:
        raise ValueError(
            f'--over_selection={config.over_selection} with --method={config.method} prefers '
            'clients with few examples, for which epsilon is not known; remove the flag.'
        )
    if method.privacy.delta >= 1 / config.num_clients:
        raise ValueError(
            f'--delta={method.privacy.delta} must be below {1 / config.num_clients:.3g}, 1 over '
            '--num_clients; else a method that reveals one client could pass.'
        )
    if method.privacy.noise > MOST_NOISE:
        raise ValueError(
            f'--noise={method.privacy.noise:g} must be at most {MOST_NOISE:g}: epsilon cannot be '
            'computed above.'
        )
    if method.privacy.noise and importlib.util.find_spec('dp_accounting') is None:
        raise ValueError(
            f'--method={config.method} needs the package dp-accounting for epsilon: pip install '
            "-e '.[privacy]', or set --noise=0."
        )


def privacy_after(config: Config, method: Method, rounds: int) -> dict[str, Any]:
    """The fields of records after some rounds; {} for a method without noise on the sum.

    Returns:
      'epsilon', None if it is infinite, 'delta' and 'neighbours'.
    """
    if method.privacy is None:
        return {}
    noise, delta = map(float, method.privacy)
    release = Release(config.num_clients, config.clients_per_round, config.dropout, noise)
    bound = epsilon(release, rounds, delta)
    return {
        'epsilon': round(bound, 6) if np.isfinite(bound) else None,
        'delta': delta,
        'neighbours': release.neighbours,
    }


def epsilon(release: Release, rounds: int, delta: float) -> float:
    """The bound of the privacy loss of `rounds` releases that fails with probability `delta`.

    Reference:
      Wang, Balle and Kasiviswanathan, Subsampled Renyi Differential Privacy and Analytical Moments
      Accountant, AISTATS 2019, theorem 27; Mironov, Talwar and Zhang, Renyi Differential Privacy
      of the Sampled Gaussian Mechanism, 2019.
    """
    if not release.noise:
        return float('inf')
    from dp_accounting.rdp import compute_epsilon

    orders, divergences = _renyi_divergences(release)
    return float(compute_epsilon(orders, rounds * divergences, delta)[0])


@functools.lru_cache
def _renyi_divergences(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the Renyi divergence of one release at each."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relation = dp_accounting.NeighboringRelation
    event: dp_accounting.DpEvent
    if release.neighbours == 'replace_one':
        # Two clipped updates differ by at most twice the norm. Failures can only lower the loss.
        accountant = RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
        noisy = dp_accounting.GaussianDpEvent(release.noise / 2)
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            release.num_clients, release.clients_per_round, noisy
        )
    else:
        accountant = RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
        noisy = dp_accounting.GaussianDpEvent(release.noise)
        event = dp_accounting.PoissonSampledDpEvent(1 - release.dropout, noisy)
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns of orders that it then leaves out
    try:
        accountant.compose(event)
    finally:
        logging.set_verbosity(before)
    # A sampled release is a mixture of releases, so its divergence is at most theirs.
    whole = accountant.orders / (2 * noisy.noise_multiplier**2)
    return accountant.orders, np.minimum(accountant.rdp, whole)
