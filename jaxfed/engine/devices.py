"""The devices that train: GPUs, TPU cores, or the cores of a CPU."""

import collections
import importlib.util
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.engine import distributed
from jaxfed.engine.distributed import transfer
from jaxfed.internal import machine
from jaxfed.internal.console import counted
from jaxfed.types import PyTree

CUDA: tuple[str, ...] = ('jax_cuda12_plugin', 'jax_cuda13_plugin')  # either enables a GPU
PCI = Path('/sys/bus/pci/devices')
TPUS = ('0x0027', '0x0056', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076')  # of Google, 0x1ae0
AXIS = 'devices'
SPLIT, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


def use_every_core() -> None:
    """Make each core of the CPU a device, so that clients train on different cores.

    XLA splits each operation over the cores, and the operations of small networks are too short to
    fill them. Clients on different devices never wait for each other. Call this function before any
    other use of JAX.

    Raises:
      RuntimeError: if JAX has been used already.
    """
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        try:
            jax.config.update('jax_num_cpu_devices', cores())
        except RuntimeError as error:
            raise RuntimeError(
                'jaxfed.use_every_core() must come before JAX is used: restart Python, or the '
                'kernel of a notebook, and call it right after import jaxfed.'
            ) from error


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def find_devices() -> list[Any]:
    """The devices of JAX.

    Raises:
      ValueError: if JAX finds none, as with a platform that this machine does not have.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        reason = f' ({error})' if str(error) else ''
        raise ValueError(
            f'JAX finds no device with JAX_PLATFORMS={os.environ.get("JAX_PLATFORMS")}{reason}; '
            'unset it.'
        ) from error


def describe_devices(devices: Sequence[Any]) -> str:
    """Devices of one kind in words: '4 cpu cores, each one a device' or '2 x NVIDIA H100'."""
    first, processes = devices[0], ''
    if (count := distributed.process_count()) > 1:
        index = distributed.process_index()
        first = next(device for device in devices if device.process_index == index)
        processes = f', of {count} processes'
    if first.platform == 'cpu' and len(devices) > 1:
        return f'{len(devices)} cpu cores, each one a device{processes}'
    if first.platform == 'cpu':
        return f'1 cpu device of {counted(cores(), "core")}'
    limit = _memory_limit(first)
    memory = f', {limit / 2**30:.0f} GiB each for JAX' if limit else ''
    return f'{len(devices)} x {first.device_kind}{memory}{processes}'


def idle_accelerator() -> str | None:
    """How to enable a GPU or TPU of this machine that JAX does not use.

    None if JAX uses an accelerator, if there is none, or if the user selected the CPU.
    """
    if jax.default_backend() != 'cpu' or 'cpu' in (asked_platforms() or '').split(','):
        return None
    if os.environ.get('CUDA_VISIBLE_DEVICES') not in ('', '-1') and has_nvidia_driver():
        kind, extra, packages = 'an NVIDIA GPU', 'cuda12', CUDA
    elif has_tpu():
        kind, extra, packages = 'a TPU', 'tpu', ('libtpu',)
    else:
        return None
    if installed := [package for package in packages if importlib.util.find_spec(package)]:
        return (
            f'this machine has {kind} that JAX cannot use, although {installed[0]} is installed: '
            'python -c "import jax; print(jax.devices())" shows why.'
        )
    return (
        f"this machine has {kind} that JAX cannot use: pip install -e '.[{extra}]' enables it; "
        'JAX_PLATFORMS=cpu selects the CPU and silences this warning.'
    )


def asked_platforms() -> str | None:
    """The platforms that JAX_PLATFORMS or the program selects."""
    return jax.config.jax_platforms  # type: ignore[attr-defined]


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA GPU with a driver; in WSL the driver is Windows'."""
    paths = ('/proc/driver/nvidia/version', '/dev/nvidia0')
    return any(map(os.path.exists, paths)) or shutil.which('nvidia-smi') is not None


def has_tpu() -> bool:
    """Whether this machine has a TPU, by the PCI devices that JAX counts as one."""
    for path in PCI.glob('*/vendor'):
        device = path.with_name('device')
        if path.read_text().strip() == '0x1ae0' and device.read_text().strip() in TPUS:
            return True
    return False


def check_devices(wanted: str) -> None:
    """Checks --devices against the devices of JAX.

    Raises:
      ValueError: if `wanted` is neither 'all' nor a number of devices that JAX has, at least one
        for each process.
    """
    if wanted == 'all':
        return
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"--devices must be at least 1, or 'all', got {wanted}.")
    devices = jax.devices()
    if int(wanted) > len(devices):
        raise ValueError(
            f'--devices must be at most {len(devices)}, the number of {devices[0].platform} '
            f'devices that JAX finds, got {wanted}.'
        )
    if int(wanted) < distributed.process_count():
        raise ValueError(
            f'--devices={wanted} must be at least --num_processes={distributed.process_count()}: '
            'it counts the devices of all processes, and each process needs one.'
        )


def make_mesh(wanted: str | int = 'all', *, most: int | None = None) -> Mesh:
    """The mesh of the devices that train, with one axis `AXIS`.

    Args:
      wanted: 'all' or a number of devices of all processes; each process has the same number if
        possible.
      most: the largest number of devices that have work; None for no limit.

    Returns:
      The mesh; the devices of a process are adjacent.
    """
    places: dict[int, Iterator[int]] = collections.defaultdict(itertools.count)  # of each process
    # Stable: the first device of each process, then the second of each, ...
    devices = sorted(jax.devices(), key=lambda device: next(places[device.process_index]))
    devices = devices[: None if wanted == 'all' else int(wanted)][:most]
    return Mesh(np.array(sorted(devices, key=lambda device: device.process_index)), (AXIS,))


def map_devices(
    function: Callable[..., PyTree], mesh: Mesh, in_specs: Any, out_specs: Any = SPLIT
) -> Callable[..., PyTree]:
    """A function that each device of a mesh runs on its parts of the arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def is_absent(mesh: Mesh) -> bool:
    """Whether a mesh has devices of another machine, for which programs can only be compiled."""
    return set(mesh.devices.flat).isdisjoint(jax.devices())


def memory(mesh: Mesh) -> float:
    """Bytes of memory that each device of a mesh can use: the minimum over all processes.

    The memory of a CPU device is its share of the machine's. Unknown memory counts as infinite.
    """
    if is_absent(mesh):
        return math.inf
    devices, processes = mesh.local_devices, distributed.processes_on_host()
    limit = _memory_limit(devices[0])
    if not limit and devices[0].platform == 'cpu':
        limit = machine.memory() / len(devices) / processes
    return distributed.minimum('memory available', limit or math.inf)


def _memory_limit(device: Any) -> float:
    """Bytes that JAX may use of an accelerator, 0 if unknown."""
    return float((device.memory_stats() or {}).get('bytes_limit', 0))


def replicate(tree: PyTree, mesh: Mesh, *, copy: bool = True) -> PyTree:
    """Puts arrays on every device of a mesh; the devices of a CPU share one copy.

    Args:
      tree: NumPy or JAX arrays.
      mesh: from `make_mesh`.
      copy: False if a CPU's devices may share the memory of the arrays, which are from `aligned`
        and do not change any more.

    Returns:
      The same arrays, replicated; on absent devices their shapes.
    """
    sharding, devices = NamedSharding(mesh, REPLICATED), mesh.local_devices
    if is_absent(mesh):
        return shapes(tree, sharding)

    def put(leaf: np.ndarray | jax.Array) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # the result of a program, already replicated
        if devices[0].platform == 'cpu' and not isinstance(leaf, jax.Array):
            if copy:
                original = np.asarray(leaf)
                leaf = aligned(original.shape, original.dtype)
                leaf[...] = original
            copies = [jax.device_put(leaf, device, may_alias=True) for device in devices]
        elif len(devices) == mesh.size:
            return jax.device_put(leaf, sharding)
        else:
            copies = [jax.device_put(leaf, device) for device in devices]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, copies)

    return jax.tree.map(put, tree)


def split(tree: PyTree, mesh: Mesh) -> PyTree:
    """Puts arrays [D n, ...] on a mesh of D devices, n rows on each.

    Each process passes the rows of all devices; its own devices read their rows. Absent devices
    have shapes instead.
    """
    sharding = NamedSharding(mesh, SPLIT)
    if is_absent(mesh):
        return shapes(tree, sharding)
    if len(mesh.local_devices) == mesh.size:
        return jax.device_put(tree, sharding)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), tree
    )


def shapes(tree: PyTree, sharding: NamedSharding, *axes: int) -> PyTree:
    """The shapes of arrays on devices, [*axes, ...]."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype, sharding=sharding), tree
    )


def fetch(tree: PyTree) -> PyTree:
    """Arrays of JAX, split or replicated, as NumPy arrays; all processes have to call it."""

    def get(leaf: jax.Array) -> np.ndarray:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return transfer.gather(leaf)

    return jax.tree.map(get, tree)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros at an address that is a multiple of 64 bytes, which JAX uses without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    offset = -memory.ctypes.data % 64
    return memory[offset : offset + size].view(dtype).reshape(shape)
