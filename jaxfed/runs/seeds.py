"""The random streams of an experiment."""

import numpy as np

from jaxfed.config import Config
from jaxfed.engine.cohorts import draw_cohort
from jaxfed.types import Cohort

# Stream -> the setting that replaces --seed for it. A change of what draws from one stream does not
# change the others. The order is part of every seed.
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
    'imbalance': 'partition_seed',
}


def stream(seed: int, name: str) -> int:
    """The 32-bit seed of a stream of `seed`."""
    return int(np.random.SeedSequence([seed, list(_STREAMS).index(name)]).generate_state(1)[0])


def seed_of(config: Config, name: str) -> int:
    """The 32-bit seed of a stream of an experiment."""
    seed: int | None = getattr(config, _STREAMS[name])
    return stream(config.seed if seed is None else seed, name)


def sample_cohort(config: Config, size: np.ndarray, round_: int) -> Cohort:
    """The clients of a round and the epochs that each completes; `size` [N] counts examples."""
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
