"""States of all clients, in host memory: each process keeps the rows of its own clients.

Row r, of N, is row r // P of process r % P, of P; a single process has all rows in order. The rows
of a round move from the process that keeps them to the one that trains their client, and back.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxfed.engine import distributed
from jaxfed.engine.devices import split
from jaxfed.engine.distributed import transfer
from jaxfed.types import PyTree


def create(first: Sequence[PyTree], num_clients: int) -> PyTree:
    """This process's rows of the states [X N, ...], where every client has its experiment's state.

    Args:
      first: X states, of one client of each experiment.
      num_clients: N, of each experiment.

    Returns:
      NumPy arrays, to be changed in place; zeros take memory only when they are written.
    """
    rows = np.arange(
        distributed.process_index(), len(first) * num_clients, distributed.process_count()
    )

    def repeat(*leaves: Any) -> np.ndarray:
        arrays = [np.asarray(leaf) for leaf in leaves]
        states = np.zeros((len(rows), *arrays[0].shape), arrays[0].dtype)
        for x, leaf in enumerate(arrays):
            if leaf.any():
                states[rows // num_clients == x] = leaf
        return states

    return jax.tree.map(repeat, *first)


def load_rows(states: PyTree, rows: np.ndarray, used: np.ndarray, mesh: Mesh) -> PyTree:
    """Rows on the devices that train their clients.

    Args:
      states: rows of this process.
      rows: [D, M] integers, the row for each position of each device.
      used: [D, M] bool, positions that train; the rows of the others are arbitrary.
      mesh: of D devices.

    Returns:
      [D, M, ...], split over the devices.
    """
    processes = distributed.process_count()
    if processes == 1:
        return split(jax.tree.map(lambda leaf: leaf[rows], states), mesh)
    needed, trains = rows[used], _trainers(used, mesh)
    loaded = _exchange(states, needed // processes, needed % processes, trains)
    local = used & _is_local(mesh)[:, None]

    def place(leaf: np.ndarray) -> np.ndarray:
        placed = np.zeros((*used.shape, *leaf.shape[1:]), leaf.dtype)
        placed[local] = leaf
        return placed

    return split(jax.tree.map(place, loaded), mesh)


def store_rows(states: PyTree, rows: np.ndarray, used: np.ndarray, new: PyTree, mesh: Mesh) -> None:
    """Writes the rows of a round back, in place.

    Args:
      states: rows of this process.
      rows: [D, M] integers, as for `load_rows`.
      used: [D, M] bool, as for `load_rows`.
      new: [D, M, ...], split over the devices.
      mesh: of D devices.
    """
    needed, processes = rows[used], distributed.process_count()

    def store(leaf: np.ndarray, some: np.ndarray, at: np.ndarray) -> None:
        leaf[at] = some

    if processes == 1:
        jax.tree.map(lambda leaf, some: store(leaf, np.asarray(some)[used], needed), states, new)
        return
    trained, local = _trainers(used, mesh), used[_is_local(mesh)]
    held = jax.tree.map(lambda leaf: transfer.local(leaf)[local], new)
    # Places among the rows that the same process trained.
    place = np.arange(len(trained)) - np.searchsorted(trained, trained)
    received = _exchange(held, place, trained, needed % processes)
    kept = needed[needed % processes == distributed.process_index()] // processes
    jax.tree.map(lambda leaf, some: store(leaf, some, kept), states, received)


def _processes(mesh: Mesh) -> np.ndarray:
    """[D] the process of each device, ascending."""
    return np.array([device.process_index for device in mesh.devices.flat])


def _is_local(mesh: Mesh) -> np.ndarray:
    """[D] bool, the devices of this process."""
    return _processes(mesh) == distributed.process_index()


def _trainers(used: np.ndarray, mesh: Mesh) -> np.ndarray:
    """The process that trains the client of each used position, ascending."""
    return np.repeat(_processes(mesh), used.sum(axis=1))


def _exchange(held: PyTree, index: np.ndarray, source: np.ndarray, target: np.ndarray) -> PyTree:
    """Rows [k, ...] whose target is this process, in their order.

    Row j, of all, is row index[j] of those that process source[j] holds. In step i of P every
    process sends to the one i places after it, a piece of bounded size at a time.
    """
    process, processes = distributed.process_index(), distributed.process_count()
    leaves, structure = jax.tree.flatten(held)
    sources = source[target == process]
    result = [np.empty((len(sources), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    size = sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in leaves)
    for step in range(processes if size else 0):
        routes = [(sender, (sender + step) % processes) for sender in range(processes)]
        counts = [int(((source == a) & (target == b)).sum()) for a, b in routes]
        most, at_once = max(counts), max(transfer.PIECE // size, 1)
        if np.count_nonzero(counts) == 1:  # else all of them, so few programs
            routes = [routes[np.argmax(counts)]]
        sent = index[(source == process) & (target == (process + step) % processes)]
        places = np.flatnonzero(sources == (process - step) % processes)
        for begin in range(0, most, at_once):
            piece = slice(begin, begin + at_once)
            data = pack([leaf[sent[piece]] for leaf in leaves])
            if step:
                padding = min(at_once, most - begin) * size - len(data)
                data = transfer.move(np.pad(data, (0, padding)), routes)
            shapes = [(len(places[piece]), *leaf.shape[1:]) for leaf in leaves]
            for whole, rows in zip(result, unpack(data, shapes, leaves), strict=True):
                whole[places[piece]] = rows
    return jax.tree.unflatten(structure, result)


def pack(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays as bytes [n] uint8, one after another."""
    parts = [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves]
    return np.concatenate([np.zeros(0, np.uint8), *parts])


def unpack(
    data: np.ndarray, shapes: Sequence[tuple[int, ...]], like: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Arrays of these shapes and of the types of `like`, from the first bytes of `data`."""
    arrays, begin = [], 0
    for shape, leaf in zip(shapes, like, strict=True):
        end = begin + int(np.prod(shape)) * leaf.dtype.itemsize
        arrays.append(data[begin:end].copy().view(leaf.dtype).reshape(shape))
        begin = end
    return arrays


def gather(states: PyTree, rows: int) -> PyTree:
    """All `rows` rows in order, on the first process, for a checkpoint; on others their own."""
    processes = distributed.process_count()
    if processes == 1:
        return states
    row, first = np.arange(rows), np.zeros(rows, int)
    whole = _exchange(states, row // processes, row % processes, first)
    return whole if distributed.is_leader() else states


def allocate(states: PyTree, rows: int) -> PyTree:
    """Zeros of the shape of what `gather` returns; they take memory only when they are written."""
    return jax.tree.map(lambda leaf: np.zeros((rows, *leaf.shape[1:]), leaf.dtype), states)


def scatter(whole: PyTree, like: PyTree, rows: int) -> PyTree:
    """The rows of this process, to be changed in place, of all that the first process has.

    Args:
      whole: [N, ...] on the first process; not read elsewhere.
      like: rows of this process, of any values.
      rows: N, of all processes.

    Returns:
      The rows of this process.
    """
    if distributed.process_count() == 1:
        return jax.tree.map(np.array, whole)
    row, first = np.arange(rows), np.zeros(rows, int)
    held = whole if distributed.is_leader() else like
    return _exchange(held, row, first, row % distributed.process_count())


def broadcast(tree: PyTree) -> PyTree:
    """The arrays and random keys of the first process, on all; shapes and types are the same.

    Arrays become NumPy arrays, unless there is only one process.
    """
    processes = distributed.process_count()
    if processes == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    is_key = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    arrays = [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(leaves, is_key, strict=True)
    ]
    first = np.zeros(processes, int)
    (data,) = _exchange([pack(arrays)[None]], first, first, np.arange(processes))
    received = unpack(data[0], [array.shape for array in arrays], arrays)
    result = [
        jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(old)) if key else new
        for new, old, key in zip(received, leaves, is_key, strict=True)
    ]
    return jax.tree.unflatten(structure, result)
