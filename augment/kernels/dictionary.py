"""Dictionaries of byte strings: open-addressing slots (int32) over hashes (uint64), all by address.

Python fills the dictionaries of ``known_bytes.py``. Compiled code itself fills those of ``interned.py``.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import (
    BYTES,
    BYTES_ROOM,
    FULL,
    HASHES,
    MASK,
    POOL,
    POOL_WANTED,
    ROOM,
    SIZES,
    SLOTS,
    STARTS,
)
from augment.kernels.memory import (
    compiled,
    load_byte,
    load_int,
    load_int32,
    load_word,
    store_byte,
    store_int,
    store_int32,
)
from augment.kernels.tokens import ALL, MULTIPLIER, SHIFT


@compiled
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether the ``size`` bytes at two addresses are the same."""
    k = 0
    while k + 8 <= size:
        if load_word(left + k) != load_word(right + k):
            return False
        k += 8
    while k < size:
        if load_byte(left + k) != load_byte(right + k):
            return False
        k += 1
    return True


@compiled
def fill_slots(slots: int, mask: int, hashes: int, count: int) -> int:
    """Put the first ``count`` entries into a new, empty slot table. Returns 0."""
    for k in range(count):
        slot = np.int64(load_word(hashes + 8 * k) >> np.uint64(20)) & mask
        while load_int32(slots + 4 * slot) >= 0:
            slot = (slot + 1) & mask
        store_int32(slots + 4 * slot, k)
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
def look_up(start: int, size: int, hashed: np.uint64, dictionary: int) -> int:
    """The id of the ``size`` bytes at ``start``; ``-1 - slot``, the slot for a new entry, if they are not in the
    dictionary.
    """
    mask = load_int(dictionary + MASK)
    slots, hashes = load_int(dictionary + SLOTS), load_int(dictionary + HASHES)
    slot = np.int64(hashed >> np.uint64(20)) & mask
    index = load_int32(slots + 4 * slot)
    while index >= 0:
        if load_word(hashes + 8 * index) == hashed and load_int(load_int(dictionary + SIZES) + 8 * index) == size:
            known = load_int(dictionary + BYTES) + load_int(load_int(dictionary + STARTS) + 8 * index)
            if same_bytes(start, known, size):
                return index
        slot = (slot + 1) & mask
        index = load_int32(slots + 4 * slot)
    return -1 - slot


@compiled
def put_in(start: int, size: int, hashed: np.uint64, slot: int, dictionary: int, new: int, at: int) -> bool:
    """Store bytes as id ``new`` at offset ``at`` of the pool; False if there is no room for them."""
    if new >= load_int(dictionary + ROOM) or at + size + 8 > load_int(dictionary + BYTES_ROOM):
        return False
    pool = load_int(dictionary + BYTES) + at
    for k in range(size):
        store_byte(pool + k, load_byte(start + k))
    store_int(load_int(dictionary + STARTS) + 8 * new, at)
    store_int(load_int(dictionary + SIZES) + 8 * new, size)
    store_int(load_int(dictionary + HASHES) + 8 * new, np.int64(hashed))
    store_int32(load_int(dictionary + SLOTS) + 4 * slot, new)
    return True


@compiled
def intern(start: int, size: int, hashed: np.uint64, dictionary: int, counts: int) -> int:
    """The id of bytes in the dictionary whose counts are at ``counts``. New bytes are added; :data:`FULL` if there is
    no room.
    """
    index = look_up(start, size, hashed, dictionary)
    if index >= 0:
        return index
    new, at = load_int(counts), load_int(counts + POOL)
    if not put_in(start, size, hashed, -1 - index, dictionary, new, at):
        store_int(counts + POOL_WANTED, at + size + 8)
        return FULL
    store_int(counts, new + 1)
    store_int(counts + POOL, at + size)
    return new
