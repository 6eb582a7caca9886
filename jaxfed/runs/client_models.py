"""What clients keep of the network after a run, as one file, clients.safetensors."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from jaxfed.config import Config
from jaxfed.internal import files
from jaxfed.internal.digest import digest
from jaxfed.internal.messages import first_line
from jaxfed.methods.method import ClientView, Method
from jaxfed.recording import run_files
from jaxfed.runs.tensors import damaged, named, read_tensors
from jaxfed.types import Model, PyTree

_DIGEST = 'digest'  # in the file's metadata


def check_kept(config: Config, method: Method, model: Model) -> None:
    """Raises a ValueError in one line if --save_clients has nothing to write."""
    if not (method.own and method.receive):
        raise ValueError(
            f'--save_clients: clients of --method={config.method} keep no parameters; remove it.'
        )

    def kept() -> dict[str, Any]:
        params = model.init(jax.random.key(0))
        return _kept(method, params, model.stats, method.init(params, model.stats)[1])

    try:
        jax.eval_shape(kept)
    except Exception as error:  # of any kind, from a hook
        raise ValueError(
            f'--save_clients: Method.receive of --method={config.method} must read params, stats '
            f'and state only ({first_line(error)}); remove it.'
        ) from error


def _kept(method: Method, params: PyTree, stats: PyTree, state: PyTree) -> dict[str, Any]:
    """The arrays that a client with this state keeps, by name."""
    unset: Any = [None] * len(ClientView._fields)  # the round is over
    view = ClientView(*unset)._replace(
        params=params, stats=stats, global_params=params, state=state
    )
    assert method.receive and method.own  # because `check_kept` passed
    own = method.receive(view)
    masks = named(*method.own(*own))
    return {name: array for name, array in named(*own).items() if masks[name]}


def save_clients(
    workdir: Path, method: Method, params: PyTree, stats: PyTree, states: PyTree
) -> None:
    """Write what each client keeps, completely or not at all.

    Args:
      workdir: of the run.
      method: the method, whose clients keep parameters.
      params: the final global parameters.
      stats: the final global batch statistics.
      states: [N, ...] the method's states of all clients.
    """
    kept = jax.jit(lambda state: _kept(method, params, stats, state))
    number = len(jax.tree.leaves(states)[0])
    rows = [jax.device_get(kept(jax.tree.map(lambda s, i=i: s[i], states))) for i in range(number)]
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    text = json.dumps({_DIGEST: digest(dict(sorted(arrays.items())))})
    files.write_atomic(workdir / run_files.CLIENTS, save(arrays, metadata={'jaxfed': text}))


def read_client(workdir: Path, client: int) -> dict[str, np.ndarray]:
    """Read the arrays that a client keeps, by name.

    Raises:
      ValueError: if the run has no such client, or the file is missing or damaged.
    """
    path = workdir / run_files.CLIENTS
    if not path.is_file():
        raise ValueError(f'{path} does not exist: only a run with --save_clients writes it.')
    described, arrays = read_tensors(path)
    try:
        if json.loads(described['jaxfed'])[_DIGEST] != digest(dict(sorted(arrays.items()))):
            raise ValueError('its digest does not match')
        number = min(map(len, arrays.values()))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not (isinstance(client, int | np.integer) and 0 <= client < number):
        raise ValueError(f'client must be an integer from 0 to {number - 1}, got {client!r}.')
    return {name: array[client] for name, array in arrays.items()}
