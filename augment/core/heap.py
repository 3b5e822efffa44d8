"""How this process gets memory from the system: a setting for programs, which the library never makes by itself."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  #: of glibc's mallopt


def keep_freed_memory() -> None:
    """Make malloc serve large arrays from memory that any thread freed before; with glibc only.

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
