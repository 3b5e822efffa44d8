"""Compiled code of the reader: stores the results of the packet scan in tables."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, store_byte, store_int, store_int32
from augment.kernels.packet_layout import (
    CATEGORY,
    CORRELATION,
    CORRELATION_ARG,
    DUR,
    DURATION_ARG,
    END_BEFORE,
    END_ROOM,
    END_TRACK,
    END_TS,
    ENDS,
    EVENT_ROOM,
    EVENTS,
    FLOW_LAST,
    FLOW_ROOM,
    FLOW_ROW,
    FLOW_VALUE,
    FLOWS,
    GROW,
    KIND,
    LENGTH,
    MORE,
    NAME,
    OFFSET,
    OWN_ARGS,
    OWN_CATEGORY,
    OWN_FLOWS,
    OWN_HAS_SIZE,
    OWN_NAME,
    PLACE,
    SIZE_ARG,
    SIZE_ROOM,
    SIZE_ROW,
    SIZE_VALUE,
    SIZES,
    TRACK,
    TS,
)

ODD, FULL = -1, -2  #: results in place of a position: Python must look; a table must grow first


@compiled
def take_end(ts: int, track: int, tables: int, state: int) -> int:
    """Store the end of a slice. Returns :data:`MORE`, or why it was not stored."""
    ends = load_int(state + ENDS)
    if ends >= load_int(tables + END_ROOM):
        return GROW
    store_int(load_int(tables + END_TS) + 8 * ends, ts)
    store_int32(load_int(tables + END_TRACK) + 4 * ends, track)
    store_int(load_int(tables + END_BEFORE) + 8 * ends, load_int(state + EVENTS))
    store_int(state + ENDS, ends + 1)
    return MORE


@compiled
def put_flow(at: int, stop: int, is_last: int, tables: int, state: int) -> int:
    """Store the flow at ``at``, which counts when its event is taken. Returns the position after it, or why it was not
    stored.
    """
    flows = load_int(state + OWN_FLOWS)
    if at + 8 > stop:
        return ODD
    if flows >= load_int(tables + FLOW_ROOM):
        return FULL
    store_int(load_int(tables + FLOW_ROW) + 8 * flows, load_int(state + EVENTS))
    store_int(load_int(tables + FLOW_VALUE) + 8 * flows, load_int(at))
    store_int(load_int(tables + FLOW_LAST) + 8 * flows, is_last)
    store_int(state + OWN_FLOWS, flows + 1)
    return at + 8


@compiled
def put_row(ts: int, kind: int, track: int, place: int, offset: int, length: int, tables: int, state: int) -> int:
    """Store the current event, which is not an end. Returns :data:`MORE`, or why it was not stored."""
    row, sizes, args = load_int(state + EVENTS), load_int(state + SIZES), state + OWN_ARGS
    if row >= load_int(tables + EVENT_ROOM) or sizes >= load_int(tables + SIZE_ROOM):
        return GROW
    store_int(load_int(tables + TS) + 8 * row, ts)
    store_int(load_int(tables + DUR) + 8 * row, min(load_int(args + 8 * DURATION_ARG), 0))
    store_byte(load_int(tables + KIND) + row, 66 if kind == 1 else 105 if kind == 3 else 67)  # B, i, C
    store_int32(load_int(tables + CATEGORY) + 4 * row, load_int(state + OWN_CATEGORY))
    store_int32(load_int(tables + NAME) + 4 * row, load_int(state + OWN_NAME))
    store_int32(load_int(tables + TRACK) + 4 * row, track)
    store_int32(load_int(tables + PLACE) + 4 * row, place)
    store_int(load_int(tables + CORRELATION) + 8 * row, load_int(args + 8 * CORRELATION_ARG))
    store_int(load_int(tables + OFFSET) + 8 * row, offset)
    store_int32(load_int(tables + LENGTH) + 4 * row, length)
    if load_int(state + OWN_HAS_SIZE):
        store_int(load_int(tables + SIZE_ROW) + 8 * sizes, row)
        store_int(load_int(tables + SIZE_VALUE) + 8 * sizes, load_int(args + 8 * SIZE_ARG))
        store_int(state + SIZES, sizes + 1)
    store_int(state + FLOWS, load_int(state + OWN_FLOWS))
    store_int(state + EVENTS, row + 1)
    return MORE
