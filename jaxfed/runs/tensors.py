"""Parameters and batch statistics by name, as in safetensors files.

The format holds only arrays and text: reading a file executes no code, and other programs can read
it.
"""

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxfed.config import Config
from jaxfed.engine import distributed
from jaxfed.internal.digest import digest
from jaxfed.types import Model, PyTree

STATS = 'batch_stats.'  # prefix of the names of batch statistics


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
    """The entry of partition.json for the file of --init_from; {} without it."""
    if config.init_from is None:
        return {}
    with open(config.init_from, 'rb') as file:
        return {'init_digest': hashlib.file_digest(file, 'sha256').hexdigest()[:32]}


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
    if not path.is_file():
        raise ValueError(f'--init_from={path} is no file; name a model.safetensors.')
    try:
        _, arrays = read_tensors(path)
    except ValueError as error:
        raise ValueError(f'--init_from={error}') from error
    floats = {n: a.astype(np.float32) if a.dtype.kind == 'f' else a for n, a in arrays.items()}
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
    in_order = {name: floats[name] for name in sorted(floats)}
    distributed.check_data(f'--init_from={path}', lambda: digest(in_order))
    return model._replace(init=lambda key: params, stats=stats)
