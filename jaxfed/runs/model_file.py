"""The trained network as one file, model.safetensors: its parameters and what it takes to run it.

The format holds arrays and text only, so that reading a file executes nothing of it, and other
programs read it too.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from jaxfed.internal import files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import digest
from jaxfed.runs.experiment import Experiment, make_network
from jaxfed.types import PyTree

ENTRY = 'jaxfed'  # of the file's metadata
STATS = 'batch_stats.'  # what the names of batch statistics begin with
OPTIONS = ('model', 'norm', 'stem', 'width', 'remat', 'conv', 'precision')  # of `Config`


class Described(NamedTuple):
    """What model.safetensors tells of a network, in its metadata."""

    jaxfed: str | None  # version
    method: str
    method_parts: list[dict[str, Any]]  # of registered methods, as in config.json
    switch_round: int | None
    adapted: bool  # whether the method changes the network
    network: dict[str, Any]  # the settings `OPTIONS`
    input_shape: list[int]  # height, width, channels
    num_classes: int
    mean: list[float]  # of each channel, in the units of the dataset's files
    std: list[float]


def save_model(workdir: Path, experiment: Experiment, params: PyTree, stats: PyTree) -> None:
    """Write the final network, whole or not at all.

    Args:
      workdir: the work directory.
      experiment: from `set_up`.
      params: the global parameters.
      stats: and batch statistics, () for a network without.

    Raises:
      OSError: if it cannot be written.
    """
    config, num_classes = experiment.config, experiment.dealt.dataset.num_classes
    network = make_network(config, experiment.input_shape, num_classes)
    described = Described(
        jaxfed=files.versions(('jaxfed',)).get('jaxfed'),
        method=config.method,
        method_parts=[part._asdict() for part in experiment.parts],
        switch_round=config.switch_round,
        adapted=experiment.method.adapt(network) is not network,
        network={name: getattr(config, name) for name in OPTIONS},
        input_shape=list(experiment.input_shape),
        num_classes=num_classes,
        mean=experiment.mean.tolist(),
        std=experiment.std.tolist(),
    )
    arrays = named(*jax.device_get((params, stats)))
    told = described._asdict()
    told['digest'] = _digest(told, arrays)
    # One entry, because several come in any order, and the same run has to give the same file.
    text = json.dumps(told, sort_keys=True)
    files.write_whole(workdir / run_files.MODEL, save(arrays, metadata={ENTRY: text}))


def read_model(path: Path) -> tuple[Described, dict[str, np.ndarray]]:
    """Read model.safetensors.

    Args:
      path: of the file.

    Returns:
      (what it tells, its arrays by name).

    Raises:
      ValueError: if it is missing, damaged, or of another kind.
    """
    if not path.is_file():
        raise ValueError(f'{path} is not there: the run was made without it, or it was removed.')
    try:
        with safe_open(path, framework='numpy') as file:
            told = json.loads((file.metadata() or {})[ENTRY])
            names = file.keys()
            arrays = {name: np.asarray(file.get_tensor(name)) for name in names}
        given = {name: told[name] for name in Described._fields}
        if told.pop('digest') != _digest(told, arrays):
            raise ValueError('its digest is another one')
    except KeyError as error:
        raise ValueError(f'{path} was not written by jaxfed: it does not tell {error}.') from error
    except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f'{path} cannot be read ({error}): it is damaged or was cut short; take another copy.'
        ) from error
    return Described(**given), arrays


def named(params: PyTree, stats: PyTree) -> dict[str, np.ndarray]:
    """Parameters and batch statistics by name, 'conv1.kernel' or 'batch_stats.norm1.mean'.

    Args:
      params: nested dicts of arrays, or of their shapes.
      stats: the same.

    Returns:
      Name -> array, in the trees' order.
    """

    def of(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            prefix + jax.tree_util.keystr(path, simple=True, separator='.'): leaf
            for path, leaf in leaves
        }

    return of(params, '') | of(stats, STATS)


def _digest(told: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """A digest of the arrays and of what is told of them, whatever their order."""
    text = np.frombuffer(json.dumps(told, sort_keys=True).encode(), np.uint8)
    return digest({'': text, **dict(sorted(arrays.items()))})
