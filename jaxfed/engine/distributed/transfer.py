"""Arrays between the devices of several processes.

`process_allgather` and `broadcast_one_to_all` of `jax.experimental.multihost_utils` need the same
number of devices in every process, copy all data to each device, and narrow 64-bit numbers. These
functions use one device of each process and bound the size of a transfer.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine import distributed
from jaxfed.types import Array

PIECE = 1 << 24  # bytes of a transfer at once, on one device of each process

_SPLIT = PartitionSpec('processes')


def move(data: np.ndarray, routes: Sequence[tuple[int, int]]) -> np.ndarray:
    """Sends bytes from processes to others, through their devices.

    Args:
      data: [n] uint8 of this process; n is the same on all processes.
      routes: (sender, receiver); each process occurs at most once on either side.

    Returns:
      [n] uint8 that this process receives; zeros if it receives nothing.
    """
    mesh = _process_mesh()
    send = _sender(mesh, tuple(routes))
    received = np.empty_like(data)
    for begin in range(0, data.size, PIECE):
        part = data[begin : begin + PIECE]
        # Sizes are powers of two, so that there are few programs.
        block = np.zeros((1, 1 << max(part.size - 1, 1023).bit_length()), np.uint8)
        block[0, : part.size] = part
        moved = distributed.run_collective(send, _stack(block, mesh))
        received[begin : begin + part.size] = local(moved)[0, : part.size]
    return received


def gather(array: jax.Array) -> np.ndarray:
    """All rows [n, ...] of an array that is split over the devices of all processes, in order."""
    mesh, kept = _process_mesh(), local(array)
    holders = [device.process_index for device in array.sharding.mesh.devices.flat]  # type: ignore[attr-defined]
    rows = np.bincount(holders, minlength=distributed.process_count())
    rows *= len(array) // len(holders)
    block = np.zeros((1, rows.max(), *kept.shape[1:]), kept.dtype)
    block[0, : len(kept)] = kept
    whole = np.asarray(distributed.run_collective(_gatherer(mesh), _stack(block, mesh)))
    if rows.min() == rows.max():
        return whole.reshape(-1, *kept.shape[1:])  # no copy
    return np.concatenate([part[:n] for part, n in zip(whole, rows, strict=True)])


def local(array: Array) -> np.ndarray:
    """The rows of this process, in order, of an array that is split along its first axis."""
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[begin]) for begin in sorted(parts)])


@functools.cache
def _process_mesh() -> Mesh:
    """One device of each process."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[process] for process in sorted(first)]), ('processes',))


def _stack(block: np.ndarray, mesh: Mesh) -> jax.Array:
    """The blocks [1, ...] of all processes as one array [P, ...]."""
    shape = (distributed.process_count(), *block.shape[1:])
    blocks = [jax.device_put(block, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, _SPLIT), blocks)


@functools.cache
def _sender(mesh: Mesh, routes: tuple[tuple[int, int], ...]) -> Callable[[Array], Array]:
    def send(block: Array) -> Array:
        return jax.lax.ppermute(block, 'processes', routes)

    return jax.jit(
        jax.shard_map(send, mesh=mesh, in_specs=_SPLIT, out_specs=_SPLIT, check_vma=False)
    )


@functools.cache
def _gatherer(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda blocks: blocks, out_shardings=NamedSharding(mesh, PartitionSpec()))
