"""Python's side of the dictionaries that the fast event scanner fills: see ``compiled_tables.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from augment.compiled.native import native
from augment.trace import Int32s


def slots(size: int) -> Int32s:
    """An empty open-addressing table."""
    return np.full(size, -1, np.int32)


def longer(column: Any, room: int) -> Any:
    """``column`` with room for more."""
    made = np.empty(room, column.dtype)
    made[: len(column)] = column
    return made


class Dictionary:
    """Distinct byte strings by number: slots of an open-addressing table, and hash, start and size of each."""

    def __init__(self, room: int, pool: int) -> None:
        self._slots = slots(2 * room)
        self._hashes = np.empty(room, np.uint64)
        self._start, self._size = np.empty(room, np.int64), np.empty(room, np.int64)
        self._pool = np.empty(pool, np.uint8)

    def addresses(self) -> list[int]:
        """As compiled code expects them, from SLOTS to BYTES_ROOM."""
        columns = [column.ctypes.data for column in (self._hashes, self._start, self._size)]
        return [
            self._slots.ctypes.data, len(self._slots) - 1, *columns, len(self._start),
            self._pool.ctypes.data, len(self._pool),
        ]  # fmt: skip

    def put_empty(self) -> None:
        """Make the empty string, whose hash is 0, number 0."""
        self._slots[0] = self._hashes[0] = self._start[0] = self._size[0] = 0

    def grow(self, count: int, pool_wanted: int) -> None:
        """Double what is full."""
        if pool_wanted > len(self._pool):
            self._pool.resize(2 * pool_wanted, refcheck=False)
        if count >= len(self._start):
            for column in (self._hashes, self._start, self._size):
                column.resize(2 * count, refcheck=False)
            self._slots = slots(4 * count)
            native("augment.compiled.dictionary", "fill_slots", 4)(
                self._slots.ctypes.data, 4 * count - 1, self._hashes.ctypes.data, count
            )

    def texts(self, count: int) -> list[bytes]:
        """The first ``count`` byte strings."""
        edges = zip(self._start[:count].tolist(), self._size[:count].tolist(), strict=True)
        return [self._pool[start : start + size].tobytes() for start, size in edges]
