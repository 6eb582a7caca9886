"""Trained networks, read from the work directories of their runs."""

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
from jaxfed.runs.client_models import read_client
from jaxfed.runs.experiment import make_network
from jaxfed.runs.model_file import NETWORK_SETTINGS, ModelMetadata, read_model
from jaxfed.runs.tensors import fit
from jaxfed.types import Array, Model, Outputs, PyTree


class ReadNetwork(NamedTuple):
    """A network of a run and what its file says about it."""

    model: Model
    params: PyTree
    stats: PyTree
    metadata: ModelMetadata
    arrays: dict[str, np.ndarray]  # by name


class Loaded(NamedTuple):
    """The final global model of a run, or the model of a client."""

    params: PyTree
    stats: PyTree  # batch statistics, () for a network without
    # [m, H, W, channels] images in the units of the dataset's files -> [m, C] logits
    apply: Callable[[Any], Array]
    config: Config
    summary: dict[str, Any]  # of summary.json

    def __repr__(self) -> str:
        """One line, without the arrays."""
        config, accuracy = self.config, self.summary.get('final_accuracy')
        return (
            f'Loaded(method={config.method!r}, dataset={config.dataset!r}, model={config.model!r}, '
            f'parameters={sum(leaf.size for leaf in jax.tree.leaves(self.params))}, '
            f'final_accuracy={accuracy})'
        )


def load(
    workdir: str | os.PathLike[str], *, client: int | None = None, method: Method | None = None
) -> Loaded:
    """Read the final global model of a finished run, or the model of a client.

    The model of a client is the global one with the parameters that the client keeps, as after it
    receives the last global parameters; it needs --save_clients. A client that never took part
    keeps the initial ones.

    Args:
      workdir: the work directory of the run.
      client: number of a client, from 0; None for the global model.
      method: the method of the run; needed only if it is not in `methods.METHODS` and adapts the
        network, or `client` is given.

    Returns:
      The model; `apply` normalises as training did and computes in chunks.

    Raises:
      ValueError: if there is no finished run or no such client, a file of it is missing or damaged,
        or `method` is no valid method.
    """
    config, summary, network = read_network(workdir, client=client, method=method)
    shape, classes = tuple(network.metadata.input_shape), network.metadata.num_classes
    vocabulary = network.metadata.vocabulary
    tokens = vocabulary > 0
    model, params, stats = network.model, network.params, network.stats
    mean, std = np.asarray(network.metadata.mean), np.asarray(network.metadata.std)
    to_input = functools.partial(normalise, mean=mean, std=std)

    def evaluate(weights: tuple[PyTree, PyTree], x: Array) -> Outputs:
        return model.evaluate(weights[0], x, weights[1])

    compiled = jax.jit(functools.partial(predict, evaluate, prepare=to_input, mesh=make_mesh()))

    def apply(x: Any) -> Array:
        x = np.asarray(x)
        if x.ndim == 2 and (shape[:2] == (1, 1) or tokens):
            x = x.reshape(-1, 1, *((x.shape[1], 1) if tokens else (1, x.shape[1])))
        if x.ndim == 3 and shape[2] == 1 and not tokens:  # files of grey images may have no channel
            x = x[..., np.newaxis]
        kinds, what = ('ui', 'token ids') if tokens else ('uif', 'images')
        if x.ndim != 4 or x.shape[1:] != shape or x.dtype.kind not in kinds:
            raise ValueError(
                f'x must be {what} [m, {", ".join(map(str, shape))}] of integers'
                f'{"" if tokens else " or floats"}, got shape {x.shape} and dtype {x.dtype}.'
            )
        if tokens and x.size and not 0 <= x.min() <= x.max() < vocabulary:
            raise ValueError(
                f'x must be token ids from 0 to {vocabulary - 1}, got ids from {x.min()} to '
                f'{x.max()}.'
            )
        if x.dtype != np.uint8:  # `normalise` takes int32 for token ids
            x = x.astype(np.int32 if tokens else np.float32)
        if not len(x):
            return jax.numpy.zeros((0, classes))
        return compiled((params, stats), x)

    return Loaded(params, stats, apply, config, summary)


def read_network(
    workdir: str | os.PathLike[str],
    *,
    client: int | None = None,
    method: Method | None = None,
    conv: str | None = None,
) -> tuple[Config, dict[str, Any], ReadNetwork]:
    """Read the settings, the summary and the network of a finished run.

    Args:
      workdir: as in `load`.
      client: as in `load`.
      method: as in `load`.
      conv: a lowering of convolutions instead of the run's.

    Raises:
      ValueError: as in `load`.
    """
    if method is not None:
        methods.check_method(method)
    folder = Path(workdir)
    if not (folder / run_files.CONFIG).is_file():
        runs = sorted(str(path.parent) for path in folder.glob(f'*/{run_files.CONFIG}'))
        if runs:
            more = f' and {len(runs) - 3} more' if len(runs) > 3 else ''
            raise ValueError(
                f'workdir={folder} has several runs, name one: {", ".join(runs[:3])}{more}.'
            )
        raise ValueError(f'workdir={folder} is not a run: {folder / run_files.CONFIG} is missing.')
    if not (folder / run_files.SUMMARY).is_file():
        raise ValueError(
            f'workdir={folder} holds an unfinished run: {folder / run_files.SUMMARY} is missing.'
        )
    config = read_config(folder / run_files.CONFIG)
    summary = files.read_json(folder / run_files.SUMMARY)
    path = folder / run_files.MODEL
    metadata, arrays = read_model(path)
    own = read_client(folder, client) if client is not None else None
    if conv is not None:
        metadata = metadata._replace(network=metadata.network | {'conv': conv})
    try:
        model, params, stats = _rebuild(config, metadata, arrays, method, own)
    except Exception as error:  # the network's builder raises any, if the file is wrong
        raise ValueError(f'{path} does not describe a network: {error}') from error
    return config, summary, ReadNetwork(model, params, stats, metadata, arrays)


def _rebuild(
    config: Config,
    metadata: ModelMetadata,
    arrays: dict[str, np.ndarray],
    method: Method | None,
    own: dict[str, np.ndarray] | None,
) -> tuple[Model, PyTree, PyTree]:
    """The network, its parameters and its batch statistics; `own` are arrays of a client."""
    used = method or _method_of(metadata, needed=metadata.adapted or own is not None)
    if used is None:
        raise ValueError(
            f'the method {metadata.method!r} is not in methods.METHODS, and it adapts the network '
            'or a client is chosen; pass it, as in jaxfed.load(workdir, method=...)'
        )
    height, width, channels = metadata.input_shape
    if not isinstance(metadata.vocabulary, int) or metadata.vocabulary < 0:
        raise ValueError(f'vocabulary must be at least 0, got {metadata.vocabulary!r}')
    if not len(metadata.mean) == len(metadata.std) == channels:
        raise ValueError(f'mean and std must have {channels} channels')
    settings = {name: metadata.network[name] for name in NETWORK_SETTINGS}
    described = dataclasses.replace(config, **settings)
    shape = height, width, channels
    made = make_network(described, shape, metadata.num_classes, metadata.vocabulary)
    network = used.adapt(made)
    try:
        params, stats = fit(network, arrays | (own or {}))
    except ValueError as error:
        raise ValueError(
            f'{error}. If your method adapts the network, pass it: '
            'jaxfed.load(workdir, method=...).'
        ) from error
    if own is not None and used.personal:
        params = used.personal(params)
    return with_precision(network, described.precision), params, stats


def read_config(path: Path) -> Config:
    """The settings in a config.json; settings of other versions are ignored."""
    values, types = files.read_json(path), typing.get_type_hints(Config)
    settings = {name: values[name] for name in FIELDS if name in values}
    try:
        for name, value in settings.items():
            check_value(f'--{name}', value, types[name])
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    return Config(**settings)


def _method_of(metadata: ModelMetadata, *, needed: bool) -> Method | None:
    """The method of a model, or any if none is needed; None if it is unknown."""
    if not needed:
        return Method()
    parts = [methods.Part(**part) for part in metadata.method_parts]
    if not parts or any(part.name not in methods.METHODS for part in parts):
        return None
    return methods.build(parts, switch_round=metadata.switch_round)
