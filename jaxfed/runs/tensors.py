"""Parameters and batch statistics by name, as in safetensors files.

The format holds only arrays and text: reading a file executes no code, and other programs can read
it.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from jaxfed.config import Config
from jaxfed.engine import distributed
from jaxfed.internal import files
from jaxfed.internal.digest import digest
from jaxfed.types import Model, PyTree

STATS = 'batch_stats.'  # prefix of the names of batch statistics
ENTRY = 'jaxfed'  # of the metadata of a file that jaxfed wrote


def named(params: PyTree, stats: PyTree) -> dict[str, Any]:
    """Parameters and batch statistics by name, 'conv1.kernel' or 'batch_stats.norm1.mean'."""
    return {
        prefix + jax.tree_util.keystr(path, simple=True, separator='.'): leaf
        for prefix, tree in (('', params), (STATS, stats))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Reads a safetensors file: its metadata, and its arrays by name.

    Raises:
      ValueError: if it is damaged, or has types that NumPy lacks.
    """
    try:
        with safe_open(path, framework='numpy') as file:
            names = file.keys()
            return file.metadata() or {}, {n: np.asarray(file.get_tensor(n)) for n in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise damaged(path, error) from error


def write_described(path: Path, metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays by name and a description of them, completely or not at all."""
    # safetensors writes entries in any order; with one entry the file is reproducible.
    text = json.dumps({**metadata, 'digest': _digest(metadata, arrays)}, sort_keys=True)
    files.write_atomic(path, save(arrays, metadata={ENTRY: text}))


def read_described(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads what `write_described` wrote.

    Raises:
      ValueError: if it is damaged, or was not written by jaxfed.
    """
    described, arrays = read_tensors(path)
    try:
        metadata: dict[str, Any] = json.loads(described[ENTRY])
        if metadata.pop('digest') != _digest(metadata, arrays):
            raise ValueError('its digest does not match')
    except KeyError as error:
        raise foreign(path, error) from error
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    return metadata, arrays


def _digest(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """A digest of the arrays and the metadata, independent of their order."""
    text = np.frombuffer(json.dumps(metadata, sort_keys=True).encode(), np.uint8)
    return digest({'': text, **dict(sorted(arrays.items()))})


def foreign(path: Path, missing: KeyError) -> ValueError:
    """The error of a file without an entry that jaxfed writes."""
    return ValueError(f'{path} was not written by jaxfed: it lacks {missing}.')


def damaged(path: Path, reason: object) -> ValueError:
    """The error of a file that cannot be read."""
    return ValueError(
        f'{path} cannot be read ({reason}): it is damaged or incomplete; use another copy.'
    )


def fit(model: Model, arrays: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """The parameters and batch statistics of a network from arrays by name.

    Raises:
      ValueError: unless there is an array of the right shape and type for each name, and no other.
    """
    like = jax.eval_shape(model.init, jax.random.key(0)), model.stats
    needed = named(*like)
    found = {name: f'{array.shape} {array.dtype}' for name, array in arrays.items()}
    expected = {name: f'{leaf.shape} {leaf.dtype}' for name, leaf in needed.items()}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f'{name} is {found.get(name, "missing")} in the file, but '
                f'{expected.get(name, "missing")} in the network'
            )
    params, stats = jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in needed])
    return params, stats


def init_digest(config: Config) -> dict[str, str]:
    """The entry of partition.json for the file of --init_from; {} without it.

    Raises:
      ValueError: if the file is missing or damaged.
    """
    if config.init_from is None:
        return {}
    return {'init_digest': digest(_initial_arrays(Path(config.init_from)))}


def _initial_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file of --init_from, floats as float32, in the order of their names."""
    if not path.is_file():
        raise ValueError(f'--init_from={path} is no file; name a model.safetensors.')
    try:
        _, arrays = read_tensors(path)
    except ValueError as error:
        raise ValueError(f'--init_from={error}') from error
    return {
        name: array.astype(np.float32) if array.dtype.kind == 'f' else array
        for name, array in sorted(arrays.items())
    }


def start_from(path: Path, model: Model, name: str) -> Model:
    """The network with the initial parameters and batch statistics of a safetensors file.

    Args:
      path: the file.
      model: the network.
      name: its name, for errors.

    Raises:
      ValueError: if the file is missing or damaged, has other arrays than the network or values
        that are not finite, or differs between processes.
    """
    floats = _initial_arrays(path)
    for array_name, array in floats.items():
        if not np.isfinite(array).all():
            raise ValueError(f'--init_from={path}: {array_name} has values that are not finite.')
    try:
        params, stats = fit(model, floats)
    except ValueError as error:
        raise ValueError(
            f'--init_from={path} does not fit --model={name}: {error}. The names and shapes must '
            'be those of the network on this dataset.'
        ) from error
    distributed.check_data(f'--init_from={path}', lambda: digest(floats))
    return model._replace(init=lambda key: params, stats=stats)
