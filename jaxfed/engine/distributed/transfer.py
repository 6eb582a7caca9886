"""Arrays between the devices of several processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine import distributed
from jaxfed.types import Array

PIECE = 1 << 24  # bytes of a transfer at once, which every device holds

_SPLIT = PartitionSpec('processes')


def move(data: np.ndarray, routes: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send bytes from processes to others, through their devices.

    Args:
      data: [n] uint8 of this process; n is the same on all of them.
      routes: (from, to), each process at most once on either side.

    Returns:
      [n] uint8, what this process is sent; zeros if it is none of the receivers.
    """
    mesh = _meeting_place()
    split, send = NamedSharding(mesh, _SPLIT), _sender(mesh, tuple(routes))
    received = np.empty_like(data)
    for begin in range(0, data.size, PIECE):
        part = data[begin : begin + PIECE]
        # Few sizes, so few programs.
        block = np.zeros((1, 1 << max(part.size - 1, 1023).bit_length()), np.uint8)
        block[0, : part.size] = part
        shape = (distributed.count(), block.shape[1])
        own = [jax.device_put(block, device) for device in mesh.local_devices]
        moved = send(jax.make_array_from_single_device_arrays(shape, split, own))
        received[begin : begin + part.size] = local(moved)[0, : part.size]
    return received


@functools.cache
def _sender(mesh: Mesh, routes: tuple[tuple[int, int], ...]) -> Callable[[Array], Array]:
    def send(block: Array) -> Array:
        return jax.lax.ppermute(block, 'processes', routes)

    return jax.jit(
        jax.shard_map(send, mesh=mesh, in_specs=_SPLIT, out_specs=_SPLIT, check_vma=False)
    )


def _meeting_place() -> Mesh:
    """One device of each process: with more of them each would get the same bytes."""
    own: dict[int, Any] = {}
    for device in jax.devices():
        own.setdefault(device.process_index, device)
    return Mesh(np.array([own[process] for process in sorted(own)]), ('processes',))


def gather(array: jax.Array) -> np.ndarray:
    """All rows of an array that no process has all of, on each host, through one device of each.

    Args:
      array: split along its first axis, over devices of all processes in their order.

    Returns:
      [n, ...].
    """
    own, mesh = local(array), _meeting_place()
    holders = [device.process_index for device in array.sharding.mesh.devices.flat]  # type: ignore[attr-defined]
    rows = np.bincount(holders, minlength=distributed.count()) * (len(array) // len(holders))
    block = np.zeros((1, rows.max(), *own.shape[1:]), own.dtype)
    block[0, : len(own)] = own
    here = [jax.device_put(block, device) for device in mesh.local_devices]
    blocks = jax.make_array_from_single_device_arrays(
        (distributed.count(), *block.shape[1:]), NamedSharding(mesh, _SPLIT), here
    )
    whole = np.asarray(_gatherer(mesh)(blocks))
    if rows.min() == rows.max():
        return whole.reshape(-1, *own.shape[1:])  # no copy
    return np.concatenate([part[:n] for part, n in zip(whole, rows, strict=True)])


@functools.cache
def _gatherer(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda blocks: blocks, out_shardings=NamedSharding(mesh, PartitionSpec()))


def local(array: Array) -> np.ndarray:
    """The rows of an array that this process holds.

    Args:
      array: split along its first axis, or on this process alone.

    Returns:
      [n, ...], in the order of the whole.
    """
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[begin]) for begin in sorted(parts)])
