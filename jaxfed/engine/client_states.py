"""States of all clients, on the hosts that train: each process keeps the rows of its own clients.

Row r, of N, is the row r // P of process r % P, of P; a single process has all rows in order. Rows
of a round travel from the process that keeps them to the one that trains their client, and back;
those that stay where they are do not travel.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine import distributed
from jaxfed.engine.devices import AXIS, split
from jaxfed.engine.distributed import transfer
from jaxfed.types import PyTree


def create(first: Sequence[PyTree], num_clients: int) -> PyTree:
    """The same state for all clients of an experiment; zeros take memory only when written.

    Args:
      first: X states, of one client of each experiment.
      num_clients: N, of each experiment.

    Returns:
      NumPy arrays, the rows of this process, of the [X N, ...] of all clients of one experiment
      after another.
    """
    experiment = (
        np.arange(distributed.number(), len(first) * num_clients, distributed.count())
        // num_clients
    )

    def repeat(*leaves: np.ndarray) -> np.ndarray:
        every = np.zeros((len(experiment), *leaves[0].shape), leaves[0].dtype)
        for x, leaf in enumerate(leaves):
            if leaf.any():
                every[experiment == x] = leaf
        return every

    return jax.tree.map(lambda *leaves: repeat(*map(np.asarray, leaves)), *first)


def take(states: PyTree, rows: np.ndarray, used: np.ndarray, mesh: Mesh) -> PyTree:
    """Rows for the devices that train their clients.

    Args:
      states: rows of this process.
      rows: [D, M] integers, the row for each place of each device.
      used: [D, M] bool, places that train; what the others get is nobody's.
      mesh: of D devices.

    Returns:
      [D, M, ...], split over the devices.
    """
    if distributed.count() == 1:
        return split(jax.tree.map(lambda every: every[rows], states), mesh)
    places = np.argwhere(used)
    needed = rows[used]
    trains = _process_of_device(mesh)[places[:, 0]]
    got = _exchange(states, needed // distributed.count(), needed % distributed.count(), trains)
    here = _process_of_device(mesh) == distributed.number()
    mine = used & here[:, None]
    whole = NamedSharding(mesh, PartitionSpec(AXIS))

    def place(rows_: np.ndarray) -> Any:
        full = np.zeros((*used.shape, *rows_.shape[1:]), rows_.dtype)
        full[mine] = rows_
        return jax.make_array_from_callback(full.shape, whole, full.__getitem__)

    return jax.tree.map(place, got)


def put(states: PyTree, rows: np.ndarray, used: np.ndarray, new: PyTree, mesh: Mesh) -> None:
    """Writes the rows of a round back, in place.

    Args:
      states: rows of this process.
      rows: [D, M] integers, as for `take`.
      used: [D, M] bool, as for `take`.
      new: [D, M, ...], split over the devices.
      mesh: of D devices.
    """
    if distributed.count() == 1:
        jax.tree.map(
            lambda every, some: every.__setitem__(rows[used], np.asarray(some)[used]), states, new
        )
        return
    places = np.argwhere(used)
    trained = _process_of_device(mesh)[places[:, 0]]
    here = _process_of_device(mesh) == distributed.number()
    trained_here = jax.tree.map(lambda leaf: transfer.local(leaf)[used[here]], new)
    needed = rows[used]
    # Positions among the rows that were trained in the same process.
    order = np.zeros(len(needed), int)
    for process in range(distributed.count()):
        own = trained == process
        order[own] = np.arange(own.sum())
    keeps = needed % distributed.count()
    got = _exchange(trained_here, order, trained, keeps)
    mine = needed[keeps == distributed.number()] // distributed.count()
    jax.tree.map(lambda every, some: every.__setitem__(mine, some), states, got)


def _process_of_device(mesh: Mesh) -> np.ndarray:
    return np.array([device.process_index for device in mesh.devices.flat])


def _exchange(held: PyTree, index: np.ndarray, source: np.ndarray, target: np.ndarray) -> PyTree:
    """Rows [k, ...] that this process is the target of, in their order.

    Row j, of all, is row index[j] of what process source[j] holds. In each of P - 1 turns every
    process sends to the one so many places after it.
    """
    me, processes = distributed.number(), distributed.count()
    structure = jax.tree.structure(held)
    leaves = jax.tree.leaves(held)
    wanted = np.flatnonzero(target == me)
    result = [np.empty((len(wanted), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    size = sum(_row_bytes(leaf) for leaf in leaves)

    def fill(sent_by: int, rows: Sequence[np.ndarray]) -> None:
        for whole, some in zip(result, rows, strict=True):
            whole[source[wanted] == sent_by] = some

    own = index[(source == me) & (target == me)]
    fill(me, [leaf[own] for leaf in leaves])
    for turn in range(1, processes):
        routes = [(process, (process + turn) % processes) for process in range(processes)]
        most = max(int(((source == a) & (target == b)).sum()) for a, b in routes)
        if not most * size:
            continue
        to, by = (me + turn) % processes, (me - turn) % processes
        sent = index[(source == me) & (target == to)]
        data = np.zeros(most * size, np.uint8)
        packed = pack([leaf[sent] for leaf in leaves])
        data[: packed.size] = packed
        got = transfer.move(data, routes)
        count = int(((source == by) & (target == me)).sum())
        fill(by, unpack(got, [(count, *leaf.shape[1:]) for leaf in leaves], leaves))
    return jax.tree.unflatten(structure, result)


def _row_bytes(leaf: np.ndarray) -> int:
    return int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize


def pack(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays as bytes, one after another.

    Args:
      leaves: arrays of any shapes and types.

    Returns:
      [n] uint8.
    """
    parts = [np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves if leaf.size]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpack(
    data: np.ndarray, shapes: Sequence[tuple[int, ...]], like: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Arrays from bytes.

    Args:
      data: from `pack`, or longer.
      shapes: of the arrays.
      like: arrays of their types.

    Returns:
      The arrays.
    """
    found, begin = [], 0
    for shape, leaf in zip(shapes, like, strict=True):
        size = int(np.prod(shape)) * leaf.dtype.itemsize
        found.append(data[begin : begin + size].copy().view(leaf.dtype).reshape(shape))
        begin += size
    return found


def collect(states: PyTree, rows: int) -> PyTree:
    """All rows in order, on the first process, for a checkpoint.

    Args:
      states: rows of this process.
      rows: N, of all processes.

    Returns:
      [N, ...]; on other processes their own rows, as they are.
    """
    if distributed.count() == 1:
        return states

    def of_leaf(own: np.ndarray) -> np.ndarray:
        if not _row_bytes(own):
            return np.zeros((rows, *own.shape[1:]), own.dtype) if distributed.leader() else own
        whole = np.empty((rows, *own.shape[1:]), own.dtype) if distributed.leader() else own
        for process in range(distributed.count()):
            theirs = range(process, rows, distributed.count())
            part = own if process == 0 else _carry(own, process, 0, len(theirs))
            if distributed.leader():
                whole[process :: distributed.count()] = part
        return whole

    return jax.tree.map(of_leaf, states)


def blank(states: PyTree, rows: int) -> PyTree:
    """Room for what `collect` gives.

    Args:
      states: rows of this process.
      rows: N, of all processes.

    Returns:
      [N, ...] zeros, which take memory only when they are written.
    """
    return jax.tree.map(lambda own: np.zeros((rows, *own.shape[1:]), own.dtype), states)


def spread(whole: PyTree, like: PyTree, rows: int) -> PyTree:
    """Each process's rows, of all that the first one has.

    Args:
      whole: [N, ...] on the first process; not read elsewhere.
      like: rows of this process, of any values.
      rows: N, of all processes.

    Returns:
      The rows of this process, to be changed in place.
    """
    if distributed.count() == 1:
        return jax.tree.map(np.array, whole)

    def of_leaf(every: np.ndarray, own: np.ndarray) -> np.ndarray:
        mine = every[:: distributed.count()].copy() if distributed.leader() else own
        if not _row_bytes(own):
            return mine
        for process in range(1, distributed.count()):
            theirs = range(process, rows, distributed.count())
            sent = every[process :: distributed.count()] if distributed.leader() else own
            part = _carry(sent, 0, process, len(theirs))
            mine = part if process == distributed.number() else mine
        return mine

    return jax.tree.map(of_leaf, whole if distributed.leader() else like, like)


def _carry(rows: np.ndarray, source: int, target: int, count: int) -> np.ndarray:
    """Rows of one process to another, a piece of bounded size at a time."""
    size = _row_bytes(rows)
    step = max(transfer.PIECE // size, 1)
    received = np.empty((count, *rows.shape[1:]), rows.dtype)
    for begin in range(0, count, step):
        n = min(step, count - begin)
        sends = distributed.number() == source
        data = pack([rows[begin : begin + n]]) if sends else np.zeros(n * size, np.uint8)
        got = transfer.move(data, [(source, target)])
        received[begin : begin + n] = unpack(got, [(n, *rows.shape[1:])], [rows])[0]
    return received


def broadcast(tree: PyTree) -> PyTree:
    """What the first process has, on all.

    Args:
      tree: arrays and random keys, of the same shapes and types on all processes.

    Returns:
      NumPy arrays, and keys, of the first one.
    """
    if distributed.count() == 1:
        return tree
    held, structure = jax.tree.flatten(tree)
    keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in held]
    arrays = [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(held, keys, strict=True)
    ]
    data = pack(arrays)
    for process in range(1, distributed.count()):
        got = transfer.move(data, [(0, process)])
        data = got if distributed.number() == process else data
    sent = unpack(data, [array.shape for array in arrays], arrays)
    made = [
        jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(old)) if key else new
        for new, old, key in zip(sent, held, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, made)
