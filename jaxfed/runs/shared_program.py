"""Experiments that share a program: which settings may differ, and how these reach it.

What shapes a program or is written into it has to be the same. What is data may differ: who holds
which examples, who takes part in a round, where training starts from, and numbers, which the
program then takes as arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from jaxfed import methods
from jaxfed.config import Config
from jaxfed.engine.round import Tuned
from jaxfed.methods import Part
from jaxfed.methods.method import Method
from jaxfed.runs.experiment import Experiment
from jaxfed.types import PyTree

# Arguments of the program, where they differ. A learning rate always is one.
NUMBERS = ('momentum', 'weight_decay')
# What the host alone looks at.
HOST = (
    'alpha',
    'balanced',
    'batch_seed',
    'cohort_seed',
    'dropout',
    'hyperparameters',  # those of the parts tell more
    'init_seed',
    'label_noise',
    'label_noise_form',
    'labels_per_client',
    'learning_rate',
    'lr_decay',
    'min_size',
    'min_user_size',
    'num_users',
    'over_selection',
    'partition',
    'partition_seed',
    'partition_settings',
    'resume',
    'sampling',
    'seed',
    'shards_per_client',
    'size_alpha',
    'stragglers',
    'target_accuracy',
    'workdir',
)


def program_of(config: Config, parts: Sequence[Part], *, exact: bool = False) -> str:
    """What tells experiments apart that cannot share a program.

    Args:
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      exact: whether hyper-parameters, momentum and weight decay are written into the program, as
        for methods that compute with them in Python.

    Returns:
      A text that is the same for those that can.
    """
    free = () if exact else NUMBERS
    own = [
        (
            name,
            phase,
            {key: value for key, value in values.items() if exact or not _free(name, key)},
        )
        for name, values, phase in parts
    ]
    told = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in HOST and field.name not in free
    }
    return repr((told, own))


def _free(name: str, key: str) -> bool:
    """Whether a hyper-parameter may be an argument of the program: numbers that count nothing."""
    return methods.hyperparameters(name)[key].annotation is float


def varied(experiments: Sequence[Experiment]) -> dict[str, np.ndarray]:
    """The hyper-parameters in which experiments that share a program differ.

    Args:
      experiments: X of them.

    Returns:
      'METHOD.NAME' -> [X] float32.
    """
    values: dict[str, list[Any]] = {}
    for experiment in experiments:
        for name, own, phase in experiment.parts:
            for key, value in own.items():
                if _free(name, key) and (name, phase) == _first(experiment.parts, name):
                    values.setdefault(f'{name}.{key}', []).append(value)
    return {
        name: np.array(given, np.float32) for name, given in values.items() if len(set(given)) > 1
    }


def _first(parts: Sequence[Part], name: str) -> tuple[str, int]:
    """A method that is named in both of two phases has the same hyper-parameters in both."""
    return next((part.name, part.phase) for part in parts if part.name == name)


def tune(experiments: Sequence[Experiment]) -> Callable[[PyTree], Method] | None:
    """What makes the method of each of several experiments.

    Args:
      experiments: X of them.

    Returns:
      (hyper-parameters, as of `varied` but traced and without their axis) -> the method; None where
      all have the same.
    """
    if not varied(experiments):
        return None
    first = experiments[0]

    def method_with(traced: PyTree) -> Method:
        parts = [
            part._replace(
                hyperparameters={
                    key: traced.get(f'{part.name}.{key}', value)
                    for key, value in part.hyperparameters.items()
                }
            )
            for part in first.parts
        ]
        return methods.build(parts, switch_round=first.config.switch_round)

    return method_with


def tuned(experiments: Sequence[Experiment], round_: int) -> Tuned:
    """The numbers that a round's program takes.

    Args:
      experiments: X of them.
      round_: number of the round.

    Returns:
      [X] arrays.
    """
    configs = [experiment.config for experiment in experiments]
    differing = {
        name: np.array([getattr(config, name) for config in configs], np.float32)
        for name in NUMBERS
        if len({getattr(config, name) for config in configs}) > 1
    }
    rates = [config.learning_rate * config.lr_decay ** (round_ - 1) for config in configs]
    return Tuned(
        np.array(rates, np.float32), **differing, hyperparameters=varied(experiments) or ()
    )
