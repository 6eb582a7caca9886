"""Successive halving: after some rounds the worse half of the settings is given up."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from jaxfed.config import Config
from jaxfed.runs.simulate import Stop


def parse_halving(text: str | None, config: Config) -> list[int]:
    """Reads after which rounds settings are given up.

    Args:
      text: as '10,20'; None or '' for none.
      config: the settings.

    Returns:
      The rounds.

    Raises:
      ValueError: if they are no rounds of training, or nothing is held out to judge by.
    """
    if not text:
        return []
    words = text.split(',')
    if not all(word.isdecimal() and 0 < int(word) < config.rounds for word in words):
        raise ValueError(
            f'--halving={text} must be rounds below --rounds={config.rounds}, joined by commas, as '
            'in --halving=10,20.'
        )
    if not config.validation:
        raise ValueError(
            f'--halving={text} judges by training data held out, never by test data, but '
            '--validation=0; give it, as in --validation=0.1.'
        )
    rounds = sorted({int(word) for word in words})
    if rounds[0] < config.eval_every:
        raise ValueError(
            f'--halving={text}: nothing is evaluated by round {rounds[0]} with '
            f'--eval_every={config.eval_every}; halve later, or evaluate more often.'
        )
    return rounds


def halving(rounds: Sequence[int], settings: Sequence[Hashable]) -> Stop:
    """Successive halving: after each of some rounds the better half of the settings goes on.

    A setting is as good as the mean over its seeds of the last accuracy on the held-out training
    examples; one that diverged is worst. Of an odd number the larger half goes on.

    Args:
      rounds: after which settings are given up.
      settings: X, of each experiment; the same for the seeds of one.

    Returns:
      What `simulation.train_together` takes as `stop`.

    Reference:
      Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
      Optimization, AISTATS 2016, figure 2.
    """

    def stop(
        round_: int, metrics: Sequence[list[dict[str, Any]]], running: Sequence[int]
    ) -> list[int]:
        if round_ not in rounds:
            return []
        score: dict[Hashable, float] = {}
        for setting in dict.fromkeys(settings[x] for x in running):
            last = [
                _last(metrics[x]) if x in running else -np.inf
                for x, own in enumerate(settings)
                if own == setting
            ]
            score[setting] = float(np.mean(last))
        ranked = sorted(score, key=lambda setting: -score[setting])
        stays = set(ranked[: (len(ranked) + 1) // 2])
        return [x for x in running if settings[x] not in stays]

    return stop


def _last(metrics: Sequence[dict[str, Any]]) -> float:
    found = [e['test_accuracy'] for e in metrics if e['test_accuracy'] is not None]
    return found[-1] if found else -np.inf
