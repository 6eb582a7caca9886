"""The memory of this machine."""

import math
import os


def memory() -> float:
    """Return the bytes of memory of this machine; infinity where Python cannot tell (Windows)."""
    if not hasattr(os, 'sysconf'):
        return math.inf
    return float(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))
