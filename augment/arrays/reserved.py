"""Room for results of unknown length, which takes memory only where it is filled."""

from __future__ import annotations

import mmap
import sys
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value", bound=np.generic)


def reserved(count: int, kind: type[Value]) -> npt.NDArray[Value]:
    """Room for ``count`` values of ``kind``, of any value. Copy what is filled: all of it lives as long as any view.

    The system gives its pages when they are first touched. Memory of ``np.empty`` would in part be memory that was
    freed before, which arrays that are filled could have used.
    """
    if sys.platform == "win32":
        return np.empty(count, kind)
    size = max(count * np.dtype(kind).itemsize, 1)
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), kind, count)
