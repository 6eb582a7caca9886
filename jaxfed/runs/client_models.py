"""What clients keep of the network after a run, as one file, clients.safetensors."""

from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxfed.config import Config
from jaxfed.internal.messages import first_line
from jaxfed.methods.method import ClientView, Method
from jaxfed.recording import run_files
from jaxfed.runs.tensors import damaged, named, read_described, write_described
from jaxfed.types import Model, PyTree


def check_kept(config: Config, method: Method, model: Model) -> None:
    """Raises a ValueError in one line if clients keep nothing, or `receive` reads other values."""
    nothing = f'--save_clients: clients of --method={config.method} keep no parameters; remove it.'
    if not (method.own and method.receive):
        raise ValueError(nothing)

    params = jax.eval_shape(model.init, jax.random.key(0))
    try:
        names = _kept_names(method, params, model.stats)
        state = jax.eval_shape(method.init, params, model.stats)[1]
        jax.eval_shape(partial(_kept, method, names), params, model.stats, state)
    except Exception as error:  # of any kind, from a hook
        raise ValueError(
            f'--save_clients: Method.receive of --method={config.method} must read params, stats '
            f'and state only ({first_line(error)}); remove it.'
        ) from error
    if not names:
        raise ValueError(nothing)


def _kept_names(method: Method, params: PyTree, stats: PyTree) -> set[str]:
    """The names of the arrays that clients keep; outside of tracing, as masks may be arrays."""
    assert method.own  # because `check_kept` passed
    return {name for name, mask in named(*method.own(params, stats)).items() if mask}


def _kept(
    method: Method, names: Set[str], params: PyTree, stats: PyTree, state: PyTree
) -> dict[str, Any]:
    """The arrays with these names of a client with this state, after the last round."""
    unset: Any = [None] * len(ClientView._fields)
    view = ClientView(*unset)._replace(
        params=params, stats=stats, global_params=params, state=state
    )
    assert method.receive  # because `check_kept` passed
    return {n: array for n, array in named(*method.receive(view)).items() if n in names}


def save_clients(
    workdir: Path, method: Method, params: PyTree, stats: PyTree, states: PyTree, number: int
) -> None:
    """Write what each client keeps, completely or not at all.

    Args:
      workdir: of the run.
      method: the method, whose clients keep parameters.
      params: the final global parameters.
      stats: the final global batch statistics.
      states: [N, ...] the method's states of all clients.
      number: N.
    """
    kept = jax.jit(partial(_kept, method, _kept_names(method, params, stats)))
    arrays: dict[str, np.ndarray] = {}
    for i in range(number):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        for name, array in kept(params, stats, state).items():
            arrays.setdefault(name, np.empty((number, *array.shape), array.dtype))[i] = array
    write_described(workdir / run_files.CLIENTS, {'clients': number}, arrays)


def read_client(workdir: Path, client: int) -> dict[str, np.ndarray]:
    """Read the arrays that a client keeps, by name.

    Raises:
      ValueError: if the run has no such client, or the file is missing or damaged.
    """
    path = workdir / run_files.CLIENTS
    if not path.is_file():
        raise ValueError(f'{path} does not exist: only a run with --save_clients writes it.')
    described, arrays = read_described(path)
    number = described.get('clients')
    if not isinstance(number, int) or any(len(array) != number for array in arrays.values()):
        raise damaged(path, f'it is not for {number} clients')
    if isinstance(client, bool) or not isinstance(client, int | np.integer):
        raise ValueError(f'client must be an integer, got {client!r}.')
    if not 0 <= client < number:
        raise ValueError(f'client must be from 0 to {number - 1}, got {client}.')
    return {name: array[client] for name, array in arrays.items()}
