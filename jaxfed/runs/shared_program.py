"""Experiments that share a program: which settings may differ, and how these reach it.

What shapes a program or is written into it has to be the same. What is data may differ: who holds
which examples, who takes part in a round, where training starts from, and numbers, which the
program then takes as arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfed import methods
from jaxfed.config import SETTINGS, Config
from jaxfed.engine.round import Tuned
from jaxfed.methods import Part
from jaxfed.methods.method import Method
from jaxfed.runs.experiment import Experiment
from jaxfed.types import PyTree

# Arguments of the program where experiments differ in them. A learning rate always is one.
ARGUMENTS = tuple(name for name, setting in SETTINGS.items() if setting.in_program == 'argument')


def program_key(config: Config, parts: Sequence[Part], *, exact: bool = False) -> str:
    """A text that is the same for experiments that can share a program.

    Args:
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      exact: whether hyper-parameters, momentum and weight decay are written into the program, as
        for methods that compute with them in Python.
    """
    written = ('constant', 'argument') if exact else ('constant',)
    settings = {
        name: getattr(config, name)
        for name, setting in SETTINGS.items()
        if setting.in_program in written
    }
    hyperparameters = [
        (
            name,
            phase,
            {key: value for key, value in values.items() if exact or not _is_number(name, key)},
        )
        for name, values, phase in parts
    ]
    return repr((settings, hyperparameters))


def _is_number(method: str, name: str) -> bool:
    """Whether a hyper-parameter may be an argument of the program: a number that counts nothing."""
    return methods.hyperparameters(method)[name].annotation is float


def differing_hyperparameters(experiments: Sequence[Experiment]) -> dict[str, np.ndarray]:
    """'METHOD.NAME' -> [X] float32 of the hyper-parameters in which X experiments differ."""
    values: dict[str, list[Any]] = {}
    for experiment in experiments:
        # A method that is named in both of two phases has the same hyper-parameters in both.
        for name, chosen in {part.name: part.hyperparameters for part in experiment.parts}.items():
            for key, value in chosen.items():
                if _is_number(name, key):
                    values.setdefault(f'{name}.{key}', []).append(value)
    return {name: np.array(each, np.float32) for name, each in values.items() if len(set(each)) > 1}


def method_builder(experiments: Sequence[Experiment]) -> Callable[[PyTree], Method] | None:
    """Makes the function (traced hyper-parameters by 'METHOD.NAME') -> method.

    None where all experiments have the same hyper-parameters.
    """
    if not differing_hyperparameters(experiments):
        return None
    first = experiments[0]

    def build(traced: PyTree) -> Method:
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

    return build


def round_arguments(experiments: Sequence[Experiment], round_: int) -> Tuned:
    """The numbers [X] that the program of a round takes."""
    configs = [experiment.config for experiment in experiments]
    differing = {
        name: np.array([getattr(config, name) for config in configs], np.float32)
        for name in ARGUMENTS
        if len({getattr(config, name) for config in configs}) > 1
    }
    rates = [config.learning_rate * config.lr_decay ** (round_ - 1) for config in configs]
    return Tuned(
        np.array(rates, np.float32),
        **differing,
        hyperparameters=differing_hyperparameters(experiments) or (),
    )
