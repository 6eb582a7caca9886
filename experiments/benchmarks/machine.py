"""What a benchmark ran on."""

import importlib.util
import platform
from importlib.metadata import version
from pathlib import Path

import jax

from jaxfed.engine.devices import cores


def machine() -> dict[str, str | int]:
    """Describes what is measured on.

    Returns:
      Cores, processor, JAX's device and the versions.
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith('model name')]
        name = named[0].partition(':')[2].strip() if named else name
    has_torch = importlib.util.find_spec('torch') is not None
    return {
        'cores': cores(),
        'processor': name,
        'device': jax.devices()[0].device_kind,
        'devices': len(jax.devices()),
        'python': platform.python_version(),
        'jax': jax.__version__,
        'flax': version('flax'),
        'torch': version('torch') if has_torch else 'not installed',
    }
