"""Compiled code of the Perfetto writer: the dictionary of what was encoded before, by its bytes in the source.

``fast.py`` fills it. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.dictionary import same_bytes
from augment.compiled.memory import compiled, load_int, load_int32, load_word
from augment.compiled.tokens import ALL, MULTIPLIER, SHIFT
from augment.writers.perfetto.layout_compiled import HASHES, MASK, POOL, SIZES, SLOTS, STARTS
from augment.writers.perfetto.packets_compiled import WORD


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
