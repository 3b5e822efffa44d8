"""Compiled code of ``readers/perfetto/arg_scan.py``: a few args of many packets.

It takes annotations that have a numbered key and one value, an integer or a numbered string. Packets with other forms
among the wanted annotations are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.arg_columns_layout import PLAIN
from augment.kernels.memory import compiled, load_byte, load_int, load_int32, store_byte, store_int
from augment.kernels.packet_args_layout import (
    BEGINS,
    CATEGORIES,
    DONE,
    ENDS,
    IS_TEXT,
    KEY_COUNT,
    KEYS,
    MISS,
    MISS_COLUMN,
    MISS_IID,
    ODD_ROW,
    OTHER_STRINGS,
    ROW,
    SEQUENCE,
    UNKNOWN,
    VALUE_COUNT,
    VALUES,
)
from augment.kernels.packet_scan import skip, varint

WORD = 8


@compiled
def put(columns: int, index: int, row: int, flag: int, value: int) -> None:
    """Add the value of ``row`` to column ``index``."""
    column = columns + 4 * WORD * index
    length = load_int(column + 3 * WORD)
    count = load_int(length)
    store_int(load_int(column) + WORD * count, row)
    store_int(load_int(column + WORD) + WORD * count, value)
    store_byte(load_int(column + 2 * WORD) + count, flag)
    store_int(length, count + 1)


@compiled
def take_annotation(i: int, stop: int, category: int, row: int, seen: int, columns: int, state: int) -> tuple[int, int]:
    """Store a wanted annotation. Returns :data:`DONE` or the reason why not, and the columns that the row has so far,
    one bit each.
    """
    tag, i = varint(i, stop)
    if tag != 0x08 or i < 0:  # a numbered key comes first
        return ODD_ROW, seen
    key, i = varint(i, stop)
    if i < 0 or key < 0 or key >= load_int(state + KEY_COUNT):
        return ODD_ROW, seen
    index = load_int(load_int(state + KEYS) + WORD * key)
    if index < 0 or load_int(load_int(state + CATEGORIES) + WORD * index) & category == 0:
        return DONE, seen
    bit = np.int64(1) << index
    tag, i = varint(i, stop)
    if i < 0 or seen & bit != 0:
        return ODD_ROW, seen
    value, i = varint(i, stop)
    if i != stop:
        return ODD_ROW, seen
    if tag == 136:  # a numbered string
        if value < 0 or value >= load_int(state + VALUE_COUNT):
            return ODD_ROW, seen
        known = load_int(load_int(load_int(state + VALUES) + WORD * index) + WORD * value)
        if known == UNKNOWN:
            store_int(state + MISS_COLUMN, index)
            store_int(state + MISS_IID, value)
            return MISS, seen
        put(columns, index, row, known & 255, known >> 8)
    elif (tag == 0x18 or tag == 0x20 or tag == 0x38) and load_int(load_int(state + IS_TEXT) + WORD * index) == 0:
        put(columns, index, row, PLAIN, value)  # an integer or a pointer: the int64 of the same bits
    else:
        return ODD_ROW, seen
    return DONE, seen | bit


@compiled
def take_event(i: int, stop: int, category: int, row: int, columns: int, state: int) -> int:
    """Store the wanted args of the ``TrackEvent`` between ``i`` and ``stop``. Returns :data:`DONE`, or the reason why
    not.
    """
    seen = np.int64(0)
    while i < stop:
        tag, i = varint(i, stop)
        if i < 0:
            return ODD_ROW
        if tag == 0x22:
            size, i = varint(i, stop)
            if i < 0 or size < 0 or size > stop - i:
                return ODD_ROW
            why, seen = take_annotation(i, i + size, category, row, seen, columns, state)
            if why != DONE:
                return why
            i += size
        else:
            i = skip(tag, i, stop)
            if i < 0:
                return ODD_ROW
    return DONE


@compiled
def event_in(i: int, stop: int) -> tuple[int, int, int]:
    """The bounds of the only ``TrackEvent`` of a packet (0 or -1 if the packet is unusual), and the packet's
    sequence.
    """
    start, end, sequence = np.int64(0), np.int64(0), np.int64(0)
    while i < stop:
        tag, i = varint(i, stop)
        if i < 0:
            return -1, 0, 0
        if tag == 0x50:
            sequence, i = varint(i, stop)
        elif tag == 0x5A:
            size, i = varint(i, stop)
            if i < 0 or size < 0 or size > stop - i or start != 0:
                return -1, 0, 0
            start, end = i, i + size
            i = end
        elif tag == 426:  # a render stage
            return -1, 0, 0
        else:
            i = skip(tag, i, stop)
        if i < 0:
            return -1, 0, 0
    return start, end, sequence


@compiled
def scan_args(
    origin: int, base: int, count: int, offsets: int, lengths: int, categories: int, rows: int, columns: int, state: int
) -> int:
    """Take the args of the ``count`` rows at ``offsets``, from ``state[ROW]`` on. Returns :data:`DONE`, or why it
    stopped.

    ``origin`` is the address of byte ``base`` of the text; ``categories`` are bytes, ``rows`` int64. ``columns`` holds
    four addresses for each column: of its rows and values (int64), of its flags (bytes), and of its length. Each column
    must have room for one entry per row.
    """
    place = load_int(state + ROW)
    while place < count:
        offset = load_int(offsets + WORD * place)
        start = origin + offset - base
        stop = start + load_int32(lengths + 4 * place)
        store_int(state + ROW, place)
        event, end, sequence = event_in(start, stop)
        if event <= 0:
            return ODD_ROW
        known = load_int(state + BEGINS) <= offset and offset < load_int(state + ENDS)
        if not known or sequence != load_int(state + SEQUENCE):
            store_int(state + SEQUENCE, sequence)
            return OTHER_STRINGS
        category = np.int64(1) << load_byte(categories + place)
        why = take_event(event, end, category, load_int(rows + WORD * place), columns, state)
        if why != DONE:
            return why
        place += 1
    return DONE
