"""The partition of a file that lists the examples of each client."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.internal.messages import first_line
from jaxfed.partition.checks import Seed

SUFFIXES = ('.json', '.npz')
_NPZ_FORM = 'the arrays `indices` [m], one client after another, and `sizes` [N]'
_MOST = 2**31  # bytes that an .npz file may unpack to: the indices of 2^28 examples


def file(
    labels: np.ndarray,
    *,
    num_clients: int,
    seed: Seed,
    dealt: np.ndarray,
    partition_file: str | None = None,
) -> list[np.ndarray]:
    """Deals the examples as a file says.

    The indices in the file are places in the dataset's training data. Examples that
    `--validation`, the server or `--imbalance` takes leave their clients; those that no client
    lists are not used.

    Args:
      labels: not used.
      num_clients: number of clients N, as many as the file has.
      seed: not used.
      dealt: [m] bool, which of the dataset's training examples `labels` has.
      partition_file: JSON or NPZ file, as `read_indices` reads it.

    Returns:
      N int64 arrays in the order of the file, the examples of each client.

    Raises:
      ValueError: if the file is missing or damaged, has another number of clients or was written
        for another number of training examples, or has an index twice or out of range.
    """
    if partition_file is None:
        raise ValueError('--partition=file needs --partition_file, a JSON or NPZ file of indices.')
    clients, num_examples = read_indices(partition_file)
    source = f'--partition_file={partition_file}'
    if len(clients) != num_clients:
        raise ValueError(
            f'{source} has {len(clients)} clients; set --num_clients={len(clients)}, not '
            f'{num_clients}.'
        )
    if num_examples not in (None, len(dealt)):
        raise ValueError(
            f'{source} is for {num_examples} training examples, but the dataset has {len(dealt)}; '
            'choose the dataset for which it was written.'
        )
    holder = np.full(len(dealt), -1)
    for client, indices in enumerate(clients):
        outside = indices[(indices < 0) | (indices >= len(dealt))]
        if outside.size:
            raise ValueError(
                f'{source}: client {client} has the index {outside[0]}, but the training data has '
                f'{len(dealt)} examples, from 0 to {len(dealt) - 1}.'
            )
        values, times = np.unique(indices, return_counts=True)
        taken = values[(times > 1) | (holder[values] >= 0)]
        if taken.size:
            other = holder[taken[0]] if holder[taken[0]] >= 0 else client
            raise ValueError(
                f'{source}: example {taken[0]} is at client {other} and again at client {client}; '
                'an example belongs to one client.'
            )
        holder[indices] = client
    place = np.cumsum(dealt) - 1
    return [place[indices[dealt[indices]]] for indices in clients]


def read_indices(path: str | Path) -> tuple[list[np.ndarray], int | None]:
    """Reads the examples of each client from a file.

    JSON: `{"clients": [[0, 5], [1, 2]], "num_examples": 50000}`, the second is optional; a list of
    lists alone; or FL-bench's `{"data_indices": [{"train": [0, 5]}, ...]}`, of which the training
    examples count. NPZ: `indices` [m], the clients' examples one after another, `sizes` [N], and
    `num_examples`, which is optional.

    Args:
      path: the file; its suffix is .json or .npz.

    Returns:
      N int64 arrays, and the number of training examples, None if the file does not say it.

    Raises:
      ValueError: if the file is missing, damaged or of another form.
    """
    source, path = f'--partition_file={path}', Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f'{source} must end in {" or ".join(SUFFIXES)}.')
    if not path.is_file():
        raise ValueError(f'{source} is not a file; name a JSON or NPZ file of indices.')
    try:
        lists, number = (_of_npz if path.suffix == '.npz' else _of_json)(path)
        if not len(lists):
            raise ValueError('it lists no client')
        return [_indices(client) for client in lists], None if number is None else int(number)
    except Exception as error:  # the readers of a damaged file raise errors of many types
        reason = first_line(error)
        form = _NPZ_FORM if path.suffix == '.npz' else '{"clients": [[0, 5], [1, 2]]}'
        raise ValueError(
            f'{source} cannot be read ({reason}); it must list the indices of each client, as '
            f'{form}.'
        ) from error


def _of_json(path: Path) -> tuple[Any, Any]:
    """The clients' lists and the number of examples."""
    content = json.loads(path.read_bytes())
    if isinstance(content, list):
        return content, None
    if 'data_indices' in content:
        clients = content['data_indices']
        if isinstance(clients, dict):
            clients = [clients[str(number)] for number in range(len(clients))]
        return [client['train'] for client in clients], None
    return content['clients'], content.get('num_examples')


def _of_npz(path: Path) -> tuple[Any, Any]:
    """The clients' arrays and the number of examples."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > _MOST:
        raise ValueError(f'it unpacks to {size / 2**30:.1f} GiB, more than {_MOST / 2**30:.0f} GiB')
    with np.load(path, allow_pickle=False) as arrays:
        indices, sizes = _indices(arrays['indices']), _indices(arrays['sizes'])
        if (sizes < 0).any() or sizes.sum() != len(indices):
            raise ValueError(f'sizes add up to {sizes.sum()}, but there are {len(indices)} indices')
        return np.split(indices, np.cumsum(sizes))[:-1], arrays.get('num_examples')


def _indices(client: Any) -> np.ndarray:
    """Indices as int64 [m]."""
    array = np.asarray(client)
    if array.ndim != 1 or (array.size and array.dtype.kind not in 'iu'):
        raise ValueError(f'indices of shape {array.shape} and dtype {array.dtype}')
    return array.astype(np.int64)
