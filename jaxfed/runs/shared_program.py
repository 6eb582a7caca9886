"""Experiments that share a program: which settings may differ, and how the program receives them.

Settings that shape a program or are constants in it must be equal. Data may differ: the partition,
the cohorts, the initial parameters, and numbers, which the program then takes as arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxfed import methods
from jaxfed.config import SETTINGS, Config
from jaxfed.engine.types import Tuned
from jaxfed.methods import Part
from jaxfed.methods.method import Method
from jaxfed.runs.attack import with_attack
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.learning_rate import learning_rate
from jaxfed.types import PyTree

# JAX raises subclasses if Python or NumPy computes with a traced value, Python raises this if it
# hashes or formats one.
TRACER_ERROR = TypeError

# Arguments of the program if experiments differ in them. The learning rate is always an argument.
ARGUMENTS = tuple(name for name, setting in SETTINGS.items() if setting.in_program == 'argument')


def program_key(config: Config, parts: Sequence[Part], *, exact: bool = False) -> str:
    """A text that is the same for experiments that can share a program.

    Args:
      config: the settings.
      parts: the method's parts with all their hyper-parameters.
      exact: whether hyper-parameters and settings that could be arguments of the program, such as
        momentum, are constants of it, as for methods that compute with them in Python.
    """
    constant = ('constant', 'argument') if exact else ('constant',)
    names = [name for name, setting in SETTINGS.items() if setting.in_program in constant]
    hyperparameters = [
        (name, phase, {k: v for k, v in values.items() if exact or not _is_number(name, k)})
        for name, values, phase in parts
    ]
    return repr(({name: getattr(config, name) for name in names}, hyperparameters))


def _is_number(method: str, name: str) -> bool:
    """Whether a hyper-parameter may be an argument of the program; counts may not."""
    return methods.hyperparameters(method)[name].annotation is float


def differing_hyperparameters(experiments: Sequence[Experiment]) -> dict[str, np.ndarray]:
    """'METHOD.NAME' -> [X] float32 of the hyper-parameters in which X experiments differ."""
    values: dict[str, list[Any]] = {}
    for experiment in experiments:
        # A method in both phases has the same hyper-parameters in both.
        for name, chosen in {part.name: part.hyperparameters for part in experiment.parts}.items():
            for key, value in chosen.items():
                if _is_number(name, key):
                    values.setdefault(f'{name}.{key}', []).append(value)
    return {name: np.array(each, np.float32) for name, each in values.items() if len(set(each)) > 1}


def method_builder(experiments: Sequence[Experiment]) -> Callable[[PyTree], Method] | None:
    """Makes the function (traced hyper-parameters by 'METHOD.NAME') -> method.

    None if all experiments have the same hyper-parameters.
    """
    if not differing_hyperparameters(experiments):
        return None
    first = experiments[0]

    def build(traced: PyTree) -> Method:
        parts = []
        for part in first.parts:
            values = part.hyperparameters.items()
            chosen = {key: traced.get(f'{part.name}.{key}', value) for key, value in values}
            parts.append(part._replace(hyperparameters=chosen))
        method = methods.build(parts, switch_round=first.config.switch_round)
        return with_attack(first.config, method)

    return build


def round_arguments(
    experiments: Sequence[Experiment], round_: int, running: np.ndarray | None = None
) -> Tuned:
    """The arguments [X] of the program of a round; `running` [X] bool, None for all."""
    configs = [experiment.config for experiment in experiments]
    differing = {
        name: np.array([getattr(config, name) for config in configs], np.float32)
        for name in ARGUMENTS
        if len({getattr(config, name) for config in configs}) > 1
    }
    going = np.ones(len(configs), bool) if running is None else running
    merges = any(experiment.method.always_merges for experiment in experiments)
    rates = [learning_rate(config, round_) for config in configs]
    return Tuned(
        np.array(rates, np.float32),
        **differing,
        running=going.astype(np.float32) if merges else None,
        hyperparameters=differing_hyperparameters(experiments) or (),
    )
