"""A trained network, read back from the work directory of its run."""

import dataclasses
import functools
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed import methods
from jaxfed.config import FIELDS, Config
from jaxfed.data.augment import normalise
from jaxfed.engine.devices import make_mesh
from jaxfed.engine.evaluation import predict
from jaxfed.internal import files
from jaxfed.internal.type_checks import check_value
from jaxfed.methods.method import Method
from jaxfed.models import with_precision
from jaxfed.recording import run_files
from jaxfed.runs.experiment import make_network
from jaxfed.runs.model_file import NETWORK_SETTINGS, ModelMetadata, named, read_model
from jaxfed.types import Array, Model, Outputs, PyTree


class Loaded(NamedTuple):
    """The final global model of a run."""

    params: PyTree
    stats: PyTree  # batch statistics, () for a network without
    # [m, H, W, channels] images in the units of the dataset's files -> [m, C] logits
    apply: Callable[[Any], Array]
    config: Config
    summary: dict[str, Any]  # of summary.json


def load(workdir: str | os.PathLike[str], *, method: Method | None = None) -> Loaded:
    """Read the final global model of a finished run.

    Args:
      workdir: the work directory of the run.
      method: the method it was trained with; needed only for a user's own method that adapts the
        network and is not in `methods.METHODS`.

    Returns:
      The model; `apply` normalises as training did and computes in chunks.

    Raises:
      ValueError: if there is no finished run, or a file of it is missing or damaged.
    """
    folder = Path(workdir)
    if not (folder / run_files.CONFIG).is_file():
        raise ValueError(f'workdir={folder} is no run: there is no {folder / run_files.CONFIG}.')
    if not (folder / run_files.SUMMARY).is_file():
        raise ValueError(
            f'workdir={folder} holds a run that is not finished: there is no '
            f'{folder / run_files.SUMMARY} yet.'
        )
    config = read_config(folder / run_files.CONFIG)
    summary = files.read_json(folder / run_files.SUMMARY)
    path = folder / run_files.MODEL
    metadata, arrays = read_model(path)
    try:
        model, params, stats = _rebuild(config, metadata, arrays, method)
    except Exception as error:  # of the network's builder, by what is wrong in the file
        raise ValueError(f'{path} does not give a network: {error}') from error
    shape = tuple(metadata.input_shape)
    to_input = functools.partial(
        normalise, mean=np.asarray(metadata.mean), std=np.asarray(metadata.std)
    )

    def evaluate(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        return model.evaluate(weights[0], x, weights[1])

    compiled = jax.jit(functools.partial(predict, evaluate, prepare=to_input, mesh=make_mesh()))

    def apply(x: Any) -> Array:
        x = np.asarray(x)
        if x.ndim == 2 and shape[:2] == (1, 1):  # feature vectors [m, d]
            x = x[:, None, None]
        if x.ndim != 4 or x.shape[1:] != shape or x.dtype.kind not in 'uif':
            raise ValueError(
                f'x has shape {x.shape} and dtype {x.dtype}; the network takes images '
                f'[m, {", ".join(map(str, shape))}], integers or floats.'
            )
        return (
            compiled((params, stats), x) if len(x) else jax.numpy.zeros((0, metadata.num_classes))
        )

    return Loaded(params, stats, apply, config, summary)


def _rebuild(
    config: Config, metadata: ModelMetadata, arrays: dict[str, np.ndarray], method: Method | None
) -> tuple[Model, PyTree, PyTree]:
    """The network, its parameters and its batch statistics."""
    used = method or _method_of(metadata)
    if used is None:
        raise ValueError(
            f'the method {metadata.method!r} adapts the network and is not in methods.METHODS; '
            'give it, as in jaxfed.load(workdir, method=...)'
        )
    height, width, channels = metadata.input_shape
    if not len(metadata.mean) == len(metadata.std) == channels:
        raise ValueError(f'mean and std are not of {channels} channels')
    settings = {name: metadata.network[name] for name in NETWORK_SETTINGS}
    described = dataclasses.replace(config, **settings)
    network = used.adapt(make_network(described, (height, width, channels), metadata.num_classes))
    like = jax.eval_shape(network.init, jax.random.key(0)), network.stats
    _check_arrays(arrays, named(*like))
    params, stats = jax.tree.unflatten(
        jax.tree.structure(like), [arrays[name] for name in named(*like)]
    )
    return with_precision(network, described.precision), params, stats


def read_config(path: Path) -> Config:
    """The settings in a config.json, without those that this version does not have."""
    values, types = files.read_json(path), typing.get_type_hints(Config)
    settings = {name: values[name] for name in FIELDS if name in values}
    try:
        for name, value in settings.items():
            check_value(f'--{name}', value, types[name])
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    return Config(**settings)


def _method_of(metadata: ModelMetadata) -> Method | None:
    """The method that a model was trained with; None if it is needed and unknown."""
    if not metadata.adapted:
        return Method()
    parts = [methods.Part(**part) for part in metadata.method_parts]
    if not parts or any(part.name not in methods.METHODS for part in parts):
        return None
    return methods.build(parts, switch_round=metadata.switch_round)


def _check_arrays(arrays: dict[str, np.ndarray], like: dict[str, Any]) -> None:
    """Raises a ValueError unless there is an array of the right shape and type for each name."""
    found = {name: f'{array.shape} {array.dtype}' for name, array in arrays.items()}
    wanted = {name: f'{leaf.shape} {leaf.dtype}' for name, leaf in like.items()}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f'it has {found.get(name, "no array")} for {name}, where the network has '
                f'{wanted.get(name, "no array")}. For a method of your own that adapts the network '
                'give jaxfed.load(workdir, method=...).'
            )
