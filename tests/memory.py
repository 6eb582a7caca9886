"""Memory that a block of code takes at most."""

import contextlib
import sys
import tracemalloc
from pathlib import Path

MIB = 2**20
SLACK = 16  # MiB that modules and other threads may take


@contextlib.contextmanager
def at_most(mib):
    """Checks the peak of Python's memory and, on Linux, that of the process with its libraries."""
    linux = sys.platform == 'linux'
    if linux:
        Path('/proc/self/clear_refs').write_text('5')  # the peak begins here
        before = resident('VmRSS')
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mib * MIB
    finally:
        tracemalloc.stop()
    if linux:
        assert resident('VmHWM') - before < mib + SLACK


def resident(name):
    """A size in /proc/self/status, in MiB."""
    lines = Path('/proc/self/status').read_text().splitlines()
    (size,) = (int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
    return size
