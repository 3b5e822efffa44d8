"""The compiled scanner's tables: what it counts, where its columns are, and its dictionaries.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.dictionary import same_bytes
from augment.compiled.memory import (
    compiled,
    load_byte,
    load_int,
    load_int32,
    load_word,
    store_byte,
    store_int,
    store_int32,
)
from augment.readers.compiled_layout import (
    BYTES,
    BYTES_ROOM,
    FULL,
    HASHES,
    MASK,
    PLACE_KEYS,
    PLACE_ROOM,
    PLACE_SLOTS,
    PLACE_WIDTH,
    PLACES,
    ROOM,
    SIZES_OF,
    SLOTS,
    STARTS,
    TO_POOL,
    TO_POOL_WANTED,
)


@compiled
def look_up(start: int, size: int, hashed: np.uint64, dictionary: int) -> int:
    """The id of the ``size`` bytes at ``start``, or ``-1 - slot`` where a new one would go."""
    mask = load_int(dictionary + MASK)
    slots, hashes = load_int(dictionary + SLOTS), load_int(dictionary + HASHES)
    slot = np.int64(hashed >> np.uint64(20)) & mask
    found = load_int32(slots + 4 * slot)
    while found >= 0:
        if load_word(hashes + 8 * found) == hashed and load_int(load_int(dictionary + SIZES_OF) + 8 * found) == size:
            known = load_int(dictionary + BYTES) + load_int(load_int(dictionary + STARTS) + 8 * found)
            if same_bytes(start, known, size):
                return found
        slot = (slot + 1) & mask
        found = load_int32(slots + 4 * slot)
    return -1 - slot


@compiled
def put_in(start: int, size: int, hashed: np.uint64, slot: int, dictionary: int, new: int, at: int) -> bool:
    """Enter bytes as id ``new`` at ``at`` in the pool; False if there is no room for them."""
    if new >= load_int(dictionary + ROOM) or at + size + 8 > load_int(dictionary + BYTES_ROOM):
        return False
    pool = load_int(dictionary + BYTES) + at
    for k in range(size):
        store_byte(pool + k, load_byte(start + k))
    store_int(load_int(dictionary + STARTS) + 8 * new, at)
    store_int(load_int(dictionary + SIZES_OF) + 8 * new, size)
    store_int(load_int(dictionary + HASHES) + 8 * new, np.int64(hashed))
    store_int32(load_int(dictionary + SLOTS) + 4 * slot, new)
    return True


@compiled
def intern(start: int, size: int, hashed: np.uint64, dictionary: int, counts: int) -> int:
    """The id of bytes in a dictionary that is counted at ``counts``, new if need be; :data:`FULL`: there is no room."""
    found = look_up(start, size, hashed, dictionary)
    if found >= 0:
        return found
    new, at = load_int(counts), load_int(counts + TO_POOL)
    if not put_in(start, size, hashed, -1 - found, dictionary, new, at):
        store_int(counts + TO_POOL_WANTED, at + size + 8)
        return FULL
    store_int(counts, new + 1)
    store_int(counts + TO_POOL, at + size)
    return new


@compiled
def place_hash(kinds: int, pid: int, tid: int, device: int, stream: int) -> int:
    """Where to look for a place first, before the mask."""
    hashed = np.uint64(pid) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(tid + kinds)
    hashed = (hashed * np.uint64(0xC2B2AE3D27D4EB4F)) ^ (np.uint64(device) + np.uint64(stream) * np.uint64(31))
    hashed *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64(hashed >> np.uint64(32))


@compiled
def fill_place_slots(slots: int, mask: int, keys: int, count: int) -> int:
    """Put the first ``count`` places into a new, empty slot table."""
    for k in range(count):
        key = keys + PLACE_WIDTH * k
        slot = place_hash(load_int(key), load_int(key + 8), load_int(key + 16), load_int(key + 24), load_int(key + 32))
        slot &= mask
        while load_int32(slots + 4 * slot) >= 0:
            slot = (slot + 1) & mask
        store_int32(slots + 4 * slot, k)
    return 0


@compiled
def find_place(kinds: int, pid: int, tid: int, device: int, stream: int, tables: int, state: int) -> int:
    """The id of a (pid, tid, device, stream), new if need be; :data:`FULL` if there is no room."""
    room, slots, keys = load_int(tables + PLACE_ROOM), load_int(tables + PLACE_SLOTS), load_int(tables + PLACE_KEYS)
    mask = 2 * room - 1
    slot = place_hash(kinds, pid, tid, device, stream) & mask
    found = load_int32(slots + 4 * slot)
    while found >= 0:
        key = keys + PLACE_WIDTH * found
        if load_int(key + 8) == pid and load_int(key + 16) == tid and load_int(key) == kinds:
            if load_int(key + 24) == device and load_int(key + 32) == stream:
                return found
        slot = (slot + 1) & mask
        found = load_int32(slots + 4 * slot)
    new = load_int(state + PLACES)
    if new >= room:
        return FULL
    key = keys + PLACE_WIDTH * new
    store_int(key, kinds)
    store_int(key + 8, pid)
    store_int(key + 16, tid)
    store_int(key + 24, device)
    store_int(key + 32, stream)
    store_int32(slots + 4 * slot, new)
    store_int(state + PLACES, new + 1)
    return new


@compiled
def append_pair(columns: int, counter: int, row: int, value: int) -> None:
    """Append a row and its value to the two columns whose addresses stand at ``columns``."""
    count = load_int(counter)
    store_int(load_int(columns) + 8 * count, row)
    store_int(load_int(columns + 8) + 8 * count, value)
    store_int(counter, count + 1)
