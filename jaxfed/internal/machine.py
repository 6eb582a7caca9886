"""The processor of this machine, and the memory that this process may use."""

import functools
import math
import os
import platform
from pathlib import Path

# The file with the limit of a control group: of version 2, whose line in /proc/self/cgroup names no
# controller, and of version 1.
_LIMITS = {'': ('', 'memory.max'), 'memory': ('memory', 'memory.limit_in_bytes')}


@functools.cache
def processor() -> str:
    """Return the name of the processor's model, or of its architecture where that is unknown."""
    file = Path('/proc/cpuinfo')  # of Linux
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return models[0] if models else platform.processor() or platform.machine()


def memory() -> float:
    """Return the bytes of memory that this process may use; infinity where Python cannot tell.

    It is the memory of the machine, or of a control group: of a container or a batch job.
    """
    if not hasattr(os, 'sysconf'):  # Windows
        return math.inf
    physical = float(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
    return min(physical, group_limit(Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')))


def group_limit(groups: Path, root: Path) -> float:
    """Return the smallest limit of a process's control groups and those around them.

    Args:
      groups: the file that lists them.
      root: the folder of all groups.
    """
    limits = [math.inf]
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(':', 2)
        for name in controllers.split(','):
            if name not in _LIMITS:
                continue
            folder, file = _LIMITS[name]
            inside = Path(path.lstrip('/'))
            for group in (inside, *inside.parents):
                limit = root / folder / group / file
                if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
                    limits.append(float(text))
    return min(limits)
