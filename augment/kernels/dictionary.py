"""Dictionaries of byte strings: open-addressing slots (int32) over hashes (uint64), all by address.

Python fills the dictionaries of ``known_bytes.py``. Compiled code itself fills those of ``interned.py``.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import FULL, Interned
from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    load_byte,
    load_int,
    load_int32,
    load_word,
    store_byte,
    store_int,
    store_int32,
)
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
def look_up(start: int, size: int, hashed: np.uint64, table: Interned) -> int:
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
def put_in(start: int, size: int, hashed: np.uint64, slot: int, table: Interned) -> bool:
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
def intern(start: int, size: int, hashed: np.uint64, table: Interned) -> int:
    """The number of bytes in the dictionary. New bytes are added; :data:`FULL` if there is no room."""
    index = look_up(start, size, hashed, table)
    if index >= 0:
        return index
    new = table.count
    return new if put_in(start, size, hashed, -1 - index, table) else FULL
