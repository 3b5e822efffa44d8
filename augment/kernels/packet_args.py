"""Compiled code of ``readers/perfetto/values.py``: a few args of many packets.

It takes annotations that have a numbered key and one value, an integer or a numbered string. Packets with other forms
among the wanted annotations are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.memory import Column, as_int, compiled, load_int, record, record_at, store_byte, store_int
from augment.kernels.packet_scan import skip, varint
from augment.kernels.wanted_args import PLAIN

DONE, MISS, ODD_ROW, OTHER_STRINGS = 0, 1, 2, 3  #: why ``scan_args`` stopped
UNWANTED = UNKNOWN = -1


@record
class ArgTable:
    """The values of an arg: see ``event_args.Column``. There is room for one in each row."""

    rows: int  #: addresses: int64
    values: int  #: int64
    flags: int  #: bytes
    count: int
    category_bits: int  #: the categories whose events have the arg
    is_text: int
    known: int  #: the address of what is stored of strings, by iid: value << 8 | flag, or UNKNOWN (int64)


@record
class ArgScanState:
    """The progress, and the strings of a sequence of packets."""

    row: int  #: the current row
    sequence: int  #: whose strings the tables have, from byte ``begins`` to ``ends``; of OTHER_STRINGS the wanted
    begins: int
    ends: int
    keys: int  #: the address of the column of each key by its iid, or UNWANTED (int64)
    key_count: int
    value_count: int  #: of ``ArgTable.known``
    miss_column: int  #: of MISS: the arg and the string that Python must store
    miss_iid: int


WORD = 8
table_at = record_at(ArgTable)


@compiled
def put(column: ArgTable, row: int, flag: int, value: int) -> None:
    """Add the value of ``row``."""
    store_int(column.rows + WORD * column.count, row)
    store_int(column.values + WORD * column.count, value)
    store_byte(column.flags + column.count, flag)
    column.count += 1


@compiled
def take_annotation(
    i: int, stop: int, category: int, row: int, seen: int, columns: Column, state: ArgScanState
) -> tuple[int, int]:
    """Store a wanted annotation. Returns :data:`DONE` or the reason why not, and the columns that the row has so far,
    one bit each.
    """
    tag, i = varint(i, stop)
    if tag != 0x08 or i < 0:  # a numbered key comes first
        return ODD_ROW, seen
    key, i = varint(i, stop)
    if i < 0 or key < 0 or key >= state.key_count:
        return ODD_ROW, seen
    index = load_int(state.keys + WORD * key)
    if index < 0:
        return DONE, seen
    column = table_at(columns[index])
    if column.category_bits & category == 0:
        return DONE, seen
    bit = np.int64(1) << index
    tag, i = varint(i, stop)
    if i < 0 or seen & bit != 0:
        return ODD_ROW, seen
    value, i = varint(i, stop)
    if i != stop:
        return ODD_ROW, seen
    if tag == 136:  # a numbered string
        if value < 0 or value >= state.value_count:
            return ODD_ROW, seen
        known = load_int(column.known + WORD * value)
        if known == UNKNOWN:
            state.miss_column = index
            state.miss_iid = value
            return MISS, seen
        put(column, row, known & 255, known >> 8)
    elif (tag == 0x18 or tag == 0x20 or tag == 0x38) and column.is_text == 0:
        put(column, row, PLAIN, value)  # an integer or a pointer: the int64 of the same bits
    else:
        return ODD_ROW, seen
    return DONE, seen | bit


@compiled
def take_event(i: int, stop: int, category: int, row: int, columns: Column, state: ArgScanState) -> int:
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
    origin: int, base: int, offsets: Column, lengths: Column, categories: Column, rows: Column, columns: Column,
    state: ArgScanState,
) -> int:  # fmt: skip
    """Take the args of the rows at ``offsets``, from ``state.row`` on. Returns :data:`DONE`, or why it stopped.

    ``origin`` is the address of byte ``base`` of the text. ``columns`` holds the address of an :class:`ArgTable` for
    each arg.
    """
    while state.row < len(offsets):
        offset, row = offsets[state.row], state.row
        start = origin + offset - base
        event, end, sequence = event_in(start, start + lengths[row])
        if event <= 0:
            return ODD_ROW
        if sequence != state.sequence or not state.begins <= offset < state.ends:
            state.sequence = sequence
            return OTHER_STRINGS
        why = take_event(event, end, np.int64(1) << as_int(categories[row]), rows[row], columns, state)
        if why != DONE:
            return why
        state.row = row + 1
    return DONE
