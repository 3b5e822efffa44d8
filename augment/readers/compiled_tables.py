"""The compiled scanner's tables: what it counts, where its columns are, and its dictionaries.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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

FULL = -3  #: a table must grow first

# what `state` counts: its int64 at these byte offsets
(POSITION, ROWS, STRINGS, POOL, PLACES, NOTES, SIZES, FLOWS, EVENTS, LAST_END, POOL_WANTED, LINES, LINE_POOL,
 NO_LINES) = range(0, 14 * 8, 8)  # fmt: skip
STATE = 14

# where the tables are: their addresses and sizes, at these byte offsets of `tables`
(TS_COLUMN, DUR_COLUMN, PHASE_COLUMN, CATEGORY_COLUMN, NAME_COLUMN, PLACE_COLUMN, CORRELATION_COLUMN, OFFSET_COLUMN,
 LENGTH_COLUMN, SIZE_ROWS, SIZE_VALUES, FLOW_ROWS, FLOW_VALUES, NOTE_TABLE, ROW_ROOM,
 NOTE_ROOM) = range(0, 16 * 8, 8)  # fmt: skip
# a dictionary of byte strings: open-addressing slots (int32) of ids, and for each id hash, start and size in the pool
SLOTS, MASK, HASHES, STARTS, SIZES_OF, ROOM, BYTES, BYTES_ROOM, DICTIONARY = range(0, 9 * 8, 8)
STRING_DICTIONARY = NOTE_ROOM + 8
LINE_DICTIONARY = STRING_DICTIONARY + DICTIONARY
LINE_HEADS, PLACE_SLOTS, PLACE_KEYS, PLACE_ROOM, END_OF_TABLES = range(
    LINE_DICTIONARY + DICTIONARY, LINE_DICTIONARY + DICTIONARY + 5 * 8, 8
)
TABLES = END_OF_TABLES // 8
PLACE_WIDTH, HEAD_WIDTH, NOTE_WIDTH = 5 * 8, 6 * 8, 4 * 8


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
def intern(start: int, size: int, hashed: np.uint64, tables: int, state: int) -> int:
    """The id of a string, new if need be; :data:`FULL` if there is no room for it."""
    found = look_up(start, size, hashed, tables + STRING_DICTIONARY)
    if found >= 0:
        return found
    new, at = load_int(state + STRINGS), load_int(state + POOL)
    if not put_in(start, size, hashed, -1 - found, tables + STRING_DICTIONARY, new, at):
        store_int(state + POOL_WANTED, at + size + 8)
        return FULL
    store_int(state + STRINGS, new + 1)
    store_int(state + POOL, at + size)
    return new


@compiled
def fill_slots(slots: Any, hashes: Any, count: int) -> None:
    """Put the first ``count`` strings into a new, empty slot table."""
    mask = len(slots) - 1
    for k in range(count):
        slot = np.int64(hashes[k] >> np.uint64(20)) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = k


@compiled
def place_hash(kinds: int, pid: int, tid: int, device: int, stream: int) -> int:
    """Where to look for a place first, before the mask."""
    hashed = np.uint64(pid) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(tid + kinds)
    hashed = (hashed * np.uint64(0xC2B2AE3D27D4EB4F)) ^ (np.uint64(device) + np.uint64(stream) * np.uint64(31))
    hashed *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64(hashed >> np.uint64(32))


@compiled
def fill_place_slots(slots: Any, keys: Any, count: int) -> None:
    """Put the first ``count`` places into a new, empty slot table."""
    mask = len(slots) - 1
    for k in range(count):
        slot = place_hash(keys[k, 0], keys[k, 1], keys[k, 2], keys[k, 3], keys[k, 4]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = k


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
