"""The random streams of an experiment."""

import numpy as np

from jaxfed.config import Config
from jaxfed.engine.cohorts import draw_cohort
from jaxfed.types import Cohort

# Separate random streams, so that changing what draws from one leaves the others as they are, and
# the setting that each one's seed is read from where it is given.
_STREAMS = {
    'partition': 'partition_seed',
    'cohort': 'cohort_seed',
    'initialisation': 'init_seed',
    'batches': 'batch_seed',
    'auxiliary': 'partition_seed',
    'label_noise': 'partition_seed',
    'hold_out': 'partition_seed',
    'validation': 'partition_seed',
    'availability': 'cohort_seed',
}


def stream(seed: int, name: str) -> int:
    """The seed of one of an experiment's random streams.

    Args:
      seed: of the experiment, or of what the stream belongs to.
      name: of the stream, one of `_STREAMS`.

    Returns:
      A 32-bit seed.
    """
    return int(np.random.SeedSequence([seed, list(_STREAMS).index(name)]).generate_state(1)[0])


def seed_of(config: Config, name: str) -> int:
    """The seed of one of the random streams of an experiment with these settings.

    Args:
      config: the settings; of them the seeds are read.
      name: as in `stream`.

    Returns:
      A 32-bit seed.
    """
    own: int | None = getattr(config, _STREAMS[name])
    return stream(config.seed if own is None else own, name)


def sample_cohort(config: Config, size: np.ndarray, round_: int) -> Cohort:
    """The clients of a round, and what becomes of them.

    Args:
      config: the settings.
      size: [N] examples of each client.
      round_: number of the round.

    Returns:
      The cohort.
    """
    return draw_cohort(
        round_,
        size,
        clients_per_round=config.clients_per_round,
        local_epochs=config.local_epochs,
        sampling=config.sampling,
        dropout=config.dropout,
        stragglers=config.stragglers,
        over_selection=config.over_selection,
        cohort_seed=seed_of(config, 'cohort'),
        availability_seed=seed_of(config, 'availability'),
    )
