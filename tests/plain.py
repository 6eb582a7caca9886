"""Runs through the public interface, compared with the plain loop of `oracle`."""

import contextlib
import dataclasses
import tempfile
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np

import jaxfed
from jaxfed.runs import simulate
from jaxfed.runs.arrays import checked_arrays, name_arrays
from jaxfed.runs.experiment import make_experiment
from tests import oracle
from tests.networks import tiny_networks

# Of the largest parameter, and of a loss. Both programs compute in float32, in another order.
TOLERANCE = 1e-4


class Outcome(NamedTuple):
    """What became of a run."""

    kind: str  # 'equal' to the plain loop, 'refused' or 'diverged' as the plain loop
    line: str = ''  # of the error
    deviation: float = 0.0  # from the plain loop, of `TOLERANCE`'s unit


@contextlib.contextmanager
def cheap_runs():
    """Runs draw no pictures, and know the tiny networks."""
    with contextlib.ExitStack() as stack:
        for name in ('draw_heatmap', 'draw_accuracy'):
            stack.enter_context(mock.patch.object(simulate, name, lambda *_, **__: None))
        stack.enter_context(tiny_networks())
        yield


def try_run(settings, dataset) -> Outcome:
    """Runs an experiment and compares it with the plain loop.

    Raises:
      AssertionError: if they differ, or an error is not one line.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = jaxfed.Config(**settings, workdir=f'{folder}/run')
        try:
            result = jaxfed.simulate(config, dataset=dataset, quiet=True, compilation_cache=False)
        except ValueError as error:
            return Outcome('refused', one_line(error))
        except jaxfed.Diverged as error:
            result = error
    return compare(config, dataset, result)


def compare(config, dataset, result) -> Outcome:
    """Compares the result of a run, or the error of one that diverged, with the plain loop."""
    arrays = checked_arrays(dataset)
    config = name_arrays(dataclasses.replace(config, workdir=None), arrays)
    server, _, recorded = oracle.run_experiment(make_experiment(config, None, arrays))
    if isinstance(result, jaxfed.Diverged):
        lost = [loss for pair in recorded for loss in pair if loss is not None]
        assert not np.isfinite(lost).all(), f'only the engine diverged: {result}'
        return Outcome('diverged', one_line(result).partition('; training')[0])
    pairs = [
        *zip(jax.tree.leaves(result.params), jax.tree.leaves(server.params), strict=True),
        *zip(jax.tree.leaves(result.stats), jax.tree.leaves(server.stats), strict=True),
    ]
    assert all(np.isfinite(leaf).all() for pair in pairs for leaf in pair)
    scale = max(np.abs(want).max() for _, want in pairs)
    deviations = [np.abs(got - want).max() / scale for got, want in pairs]
    for entry, (train_loss, test_loss) in zip(result.metrics, recorded, strict=True):
        deviations.append(deviation(entry['train_loss'], train_loss))
        deviations.append(deviation(entry['test_loss'], test_loss))
    assert max(deviations) < TOLERANCE, f'deviates from the plain loop by {max(deviations):.1e}'
    return Outcome('equal', deviation=float(max(deviations)))


def deviation(got, want):
    """Of a recorded loss, which has six decimals."""
    if want is None:
        return 0.0 if got is None else np.inf
    return max(abs(got - want) - 1e-6, 0) / max(abs(want), 1e-2)


def one_line(error):
    """The text of an error for users."""
    assert len(str(error).splitlines()) == 1, repr(error)
    assert type(error) is ValueError or type(error).__module__.startswith('jaxfed'), repr(error)
    return str(error)
