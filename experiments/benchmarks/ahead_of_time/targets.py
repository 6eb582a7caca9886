"""Accelerators that programs can be compiled for without having one."""

import os
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxfed.engine.devices import AXIS


class Target(NamedTuple):
    """A kind of device, with the numbers of its data sheet."""

    platform: str  # as `jaxfed.internal.backend.backend` names it
    package: str  # that contains its compiler
    topologies: dict[int, str]  # number of devices -> name of JAX
    flops: dict[str, float]  # --precision -> peak of a device, in operations a second
    bandwidth: float  # bytes a second
    memory: float  # bytes


def _tpu(topologies: dict[int, str], flops: float, bandwidth: float, gib: int) -> Target:
    # The matrix unit multiplies bfloat16: 6 products make a float32 product, 3 make a tf32 one.
    peaks = {'float32': flops / 6, 'tf32': flops / 3, 'bfloat16': flops}
    return Target('tpu', 'libtpu', topologies, peaks, bandwidth, gib * 2**30)


TARGETS = {
    'tpu-v5e': _tpu({4: 'v5e:2x2'}, 197e12, 819e9, 16),
    'tpu-v6e': _tpu({4: 'v6e:2x2'}, 918e12, 1640e9, 32),
    'h100': Target(
        'gpu',
        'jax_cuda12_plugin',
        {1: '1x1x1', 4: '1x1x4'},
        {'float32': 67e12, 'tf32': 495e12, 'bfloat16': 989e12},
        3.35e12,
        80 * 2**30,
    ),
}

# The properties of an H100 SXM that XLA asks a device for.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""


def compile_elsewhere() -> None:
    """Makes JAX compile for absent devices; call it before any other use of JAX."""
    jax.config.update('jax_platforms', 'cpu')
    os.environ['TPU_SKIP_MDS_QUERY'] = '1'  # do not ask the network which TPU this machine is
    os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'  # several processes may compile
    # XLA would measure algorithms on the device.
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} --xla_gpu_autotune_level=0'


def target_mesh(target: Target, devices: int = 1) -> Mesh:
    """A mesh of devices of a target.

    Args:
      target: one of `TARGETS`.
      devices: at most those of its largest topology.

    Returns:
      The mesh, of devices that programs can only be compiled for.
    """
    name = target.topologies[min(size for size in target.topologies if size >= devices)]
    if target.platform == 'tpu':
        topology = topologies.get_topology_desc(platform='tpu', topology_name=name)
    else:
        topology = topologies.get_topology_desc('', 'cuda', target_config=H100, topology=name)
    return Mesh(np.array(topology.devices[:devices]), (AXIS,))
