"""Dictionaries of byte strings: open-addressing slots (int32) over hashes (uint64), all by address.

Compiled code fills them; Python enlarges their tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    load_byte,
    load_int,
    load_int32,
    load_word,
    record,
    store_byte,
    store_int,
    store_int32,
)
from augment.kernels.native import address, native
from augment.kernels.tokens import ALL, MULTIPLIER, SHIFT, ZERO


@compiled
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether the ``size`` bytes at two addresses are the same. Up to 7 bytes beyond them are read, too."""
    k = 0
    while k + 8 <= size:
        if load_word(left + k) != load_word(right + k):
            return False
        k += 8
    if k < size:
        return (load_word(left + k) ^ load_word(right + k)) << (np.uint64(8) * np.uint64(8 - (size - k))) == ZERO
    return True


@compiled
def fill_slots(slots: Column, hashes: Column, count: int) -> int:
    """Put the first ``count`` entries into a new, empty slot table. Returns 0."""
    mask = len(slots) - 1
    for k in range(count):
        slot = np.int64(as_word(hashes[k]) >> np.uint64(20)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = k
    return 0


@compiled
def hash_bytes(start: int, size: int, hashed: np.uint64) -> np.uint64:
    """Mix bytes into ``hashed``."""
    k = 0
    while k + 8 <= size:
        hashed = (hashed ^ load_word(start + k)) * MULTIPLIER
        hashed ^= hashed >> SHIFT
        k += 8
    if k < size:
        rest = load_word(start + k) & (ALL >> (np.uint64(8) * np.uint64(8 - (size - k))))
        hashed = (hashed ^ rest) * MULTIPLIER
        hashed ^= hashed >> SHIFT
    return hashed


@compiled
def look_up(start: int, size: int, hashed: np.uint64, table: InternedBytes) -> int:
    """The number of the ``size`` bytes at ``start``; ``-1 - slot``, the slot for a new entry, if they are not in the
    dictionary.
    """
    slot = np.int64(hashed >> np.uint64(20)) & table.mask
    index = load_int32(table.slots + 4 * slot)
    while index >= 0:
        if load_word(table.hashes + 8 * index) == hashed and load_int(table.sizes + 8 * index) == size:
            if same_bytes(start, table.pool + load_int(table.starts + 8 * index), size):
                return index
        slot = (slot + 1) & table.mask
        index = load_int32(table.slots + 4 * slot)
    return -1 - slot


@compiled
def put_in(start: int, size: int, hashed: np.uint64, slot: int, table: InternedBytes) -> bool:
    """Add bytes; False if there is no room for them."""
    new, at = table.count, table.used
    if new >= table.room or at + size + 8 > table.pool_room:
        table.wanted = at + size + 8
        return False
    for k in range(size):
        store_byte(table.pool + at + k, load_byte(start + k))
    store_int(table.starts + 8 * new, at)
    store_int(table.sizes + 8 * new, size)
    store_int(table.hashes + 8 * new, np.int64(hashed))
    store_int32(table.slots + 4 * slot, new)
    table.count = new + 1
    table.used = at + size
    return True


@compiled
def intern(start: int, size: int, hashed: np.uint64, table: InternedBytes) -> int:
    """The number of bytes in the dictionary. New bytes are added; :data:`FULL` if there is no room."""
    index = look_up(start, size, hashed, table)
    if index >= 0:
        return index
    new = table.count
    return new if put_in(start, size, hashed, -1 - index, table) else FULL


FULL = -3  #: a table must grow first


@record
class InternedBytes:
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
    """Keeps the tables of ``table``, which compiled code fills: see :func:`intern`."""

    def __init__(self, table: InternedBytes, room: int, pool: int) -> None:
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


@record
class Known:
    """Byte strings, and of each the place and size of its code in the pool, and the hash of its key (addresses)."""

    texts: InternedBytes
    codes: int
    code_sizes: int
    keys: int
    nexts: int  #: what came last time first, then after each: twice its number, plus 1 for a key alone; or -1


FIRST_KNOWN, FIRST_POOL = 1 << 12, 1 << 18  #: room of a new table: byte strings, and their bytes


class KnownBytes:
    """Byte strings and their codes, which are byte strings, too: see :func:`augment.kernels.encode_blobs.learn`."""

    def __init__(self) -> None:
        self.known = Known()
        self._texts = Dictionary(self.known.texts, FIRST_KNOWN, FIRST_POOL)
        self._columns = [np.empty(FIRST_KNOWN, np.int64) for _ in range(3)]
        self._nexts = np.full(FIRST_KNOWN + 1, -1, np.int64)
        self._tell()

    def _tell(self) -> None:
        self.known.codes, self.known.code_sizes, self.known.keys = map(address, self._columns)
        self.known.nexts = address(self._nexts)

    def grow(self) -> None:
        """Double what is full."""
        self._texts.grow()
        more = self.known.texts.room - len(self._columns[0])
        if more:
            self._columns = [longer(column, self.known.texts.room) for column in self._columns]
            self._nexts = np.concatenate([self._nexts, np.full(more, -1, np.int64)])
            self._tell()
