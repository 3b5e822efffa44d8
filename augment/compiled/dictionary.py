"""What dictionaries of byte strings have in common: open-addressing slots (int32) over hashes (uint64), all by address.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.memory import compiled, load_byte, load_int32, load_word, store_int32


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
