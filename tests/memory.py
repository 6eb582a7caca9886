"""Memory that a block of code takes at most."""

import contextlib
import sys
import tracemalloc
from pathlib import Path

from experiments.stress.resources import MIB, memory_of

SLACK = 16  # MiB that modules and other threads may take


@contextlib.contextmanager
def at_most(mib):
    """Checks the peak of Python's memory and, on Linux, that of the process with its libraries."""
    linux = sys.platform == 'linux'
    if linux:
        Path('/proc/self/clear_refs').write_text('5')  # the peak begins here
        before = memory_of('VmRSS')
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mib * MIB
    finally:
        tracemalloc.stop()
    if linux:
        assert memory_of('VmHWM') - before < mib + SLACK
