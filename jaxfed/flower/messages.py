"""The content of the messages between a Flower server and its clients."""

from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flwr.app import ArrayRecord, Context, Message

from jaxfed.config import Config
from jaxfed.runs import checks, config_flags
from jaxfed.types import PyTree

FACTS, ROUND, MODEL, SUMS, CLIENTS = 'facts', 'round', 'model', 'sums', 'clients'  # of the records


class Facts(NamedTuple):
    """What a client must know beside the settings, the same in every round."""

    input_shape: list[int]  # height, width, channels
    num_classes: int
    vocabulary: int
    dtype: str  # of the stored inputs
    mean: list[float]  # of each channel of the server's images
    std: list[float]
    longest: int  # examples of the largest client, 0 if not known yet
    auxiliary: int  # examples of the server


class RoundOfClient(NamedTuple):
    """What a client must know about a round."""

    number: int  # rounds done
    client: int
    epochs: int  # local epochs that it completes
    cohort_size: int  # clients that train in the round; it learns of no other client
    learning_rate: float  # by --schedule


Kind = TypeVar('Kind', Facts, RoundOfClient)


def read(kind: type[Kind], message: Message) -> Kind:
    """The values that the server sent."""
    name = FACTS if kind is Facts else ROUND
    values: Any = message.content.config_records[name]
    return kind(**values)


def pack(tree: PyTree) -> ArrayRecord:
    """The arrays of a tree, without its structure."""
    return ArrayRecord([np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def unpack(record: ArrayRecord, like: PyTree) -> PyTree:
    """A tree of the arrays of a record, with the structure and the shapes of another tree.

    Raises:
      ValueError: if the arrays have other shapes or types.
    """
    arrays, (leaves, structure) = record.to_numpy_ndarrays(), jax.tree.flatten(like)
    found = [(array.shape, array.dtype) for array in arrays]
    expected = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if found != expected:
        raise ValueError(
            f'a message has {len(found)} arrays that do not fit the {len(expected)} expected: '
            'server and clients must have the same settings and the same version of jaxfed.'
        )
    return jax.tree.unflatten(structure, arrays)


def read_settings(context: Context) -> Config:
    """The settings of a run, from the run config of a Flower project: a flag a key.

    `{run_id}` in `workdir` is the number of the run.

    Raises:
      ValueError: if a setting is invalid.
    """
    values = dict(context.run_config)
    if 'workdir' in values:
        values['workdir'] = str(values['workdir']).replace('{run_id}', str(context.run_id))
    config = config_flags.parse([f'--{name}={value}' for name, value in values.items()])
    checks.check(config)
    return config
