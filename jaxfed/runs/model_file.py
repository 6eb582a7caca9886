"""The trained network as one file, model.safetensors: its parameters and what rebuilds it."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.config import SETTINGS
from jaxfed.internal.versions import recorded_versions
from jaxfed.recording import run_files
from jaxfed.runs.experiment import Experiment
from jaxfed.runs.tensors import foreign, named, read_described, write_described
from jaxfed.types import PyTree

NETWORK_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.describes_network)


class ModelMetadata(NamedTuple):
    """The description of the network in model.safetensors."""

    jaxfed: str | None  # version, with the commit
    method: str
    method_parts: list[dict[str, Any]]  # of registered methods, as in config.json
    switch_round: int | None
    adapted: bool  # whether the method changes the network
    network: dict[str, Any]  # the settings that describe the network
    input_shape: list[int]  # height, width, channels
    num_classes: int
    mean: list[float]  # of each channel, in the units of the dataset's files
    std: list[float]
    vocabulary: int = 0  # number of token ids; 0 for other inputs


def save_model(workdir: Path, experiment: Experiment, params: PyTree, stats: PyTree) -> None:
    """Write the final network to a work directory, completely or not at all."""
    config, dataset = experiment.config, experiment.dealt.dataset
    network = experiment.network
    metadata = ModelMetadata(
        jaxfed=recorded_versions()['jaxfed'],
        method=config.method,
        method_parts=[part._asdict() for part in experiment.parts],
        switch_round=config.switch_round,
        adapted=experiment.method.adapt(network) is not network,
        network={name: getattr(config, name) for name in NETWORK_SETTINGS},
        input_shape=list(experiment.input_shape),
        num_classes=dataset.num_classes,
        mean=experiment.mean.tolist(),
        std=experiment.std.tolist(),
        vocabulary=dataset.vocabulary,
    )._asdict()
    arrays = named(*jax.device_get((params, stats)))
    write_described(workdir / run_files.MODEL, metadata, arrays)


def read_model(path: Path) -> tuple[ModelMetadata, dict[str, np.ndarray]]:
    """Read model.safetensors: the description of its network, and its arrays by name.

    Raises:
      ValueError: if it is missing, damaged, or was not written by jaxfed.
    """
    if not path.is_file():
        raise ValueError(f'{path} does not exist: the run did not write it, or it was removed.')
    metadata, arrays = read_described(path)
    try:
        fields = ModelMetadata._field_defaults | {
            name: metadata[name]
            for name in ModelMetadata._fields
            if name in metadata or name not in ModelMetadata._field_defaults
        }
    except KeyError as error:
        raise foreign(path, error) from error
    return ModelMetadata(**fields), arrays
