"""The compiled scanner's tables: places, and sparse columns of pairs."""

from __future__ import annotations

import numpy as np

from augment.kernels.interned import FULL
from augment.kernels.json_layout import Place, Scan
from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    load_int32,
    record_at,
    size_of,
    store_int,
    store_int32,
)

PLACE_WIDTH, place_at = size_of(Place), record_at(Place)


@compiled
def place_hash(kinds: int, pid: int, tid: int, device: int, stream: int) -> int:
    """The hash of a place, before the mask is applied."""
    hashed = as_word(pid) * np.uint64(0x9E3779B97F4A7C15) ^ as_word(tid + kinds)
    hashed = (hashed * np.uint64(0xC2B2AE3D27D4EB4F)) ^ (as_word(device) + as_word(stream) * np.uint64(31))
    hashed *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64(hashed >> np.uint64(32))


@compiled
def fill_place_slots(slots: Column, keys: Column, count: int) -> int:
    """Put the first ``count`` places, of five numbers each, into a new, empty slot table."""
    mask = len(slots) - 1
    for k in range(count):
        slot = place_hash(keys[5 * k], keys[5 * k + 1], keys[5 * k + 2], keys[5 * k + 3], keys[5 * k + 4]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = k
    return 0


@compiled
def find_place(kinds: int, pid: int, tid: int, device: int, stream: int, scan: Scan) -> int:
    """The id of a (pid, tid, device, stream). A new one is added; :data:`FULL` if there is no room."""
    mask = 2 * scan.place_room - 1
    slot = place_hash(kinds, pid, tid, device, stream) & mask
    index = load_int32(scan.place_slots + 4 * slot)
    while index >= 0:
        key = place_at(scan.place_keys + PLACE_WIDTH * index)
        if key.pid == pid and key.tid == tid and key.kinds == kinds and key.device == device and key.stream == stream:
            return index
        slot = (slot + 1) & mask
        index = load_int32(scan.place_slots + 4 * slot)
    new = scan.places
    if new >= scan.place_room:
        return FULL
    key = place_at(scan.place_keys + PLACE_WIDTH * new)
    key.kinds = kinds
    key.pid = pid
    key.tid = tid
    key.device = device
    key.stream = stream
    store_int32(scan.place_slots + 4 * slot, new)
    scan.places = new + 1
    return new


@compiled
def put_pair(rows: int, values: int, count: int, row: int, value: int) -> int:
    """Add a row and its value to two columns with ``count`` entries. Returns the new count."""
    store_int(rows + 8 * count, row)
    store_int(values + 8 * count, value)
    return count + 1
