"""The compiled scanner's tables: places, and sparse columns of pairs."""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import FULL
from augment.kernels.json_layout import (
    PLACE_KEYS,
    PLACE_ROOM,
    PLACE_SLOTS,
    PLACE_WIDTH,
    PLACES,
)
from augment.kernels.memory import (
    as_word,
    compiled,
    load_int,
    load_int32,
    store_int,
    store_int32,
)


@compiled
def place_hash(kinds: int, pid: int, tid: int, device: int, stream: int) -> int:
    """The hash of a place, before the mask is applied."""
    hashed = as_word(pid) * np.uint64(0x9E3779B97F4A7C15) ^ as_word(tid + kinds)
    hashed = (hashed * np.uint64(0xC2B2AE3D27D4EB4F)) ^ (as_word(device) + as_word(stream) * np.uint64(31))
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
    """The id of a (pid, tid, device, stream). A new one is added; :data:`FULL` if there is no room."""
    room, slots, keys = load_int(tables + PLACE_ROOM), load_int(tables + PLACE_SLOTS), load_int(tables + PLACE_KEYS)
    mask = 2 * room - 1
    slot = place_hash(kinds, pid, tid, device, stream) & mask
    index = load_int32(slots + 4 * slot)
    while index >= 0:
        key = keys + PLACE_WIDTH * index
        if load_int(key + 8) == pid and load_int(key + 16) == tid and load_int(key) == kinds:
            if load_int(key + 24) == device and load_int(key + 32) == stream:
                return index
        slot = (slot + 1) & mask
        index = load_int32(slots + 4 * slot)
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
    """Append a row and its value to the two columns whose addresses are at ``columns``."""
    count = load_int(counter)
    store_int(load_int(columns) + 8 * count, row)
    store_int(load_int(columns + 8) + 8 * count, value)
    store_int(counter, count + 1)
