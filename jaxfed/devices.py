"""The devices that train: GPUs, TPU cores, or the cores of a CPU."""

import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.types import PyTree

AXIS = 'devices'


def use_every_core() -> None:
    """Make each core of the CPU a device, so that clients train on different cores.

    XLA shares the work of each single operation out to the cores, which small networks leave half
    idle; clients on devices of their own never wait for each other. To be called before JAX is
    used for anything else.

    Raises:
      RuntimeError: if JAX has been used already.
    """
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        jax.config.update('jax_num_cpu_devices', cores())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def check_devices(wanted: str) -> None:
    """Check what was asked for against the devices that there are.

    Args:
      wanted: 'all' or a number.

    Raises:
      ValueError: if it is neither, or there are fewer.
    """
    if wanted == 'all':
        return
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"--devices={wanted} must be at least 1, or 'all'.")
    here = len(jax.devices())
    if int(wanted) > here:
        kind = jax.devices()[0].platform
        raise ValueError(f'--devices={wanted}: JAX sees {here} {kind} device(s) here.')


def make_mesh(wanted: str | int = 'all', *, most: int | None = None) -> Mesh:
    """Make the mesh of the devices that train.

    Args:
      wanted: 'all' or how many.
      most: the largest number that has work to do; None for no limit.

    Returns:
      A mesh of one axis, `AXIS`.
    """
    devices = jax.devices() if wanted == 'all' else jax.devices()[: int(wanted)]
    return Mesh(np.array(devices[:most]), (AXIS,))


def memory(mesh: Mesh) -> float:
    """Memory in bytes that each device of a mesh can use.

    Args:
      mesh: from `make_mesh`.

    Returns:
      The accelerator's, or a CPU device's share of this machine's; infinity where nobody tells.
    """
    told = mesh.devices.flat[0].memory_stats() or {}
    if 'bytes_limit' in told:
        return float(told['bytes_limit'])
    if mesh.devices.flat[0].platform != 'cpu' or not hasattr(os, 'sysconf'):
        return math.inf
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / mesh.size


def replicate(tree: PyTree, mesh: Mesh, *, copy: bool = True) -> PyTree:
    """Put arrays on every device of a mesh, on a CPU without a copy for each of its devices.

    Args:
      tree: NumPy or JAX arrays.
      mesh: from `make_mesh`.
      copy: whether a CPU's devices read a copy of each array; without it they read the arrays
        themselves, made by `aligned` and not to be changed any more.

    Returns:
      The same arrays, replicated.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    devices = list(mesh.devices.flat)

    def put(leaf: np.ndarray | jax.Array) -> jax.Array:
        if devices[0].platform != 'cpu' or isinstance(leaf, jax.Array):
            return jax.device_put(leaf, everywhere)
        shared = leaf
        if copy:
            leaf = np.asarray(leaf)
            shared = aligned(leaf.shape, leaf.dtype)
            shared[...] = leaf
        views = [jax.device_put(shared, device, may_alias=True) for device in devices]
        return jax.make_array_from_single_device_arrays(shared.shape, everywhere, views)

    return jax.tree.map(put, tree)


def split(tree: PyTree, mesh: Mesh) -> PyTree:
    """Put arrays [D n, ...] on a mesh of D devices, n rows on each.

    Args:
      tree: NumPy or JAX arrays.
      mesh: from `make_mesh`.

    Returns:
      The same arrays, split along their first axis.
    """
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))


def aligned(shape: tuple[int, ...], dtype: Any, *, boundary: int = 64) -> np.ndarray:
    """Make an array of zeros that starts where JAX can use it as it is.

    Args:
      shape: of the array.
      dtype: of the array.
      boundary: in bytes, of which its address is a multiple.

    Returns:
      The array.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + boundary, np.uint8)
    offset = -memory.ctypes.data % boundary
    return memory[offset : offset + size].view(dtype).reshape(shape)
