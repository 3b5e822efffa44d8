"""Dictionaries of byte strings: open-addressing slots (int32) over hashes (uint64), all by address.

``known_bytes.py`` fills them. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.known_bytes import HASHES, MASK, POOL, SIZES, SLOTS, STARTS
from augment.compiled.memory import compiled, load_byte, load_int, load_int32, load_word, store_int32
from augment.compiled.tokens import ALL, MULTIPLIER, SHIFT

WORD = 8


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
    """Put the first ``count`` entries into a new, empty slot table; 0."""
    for k in range(count):
        slot = np.int64(load_word(hashes + 8 * k) >> np.uint64(20)) & mask
        while load_int32(slots + 4 * slot) >= 0:
            slot = (slot + 1) & mask
        store_int32(slots + 4 * slot, k)
    return 0


@compiled
def find_known(start: int, size: int, hashed: np.uint64, tables: int) -> int:
    """The entry of these bytes in the dictionary; -1 if there is none."""
    mask, slots = load_int(tables + MASK), load_int(tables + SLOTS)
    slot = np.int64(hashed >> np.uint64(20)) & mask
    found: int = load_int32(slots + 4 * slot)
    while found >= 0:
        if load_word(load_int(tables + HASHES) + WORD * found) == hashed:
            if load_int(load_int(tables + SIZES) + WORD * found) == size:
                known = load_int(tables + POOL) + load_int(load_int(tables + STARTS) + WORD * found)
                if same_bytes(start, known, size):
                    return found
        slot = (slot + 1) & mask
        found = load_int32(slots + 4 * slot)
    return -1


@compiled
def hash_bytes(start: int, size: int, hashed: np.uint64) -> np.uint64:
    """``hashed`` with bytes mixed in."""
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
