"""The memory allocator of Spark's Python workers: large buffers go back to the system."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

# Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
LARGE_BYTES, _MOST_UNUSED_BYTES = 2**21, 2**24


@cache
def return_large_buffers() -> None:
    """Give a buffer of 2 MiB and more back to the system when it is freed, in a Spark worker only.

    glibc raises its limit to 32 MiB after the first large buffer, and keeps the following ones in
    its heap. Replies and images of 14 MB leave gaps there, which cost a task 90 MB. So do documents
    of usual size, but for them a third of the CPU time would go into pages that are taken from the
    system again and again: call this only once a row has `LARGE_BYTES`.
    With a C library that has no `mallopt`, and in any other process, this does nothing.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        with suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
            # Setting one limit ends the adjustment of the other: 128 KiB would shrink the heap
            # again and again.
            mallopt(_TRIM_THRESHOLD, _MOST_UNUSED_BYTES)
            # Earlier buffers left a heap that is too fragmented for the large ones.
            ctypes.CDLL(None).malloc_trim(0)
