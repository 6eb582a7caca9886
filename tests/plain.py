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
# A difference is rounding if it is below this multiple of what other last bits change.
AMPLIFIED = 30
# Where other last bits change more than this, every difference may be rounding.
CHAOTIC = 1e-2


class Outcome(NamedTuple):
    """What became of a run."""

    # 'equal' to the plain loop, or up to 'amplified' rounding; 'refused'; 'diverged' as that does
    kind: str
    line: str = ''  # of the error
    deviation: float = 0.0  # from the plain loop, see `deviation`


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
    return compare_experiment(experiment_of(config, dataset), result)


def experiment_of(config, dataset):
    """The experiment of a run on arrays; raises ValueError if it is refused."""
    arrays = checked_arrays(dataset)
    config = name_arrays(dataclasses.replace(config, workdir=None), arrays)
    return make_experiment(config, None, arrays)


def compare_experiment(experiment, result) -> Outcome:
    """As `compare`."""
    server, _, recorded = oracle.run_experiment(experiment)
    if isinstance(result, jaxfed.Diverged):
        lost = [loss for pair in recorded for loss in pair if loss is not None]
        assert not np.isfinite(lost).all(), f'only the engine diverged: {result}'
        return Outcome('diverged', one_line(result).partition('; training')[0])
    models = (result.params, result.stats), (server.params, server.stats)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models))
    pairs = [(entry['train_loss'], entry['test_loss']) for entry in result.metrics]
    found = deviation(models[0], pairs, models[1], recorded)
    if found < TOLERANCE:
        return Outcome('equal', deviation=found)
    # Rounding changes the last bit of the parameters. Batch statistics of two examples, Adam with
    # gradients near zero, and methods that round or choose updates can amplify that without limit.
    other, _, changed = oracle.run_experiment(experiment, noise=1e-7)
    amplified = deviation((other.params, other.stats), changed, models[1], recorded)
    assert found < AMPLIFIED * amplified or amplified > CHAOTIC, (
        f'deviates from the plain loop by {found:.1e}, which deviates by {amplified:.1e} from '
        'itself with other last bits'
    )
    return Outcome('amplified', deviation=found)


def deviation(model, losses, other_model, other_losses):
    """The largest difference of two runs: of parameters, of the largest; of losses, relative."""
    pairs = [*zip(jax.tree.leaves(model), jax.tree.leaves(other_model), strict=True)]
    scale = max(np.abs(want).max() for _, want in pairs)
    found = [np.abs(got - want).max() / scale for got, want in pairs]
    for one, other in zip(losses, other_losses, strict=True):
        found += [loss_deviation(got, want) for got, want in zip(one, other, strict=True)]
    return float(np.max(found))  # NaN if one is


def loss_deviation(got, want):
    """Of a recorded loss, which has six decimals."""
    if want is None:
        return 0.0 if got is None else np.inf
    return max(abs(got - want) - 1e-6, 0) / max(abs(want), 1e-2)


def one_line(error):
    """The text of an error for users."""
    assert len(str(error).splitlines()) == 1, repr(error)
    assert type(error) is ValueError or type(error).__module__.startswith('jaxfed'), repr(error)
    return str(error)
