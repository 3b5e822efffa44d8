"""Python's side of the dictionaries that compiled code fills: see ``intern`` in ``dictionary.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels.native import address, native

FULL = -3  #: a table must grow first
# where a dictionary is: its int64 at these byte offsets. Slots (int32) of an open-addressing table hold ids, of each of
# which there are the hash, and the start and size in a pool of bytes
SLOTS, MASK, HASHES, STARTS, SIZES, BYTES, ROOM, BYTES_ROOM, DICTIONARY = range(0, 9 * 8, 8)
# how it is counted: how many ids there are, how much of the pool they take, and how much is wanted
COUNT, POOL, POOL_WANTED, COUNTS = range(0, 4 * 8, 8)


def slots(size: int) -> npt.NDArray[np.int32]:
    """An empty open-addressing table."""
    return np.full(size, -1, np.int32)


def longer(column: Any, room: int) -> Any:
    """``column`` with room for more."""
    made = np.empty(room, column.dtype)
    made[: len(column)] = column
    return made


class Dictionary:
    """Distinct byte strings by number."""

    def __init__(self, room: int, pool: int) -> None:
        self._slots = slots(2 * room)
        self._hashes = np.empty(room, np.uint64)
        self._start, self._size = np.empty(room, np.int64), np.empty(room, np.int64)
        self._pool = np.empty(pool, np.uint8)

    def addresses(self) -> list[int]:
        """As compiled code expects them, from SLOTS to BYTES_ROOM."""
        columns = [address(column) for column in (self._hashes, self._start, self._size)]
        return [
            address(self._slots), len(self._slots) - 1, *columns, address(self._pool),
            len(self._start), len(self._pool),
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
            native("dictionary.fill_slots")(address(self._slots), 4 * count - 1, address(self._hashes), count)

    def texts(self, count: int) -> list[bytes]:
        """The first ``count`` byte strings."""
        edges = zip(self._start[:count].tolist(), self._size[:count].tolist(), strict=True)
        return [self._pool[start : start + size].tobytes() for start, size in edges]
