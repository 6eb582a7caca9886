"""Rounds in one wave, of several experiments or of one, without the axis of experiments."""

import jax
import numpy as np

from jaxfed.engine import execution
from jaxfed.engine.stacking import row
from jaxfed.engine.types import Tuned
from jaxfed.internal.backend import compile_all


def run_experiments(programs, mesh, server, states, cohort, plan, tuned, keys, data):
    """(server, metrics, local models) of a round of X experiments; see `run_waves`."""
    server, metrics, models = execution.run_waves(
        programs, mesh, server, states, cohort, [(plan, data)], tuned, keys
    )
    return server, metrics, models[0][1]


def add_axis(server, states, cohort, plan, learning_rate, key, data):
    """The arguments of `run_experiments` after the mesh, from those of one experiment."""
    server, cohort, key, stacked_data = jax.tree.map(
        lambda leaf: leaf[None], (server, cohort, key, data._replace(x=()))
    )
    tuned = Tuned(np.array([learning_rate]))
    return server, states, cohort, plan, tuned, key, stacked_data._replace(x=data.x)


def run_round(programs, mesh, *arguments):
    server, metrics, models = run_experiments(programs, mesh, *add_axis(*arguments))
    return row(server, 0), row(metrics, 0), models


def compile_round(functions, mesh, *arguments):
    return compile_all(execution.lower_round(functions, mesh, *add_axis(*arguments)))
