"""Memory that is let go stays with the process, where the system's allocator can be told so.

Batches and what a learner makes of them are large arrays that come and go at each update. glibc gives their pages back
at once, and the system hands them out again one by one, each zeroed. Every child process keeps what is freed below
32 MB (child.KEEP_MEMORY: older glibc takes no more); a trainer's arrays may be larger.
"""

from __future__ import annotations

import ctypes
import sys

#: mallopt(3): give back the end of the heap, and take a mapping of its own for an array, from so many bytes on.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Keep up to a gigabyte of freed memory for what comes next; False where there is no glibc that takes so much."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return all(mallopt(which, _KEPT_BYTES) == 1 for which in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
