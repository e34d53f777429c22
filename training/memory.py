"""The C library's memory, set up for a program that allocates the same large tensors in every step."""

import ctypes
import os
import sys

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # the C library refuses more
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Keeps memory that was freed instead of handing it back to the system, and fetching it again in the next step.

    On two cores a training step of a small model takes half the time (benchmarks/allocation.py): the rest went into
    page faults. Only of use on CPUs, and only known of Linux; elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    # Each arena keeps what its threads have freed from those of the others; a lock each for many cores is worth it.
    mallopt(_M_ARENA_MAX, max(1, (os.cpu_count() or 1) // 4))
