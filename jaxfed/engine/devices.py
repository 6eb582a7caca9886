"""The devices that train: GPUs, TPU cores, or the cores of a CPU."""

import collections
import importlib.util
import math
import os
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine import distributed
from jaxfed.engine.distributed import transfer
from jaxfed.internal.files import cache_folder
from jaxfed.types import PyTree

AXIS = 'devices'


def use_every_core() -> None:
    """Make each core of the CPU a device, so that clients train on different cores.

    XLA splits every single operation over the cores, which small networks leave half idle; clients
    on different devices never wait for each other. Call it before JAX is used for anything else.

    Raises:
      RuntimeError: if JAX has been used already.
    """
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        jax.config.update('jax_num_cpu_devices', cores())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def describe_devices(devices: Sequence[Any]) -> str:
    """Devices of one kind in words, as '4 cpu cores, each one a device' or '2 x NVIDIA H100'."""
    first, processes = devices[0], ''
    if distributed.process_count() > 1:
        index = distributed.process_index()
        first = next(device for device in devices if device.process_index == index)
        processes = f', of {distributed.process_count()} processes'
    if first.platform == 'cpu':
        count = cores()
        return (
            f'{len(devices)} cpu cores, each one a device{processes}'
            if len(devices) > 1
            else f'1 cpu device of {count} core{"s" * (count > 1)}'
        )
    limit = _memory_limit(first)
    memory = f', {limit / 2**30:.0f} GiB each for JAX' if limit else ''
    return f'{len(devices)} x {first.device_kind}{memory}{processes}'


def idle_accelerator() -> str | None:
    """How to use a GPU or TPU of this machine that JAX does not use.

    None if JAX uses an accelerator, there is none, or the user asked for the CPU.
    """
    if jax.default_backend() != 'cpu' or 'cpu' in (asked_platforms() or '').split(','):
        return None
    if os.environ.get('CUDA_VISIBLE_DEVICES') not in ('', '-1') and has_nvidia_driver():
        kind, extra, package = 'an NVIDIA GPU', 'cuda12', 'jax_cuda12_plugin'
    elif has_tpu():
        kind, extra, package = 'a TPU', 'tpu', 'libtpu'
    else:
        return None
    if importlib.util.find_spec(package):
        return (
            f'this machine has {kind} that JAX cannot use, although {package} is installed: '
            'python -c "import jax; print(jax.devices())" shows why.'
        )
    return (
        f"this machine has {kind} that JAX cannot use: pip install -e '.[{extra}]' enables it; "
        'JAX_PLATFORMS=cpu selects the CPU and silences this warning.'
    )


def asked_platforms() -> str | None:
    """The platforms that JAX_PLATFORMS, or the program in its place, asks for."""
    return jax.config.jax_platforms  # type: ignore[attr-defined]


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA GPU with a driver, which in WSL belongs to Windows."""
    paths = ('/proc/driver/nvidia/version', '/dev/nvidia0')
    return any(map(os.path.exists, paths)) or shutil.which('nvidia-smi') is not None


def has_tpu() -> bool:
    """Whether this machine has the device file of a TPU."""
    return os.path.exists('/dev/accel0')


def check_devices(wanted: str) -> None:
    """Checks --devices, 'all' or a number, against the devices of JAX.

    Raises:
      ValueError: if it is neither, or there are fewer.
    """
    if wanted == 'all':
        return
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"--devices={wanted} must be at least 1, or 'all'.")
    devices = jax.devices()
    if int(wanted) > len(devices):
        raise ValueError(
            f'--devices={wanted}: JAX sees {len(devices)} {devices[0].platform} device(s) here.'
        )
    if int(wanted) < distributed.process_count():
        raise ValueError(
            f'--devices={wanted} must be at least --num_processes={distributed.process_count()}: '
            'it counts the devices of all processes, and each process has to train.'
        )


def make_mesh(wanted: str | int = 'all', *, most: int | None = None) -> Mesh:
    """The mesh of the devices that train, with one axis `AXIS`.

    Args:
      wanted: 'all' or how many, of all processes; each process has the same number, as far as
        possible.
      most: the largest number that has work to do; None for no limit.

    Returns:
      The mesh; the devices of a process are adjacent.
    """
    places: collections.Counter[int] = collections.Counter()  # process -> devices so far

    def place(device: Any) -> int:
        places[device.process_index] += 1
        return places[device.process_index]

    devices = sorted(jax.devices(), key=place)  # stable: the first of each process, the second, ...
    devices = devices if wanted == 'all' else devices[: int(wanted)]
    devices = sorted(devices[:most], key=lambda device: device.process_index)
    return Mesh(np.array(devices), (AXIS,))


def memory(mesh: Mesh) -> float:
    """Bytes of memory that each device of a mesh can use, the least of all processes.

    A CPU device's memory is its share of this machine's; it is infinite where it is unknown.
    """
    devices, processes = mesh.local_devices, distributed.processes_on_host()
    limit = _memory_limit(devices[0])
    if not limit and devices[0].platform == 'cpu' and hasattr(os, 'sysconf'):
        machine = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
        limit = machine / len(devices) / processes
    return distributed.minimum('memory available', limit or math.inf)


def _memory_limit(device: Any) -> float:
    """Bytes that JAX may use of an accelerator, 0 where it is unknown."""
    return float((device.memory_stats() or {}).get('bytes_limit', 0))


def replicate(tree: PyTree, mesh: Mesh, *, copy: bool = True) -> PyTree:
    """Puts arrays on every device of a mesh; the devices of a CPU share one copy.

    Args:
      tree: NumPy or JAX arrays.
      mesh: from `make_mesh`.
      copy: False if a CPU's devices may read the arrays themselves, which `aligned` made and which
        do not change any more.

    Returns:
      The same arrays, replicated.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    devices = mesh.local_devices

    def put(leaf: np.ndarray | jax.Array) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # the result of a program, already replicated
        if devices[0].platform != 'cpu' or isinstance(leaf, jax.Array):
            if len(devices) == mesh.size:
                return jax.device_put(leaf, everywhere)
            copies = [jax.device_put(leaf, device) for device in devices]
            return jax.make_array_from_single_device_arrays(leaf.shape, everywhere, copies)
        shared = leaf
        if copy:
            leaf = np.asarray(leaf)
            shared = aligned(leaf.shape, leaf.dtype)
            shared[...] = leaf
        views = [jax.device_put(shared, device, may_alias=True) for device in devices]
        return jax.make_array_from_single_device_arrays(shared.shape, everywhere, views)

    return jax.tree.map(put, tree)


def split(tree: PyTree, mesh: Mesh) -> PyTree:
    """Puts arrays [D n, ...] on a mesh of D devices, n rows on each.

    A process that has only some of the devices passes the rows of all of them, and its devices read
    theirs.
    """
    over_devices = NamedSharding(mesh, PartitionSpec(AXIS))
    if len(mesh.local_devices) == mesh.size:
        return jax.device_put(tree, over_devices)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, over_devices, leaf.__getitem__), tree
    )


def fetch(tree: PyTree) -> PyTree:
    """Arrays of JAX, split or replicated, as NumPy arrays; all processes have to call it."""

    def get(leaf: jax.Array) -> np.ndarray:
        partial = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        return (
            transfer.gather(leaf) if partial and not leaf.is_fully_replicated else np.asarray(leaf)
        )

    return jax.tree.map(get, tree)


def aligned(shape: tuple[int, ...], dtype: Any, *, boundary: int = 64) -> np.ndarray:
    """Zeros at an address, a multiple of `boundary` bytes, where JAX uses them without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + boundary, np.uint8)
    offset = -memory.ctypes.data % boundary
    return memory[offset : offset + size].view(dtype).reshape(shape)


def keep_compiled_programs() -> None:
    """Makes JAX keep compiled programs on disk, so that the next start does not compile again."""
    jax.config.update('jax_compilation_cache_dir', str(cache_folder() / 'compiled'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
