"""The trained network as one file, model.safetensors: its parameters and what rebuilds it.

The format holds arrays and text only, so reading a file executes nothing of it, and other programs
can read it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from jaxfed.config import SETTINGS
from jaxfed.data.statistics import channel_statistics
from jaxfed.internal import files
from jaxfed.recording import run_files
from jaxfed.recording.checkpoints import digest
from jaxfed.runs.experiment import Experiment, make_network
from jaxfed.types import PyTree

ENTRY = 'jaxfed'  # of the file's metadata
STATS = 'batch_stats.'  # prefix of the names of batch statistics
NETWORK_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.describes_network)


class ModelMetadata(NamedTuple):
    """What model.safetensors says about its network."""

    jaxfed: str | None  # version
    method: str
    method_parts: list[dict[str, Any]]  # of registered methods, as in config.json
    switch_round: int | None
    adapted: bool  # whether the method changes the network
    network: dict[str, Any]  # the settings that describe the network
    input_shape: list[int]  # height, width, channels
    num_classes: int
    mean: list[float]  # of each channel, in the units of the dataset's files
    std: list[float]


def save_model(workdir: Path, experiment: Experiment, params: PyTree, stats: PyTree) -> None:
    """Write the final network to a work directory, whole or not at all."""
    config, dataset = experiment.config, experiment.dealt.dataset
    shape = dataset.x_train.shape[1:]
    network = make_network(config, shape, dataset.num_classes)
    mean, std = channel_statistics(dataset.x_train)
    metadata = ModelMetadata(
        jaxfed=files.versions(('jaxfed',)).get('jaxfed'),
        method=config.method,
        method_parts=[part._asdict() for part in experiment.parts],
        switch_round=config.switch_round,
        adapted=experiment.method.adapt(network) is not network,
        network={name: getattr(config, name) for name in NETWORK_SETTINGS},
        input_shape=list(shape),
        num_classes=dataset.num_classes,
        mean=mean.tolist(),
        std=std.tolist(),
    )._asdict()
    arrays = named(*jax.device_get((params, stats)))
    metadata['digest'] = _digest(metadata, arrays)
    # safetensors writes entries in any order; with one entry the same run gives the same file.
    text = json.dumps(metadata, sort_keys=True)
    files.write_atomic(workdir / run_files.MODEL, save(arrays, metadata={ENTRY: text}))


def read_model(path: Path) -> tuple[ModelMetadata, dict[str, np.ndarray]]:
    """Read model.safetensors: what it says about its network, and its arrays by name.

    Raises:
      ValueError: if it is missing, damaged, or was not written by jaxfed.
    """
    if not path.is_file():
        raise ValueError(f'{path} is not there: the run was made without it, or it was removed.')
    try:
        with safe_open(path, framework='numpy') as file:
            metadata = json.loads((file.metadata() or {})[ENTRY])
            names = file.keys()
            arrays = {name: np.asarray(file.get_tensor(name)) for name in names}
        fields = {name: metadata[name] for name in ModelMetadata._fields}
        if metadata.pop('digest') != _digest(metadata, arrays):
            raise ValueError('its digest is another one')
    except KeyError as error:
        raise ValueError(f'{path} was not written by jaxfed: it lacks {error}.') from error
    except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f'{path} cannot be read ({error}): it is damaged or was cut short; take another copy.'
        ) from error
    return ModelMetadata(**fields), arrays


def named(params: PyTree, stats: PyTree) -> dict[str, np.ndarray]:
    """Parameters and batch statistics by name, 'conv1.kernel' or 'batch_stats.norm1.mean'."""

    def flatten(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            prefix + jax.tree_util.keystr(path, simple=True, separator='.'): leaf
            for path, leaf in leaves
        }

    return flatten(params, '') | flatten(stats, STATS)


def _digest(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """A digest of the arrays and the metadata, whatever their order."""
    text = np.frombuffer(json.dumps(metadata, sort_keys=True).encode(), np.uint8)
    return digest({'': text, **dict(sorted(arrays.items()))})
