"""Python's side of the dictionaries that compiled code fills: see ``intern`` in ``dictionary.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels.memory import record
from augment.kernels.native import address, native

FULL = -3  #: a table must grow first


@record
class Interned:
    """Byte strings by number. Each has a hash, and a start and size in a pool of bytes; ``slots`` (int32, an
    open-addressing table) hold the numbers. The first five, and ``pool``, are addresses.
    """

    slots: int
    hashes: int
    starts: int
    sizes: int
    pool: int
    mask: int  #: the number of slots, which is a power of two, less one
    room: int  #: for so many strings
    pool_room: int
    count: int
    used: int  #: bytes of the pool
    wanted: int  #: bytes of the pool that the last string needs for which there was no room


def slots(size: int) -> npt.NDArray[np.int32]:
    """An empty open-addressing table."""
    return np.full(size, -1, np.int32)


def longer(column: Any, room: int) -> Any:
    """``column`` with room for more."""
    made = np.empty(room, column.dtype)
    made[: len(column)] = column
    return made


class Dictionary:
    """Keeps the tables of ``table``."""

    def __init__(self, table: Interned, room: int, pool: int) -> None:
        self.table = table
        self._slots = slots(2 * room)
        self._hashes = np.empty(room, np.uint64)
        self._start, self._size = np.empty(room, np.int64), np.empty(room, np.int64)
        self._pool = np.empty(pool, np.uint8)
        self._tell()

    def _tell(self) -> None:
        table = self.table
        table.slots, table.hashes, table.starts = address(self._slots), address(self._hashes), address(self._start)
        table.sizes, table.pool = address(self._size), address(self._pool)
        table.mask, table.room, table.pool_room = len(self._slots) - 1, len(self._start), len(self._pool)

    def put_empty(self) -> None:
        """Make the empty string, whose hash is 0, number 0."""
        self._slots[0] = self._hashes[0] = self._start[0] = self._size[0] = 0
        self.table.count = 1

    def grow(self) -> None:
        """Double what is full."""
        count = self.table.count
        if self.table.wanted > len(self._pool):
            self._pool.resize(2 * self.table.wanted, refcheck=False)
        if count >= len(self._start):
            for column in (self._hashes, self._start, self._size):
                column.resize(2 * count, refcheck=False)
            self._slots = slots(4 * count)
            native("dictionary.fill_slots")(self._slots, self._hashes.view(np.int64), count)
        self._tell()

    def texts(self) -> list[bytes]:
        """The byte strings by number."""
        count = self.table.count
        edges = zip(self._start[:count].tolist(), self._size[:count].tolist(), strict=True)
        return [self._pool[start : start + size].tobytes() for start, size in edges]
