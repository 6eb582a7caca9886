"""The clients' learning rate by round."""

import math

from jaxfed.config import DEFAULTS, Config

# Setting -> the values of --schedule that read it.
_READERS = {
    'lr_decay': ('exponential', 'step'),
    'lr_step': ('step',),
    'warmup_rounds': ('cosine',),
}


def learning_rate(config: Config, round_: int) -> float:
    """The learning rate of a round from 1, by --schedule."""
    past, rate = round_ - 1, config.learning_rate
    if config.schedule == 'exponential':
        return rate * config.lr_decay**past
    if config.schedule == 'step':
        assert config.lr_step is not None  # because `check_learning_rate` passed
        return rate * config.lr_decay ** (past // config.lr_step)
    if past < config.warmup_rounds:
        return rate * round_ / (config.warmup_rounds + 1)
    share = (past - config.warmup_rounds) / max(config.rounds - config.warmup_rounds, 1)
    return rate * (1 + math.cos(math.pi * share)) / 2


def check_learning_rate(config: Config) -> None:
    """Raises a ValueError in one line for settings that do not suit --schedule or --rounds."""
    for name, readers in _READERS.items():
        value = getattr(config, name)
        if value != DEFAULTS[name] and config.schedule not in readers:
            raise ValueError(
                f'--{name}={value} has no effect with --schedule={config.schedule}; remove it or '
                f'set --schedule={readers[0]}.'
            )
    if config.schedule == 'step' and (config.lr_step is None or config.lr_decay == 1):
        raise ValueError(
            '--schedule=step needs --lr_step, the rounds after which the learning rate falls, and '
            f'--lr_decay below 1, as in --lr_step=10 --lr_decay=0.1, got {config.lr_step} and '
            f'{config.lr_decay}.'
        )
    if config.warmup_rounds >= config.rounds:
        raise ValueError(
            f'--warmup_rounds={config.warmup_rounds} must be below --rounds={config.rounds}.'
        )
