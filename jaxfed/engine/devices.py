"""The devices that train: GPUs, TPU cores, or the cores of a CPU."""

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


def describe_devices(devices: Sequence[Any]) -> str:
    """Says what devices there are, in a few words.

    Args:
      devices: JAX's, all of one kind.

    Returns:
      The words, as '4 cpu cores, each one a device' or '2 x NVIDIA H100, 60 GiB each for JAX'.
    """
    first, among = devices[0], ''
    if distributed.count() > 1:
        first = next(device for device in devices if device.process_index == distributed.number())
        among = f', of {distributed.count()} processes'
    if first.platform == 'cpu':
        here = cores()
        return (
            f'{len(devices)} cpu cores, each one a device{among}'
            if len(devices) > 1
            else f'1 cpu device of {here} core{"s" * (here > 1)}'
        )
    told = (first.memory_stats() or {}).get('bytes_limit')
    room = f', {told / 2**30:.0f} GiB each for JAX' if told else ''
    return f'{len(devices)} x {first.device_kind}{room}{among}'


def idle_accelerator() -> str | None:
    """Says how to use a GPU or TPU of this machine that JAX does not use.

    Returns:
      A sentence; None where JAX uses an accelerator, there is none, or the CPU was asked for.
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
            'python -c "import jax; print(jax.devices())" tells why.'
        )
    return (
        f"this machine has {kind} that JAX cannot use: pip install -e '.[{extra}]' lets it; "
        'JAX_PLATFORMS=cpu says that the CPU is meant.'
    )


def asked_platforms() -> str | None:
    """What JAX_PLATFORMS, or a program in its place, asks for."""
    return jax.config.jax_platforms  # type: ignore[attr-defined]


def has_nvidia_driver() -> bool:
    """Tells whether an NVIDIA GPU with its driver is here; in WSL the driver is Windows' own."""
    files = ('/proc/driver/nvidia/version', '/dev/nvidia0')
    return any(map(os.path.exists, files)) or shutil.which('nvidia-smi') is not None


def has_tpu() -> bool:
    """Tells whether a TPU is here, as far as its device file does."""
    return os.path.exists('/dev/accel0')


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
    if int(wanted) < distributed.count():
        raise ValueError(
            f'--devices={wanted} must be at least --num_processes={distributed.count()}: it counts the '
            'devices of all processes, and each has to train.'
        )


def make_mesh(wanted: str | int = 'all', *, most: int | None = None) -> Mesh:
    """Make the mesh of the devices that train.

    Args:
      wanted: 'all' or how many, of all processes together; the same number of each, as far as that
        goes.
      most: the largest number that has work to do; None for no limit.

    Returns:
      A mesh of one axis, `AXIS`.
    """
    own: dict[int, int] = {}  # process -> devices so far

    def turn(device: Any) -> int:
        own[device.process_index] = own.get(device.process_index, -1) + 1
        return own[device.process_index]

    devices = sorted(jax.devices(), key=turn)
    devices = devices if wanted == 'all' else devices[: int(wanted)]
    # Those of a process lie side by side.
    devices = sorted(devices[:most], key=lambda device: device.process_index)
    return Mesh(np.array(devices), (AXIS,))


def memory(mesh: Mesh) -> float:
    """Memory in bytes that each device of a mesh can use.

    Args:
      mesh: from `make_mesh`.

    Returns:
      The accelerator's, or a CPU device's share of this machine's; infinity where nobody tells. Of
      several processes, the least of theirs.
    """
    return distributed.least('memory there', _own_memory(mesh, distributed.on_this_host()))


def _own_memory(mesh: Mesh, processes: int) -> float:
    own = mesh.local_devices
    told = own[0].memory_stats() or {}
    if 'bytes_limit' in told:
        return float(told['bytes_limit'])
    if own[0].platform != 'cpu' or not hasattr(os, 'sysconf'):
        return math.inf
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / len(own) / processes


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
    devices = mesh.local_devices

    def put(leaf: np.ndarray | jax.Array) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # it comes from a program that leaves it everywhere
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
    """Put arrays [D n, ...] on a mesh of D devices, n rows on each.

    Args:
      tree: NumPy or JAX arrays, of all devices also where a process has only some of them.
      mesh: from `make_mesh`.

    Returns:
      The same arrays, split along their first axis.
    """
    over_devices = NamedSharding(mesh, PartitionSpec(AXIS))
    if len(mesh.local_devices) == mesh.size:
        return jax.device_put(tree, over_devices)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, over_devices, leaf.__getitem__), tree
    )


def fetch(tree: PyTree) -> PyTree:
    """What is on the devices, of all processes, on each host. All processes have to call it.

    Args:
      tree: JAX arrays, split or everywhere, or those of NumPy.

    Returns:
      NumPy arrays.
    """

    def get(leaf: jax.Array) -> np.ndarray:
        spread = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        if spread and not leaf.is_fully_replicated:
            return transfer.gather(leaf)
        return np.asarray(leaf)

    return jax.tree.map(get, tree)


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


def keep_compiled_programs() -> None:
    """Let JAX keep compiled programs on disk, so that the next start need not compile again."""
    jax.config.update('jax_compilation_cache_dir', str(cache_folder() / 'compiled'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
