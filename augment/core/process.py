"""What this process may use: CPUs, and how it gets memory from the system."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  #: of glibc's mallopt


MOST_THREADS = 4  #: default per file: more need more memory, and cannot shorten the longest chain of derived facts


def processors() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Make malloc serve large arrays from memory that any thread freed before; with glibc only. This is for
    programs: the library never does it by itself.

    By default glibc requests memory from the system for each array of more than 32 MB, and returns it when the array is
    freed. The system has to clear these pages each time, which took a tenth of all CPU time for a large trace.
    Moreover, threads do not share free memory.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        for setting, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20)):
            mallopt(setting, value)
