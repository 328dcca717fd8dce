"""What becomes of freed memory: kept for the next call, or handed back to the system.

By default glibc decides by what was freed before, so that the same model takes 83 or 138 ms in two processes, the
difference being thousands of pages that the system clears anew in every call. A measurement needs one rule.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

#: Parameters of glibc's `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MOST = 1 << 30  # bytes: a block above it is still handed back


def keep_freed_memory() -> None:
    """From now on what a call frees is there for the next one, as in a server that runs for long."""
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, MOST)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * MOST - 1)


def give_back() -> None:
    """All that is free goes back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
