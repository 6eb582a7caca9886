"""The clients' learning rate by round."""

import math

from jaxfed.config import DEFAULTS, Config


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
    """Raises a ValueError in one line for a setting that --schedule does not read."""
    read = {
        'exponential': ('lr_decay',), 'step': ('lr_decay', 'lr_step'), 'cosine': ('warmup_rounds',),
    }[config.schedule]  # fmt: skip
    for name in ('lr_decay', 'lr_step', 'warmup_rounds'):
        value = getattr(config, name)
        if value != DEFAULTS[name] and name not in read:
            reader = {'lr_decay': 'exponential', 'lr_step': 'step', 'warmup_rounds': 'cosine'}[name]
            raise ValueError(
                f'--{name}={value} has no effect with --schedule={config.schedule}; remove it or '
                f'set --schedule={reader}.'
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
