"""States of all clients, in host memory: each process keeps the rows of its own clients.

Row r of N is row r // P of process r % P of P; a single process has all rows in order. The rows of
a round move from the process that keeps them to the one that trains their client, and back.
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
    """Writable rows of this process of the states [X N, ...] before the first round.

    Zeros take memory only when they are written.

    Args:
      first: X states, of one client of each experiment.
      num_clients: N, of each experiment.
    """
    process, processes = distributed.process_index(), distributed.process_count()
    rows = np.arange(process, len(first) * num_clients, processes)

    def repeat(*leaves: Any) -> np.ndarray:
        arrays = [np.asarray(leaf) for leaf in leaves]
        states = np.zeros((len(rows), *arrays[0].shape), arrays[0].dtype)
        for x, leaf in enumerate(arrays):
            if leaf.any():
                states[rows // num_clients == x] = leaf
        return states

    return jax.tree.map(repeat, *first)


def load_rows(states: PyTree, rows: np.ndarray, used: np.ndarray, mesh: Mesh) -> PyTree:
    """Moves rows to the devices that train their clients; returns [D, M, ...].

    Args:
      states: rows of this process.
      rows: [D, M] integers, the row for each position of each device.
      used: [D, M] bool, positions that train; the rows of the others are arbitrary.
      mesh: of D devices.
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
    index, processes = rows[used], distributed.process_count()
    if processes == 1:
        new = jax.tree.map(lambda leaf: np.asarray(leaf)[used], new)
    else:
        trained, local = _trainers(used, mesh), used[_is_local(mesh)]
        held = jax.tree.map(lambda leaf: _local_rows(leaf, len(local))[local], new)
        # Places among the rows that the same process trained.
        place = np.arange(len(trained)) - np.searchsorted(trained, trained)
        new = _exchange(held, place, trained, index % processes)
        index = index[index % processes == distributed.process_index()] // processes
    for leaf, value in zip(jax.tree.leaves(states), jax.tree.leaves(new), strict=True):
        leaf[index] = value


def _local_rows(leaf: jax.Array, count: int) -> np.ndarray:
    """The `count` rows of this process; JAX does not split an array without elements."""
    return transfer.local(leaf) if leaf.size else np.zeros((count, *leaf.shape[1:]), leaf.dtype)


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
    """Rows [k, ...] whose target is this process, in order.

    Row j of all rows is row index[j] of those that process source[j] holds. In step i of P every
    process sends to the process i places after it, in pieces of bounded size.
    """
    process, processes = distributed.process_index(), distributed.process_count()
    leaves, structure = jax.tree.flatten(held)
    sources = source[target == process]
    result = [np.empty((len(sources), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    record = np.dtype([(f'{i}', leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(leaves)])
    for step in range(processes if record.itemsize else 0):
        routes = [(sender, (sender + step) % processes) for sender in range(processes)]
        counts = [int(((source == a) & (target == b)).sum()) for a, b in routes]
        most, at_once = max(counts), max(transfer.PIECE // record.itemsize, 1)
        if np.count_nonzero(counts) == 1:  # else all routes, so that there are few programs
            routes = [routes[np.argmax(counts)]]
        sent = index[(source == process) & (target == (process + step) % processes)]
        places = np.flatnonzero(sources == (process - step) % processes)
        for begin in range(0, most, at_once):
            piece = slice(begin, begin + at_once)
            rows = np.zeros(min(at_once, most - begin) if step else len(sent[piece]), record)
            for i, leaf in enumerate(leaves):
                rows[f'{i}'][: len(sent[piece])] = leaf[sent[piece]]
            if step:
                rows = transfer.move(rows.view(np.uint8), routes).view(record)
            for i, whole in enumerate(result):
                whole[places[piece]] = rows[f'{i}'][: len(places[piece])]
    return jax.tree.unflatten(structure, result)


def gather(states: PyTree, rows: int) -> PyTree:
    """All `rows` rows in order on the first process, for a checkpoint; on others their own rows."""
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
    """Distributes the rows of the first process to those of every process, and returns these.

    Args:
      whole: [N, ...] on the first process; not read elsewhere.
      like: rows of this process as `create` made them, which are overwritten.
      rows: N, of all processes.
    """
    mine = whole
    if distributed.process_count() > 1:
        row, first = np.arange(rows), np.zeros(rows, int)
        held = whole if distributed.is_leader() else like
        mine = _exchange(held, row, first, row % distributed.process_count())
    for leaf, saved in zip(jax.tree.leaves(like), jax.tree.leaves(mine), strict=True):
        # Zeros over zeros would take memory.
        changed = slice(None) if leaf.any() else saved.reshape(len(saved), -1).any(axis=1)
        leaf[changed] = saved[changed]
    return like


def broadcast(tree: PyTree) -> PyTree:
    """The arrays and random keys of the first process, on all; shapes and types are the same.

    Several processes receive NumPy arrays.
    """
    processes = distributed.process_count()
    if processes == 1:
        return tree

    def is_key(leaf: Any) -> bool:
        return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    def as_row(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)[None]

    def from_row(leaf: Any, rows: np.ndarray) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(rows[0]), impl=jax.random.key_impl(leaf))
        return rows[0, ...]  # an array, also without axes

    first = np.zeros(processes, int)
    received = _exchange(jax.tree.map(as_row, tree), first, first, np.arange(processes))
    return jax.tree.map(from_row, tree, received)
