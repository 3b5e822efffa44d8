"""Compiled code of the reader: where the scan of packets puts what it takes. Importing this module imports numba."""

from __future__ import annotations

from augment.compiled.memory import compiled, load_int, store_byte, store_int, store_int32
from augment.readers.perfetto.layout_compiled import (
    BY_HAND,
    CATEGORY,
    CORRELATION,
    DUR,
    END_BEFORE,
    END_ROOM,
    END_TRACK,
    END_TS,
    ENDS,
    EVENTS,
    FLOW_LAST,
    FLOW_ROOM,
    FLOW_ROW,
    FLOW_VALUE,
    GROW,
    KIND,
    LENGTH,
    MORE,
    NAME,
    OFFSET,
    PLACE,
    TRACK,
    TS,
)


@compiled
def take_end(ts: int, track: int, tables: int, state: int) -> int:
    """Take the end of a slice: :data:`MORE`, or why not."""
    ends = load_int(state + ENDS)
    if ends >= load_int(tables + END_ROOM):
        return GROW
    store_int(load_int(tables + END_TS) + 8 * ends, ts)
    store_int32(load_int(tables + END_TRACK) + 4 * ends, track)
    store_int(load_int(tables + END_BEFORE) + 8 * ends, load_int(state + EVENTS))
    store_int(state + ENDS, ends + 1)
    return MORE


@compiled
def put_flow(at: int, stop: int, is_last: int, flows: int, tables: int, state: int) -> int:
    """Enter the flow at ``at`` behind ``flows`` others; it counts when its event does. :data:`MORE`, or why not."""
    if at + 8 > stop:
        return BY_HAND
    if flows >= load_int(tables + FLOW_ROOM):
        return GROW
    store_int(load_int(tables + FLOW_ROW) + 8 * flows, load_int(state + EVENTS))
    store_int(load_int(tables + FLOW_VALUE) + 8 * flows, load_int(at))
    store_int(load_int(tables + FLOW_LAST) + 8 * flows, is_last)
    return MORE


@compiled
def put_row(
    row: int, ts: int, dur: int, kind: int, category: int, name: int, track: int, place: int, correlation: int,
    offset: int, length: int, tables: int,
) -> None:  # fmt: skip
    """Enter an event that is no end."""
    store_int(load_int(tables + TS) + 8 * row, ts)
    store_int(load_int(tables + DUR) + 8 * row, dur)
    store_byte(load_int(tables + KIND) + row, 66 if kind == 1 else 105 if kind == 3 else 67)  # B, i, C
    store_int32(load_int(tables + CATEGORY) + 4 * row, category)
    store_int32(load_int(tables + NAME) + 4 * row, name)
    store_int32(load_int(tables + TRACK) + 4 * row, track)
    store_int32(load_int(tables + PLACE) + 4 * row, place)
    store_int(load_int(tables + CORRELATION) + 8 * row, correlation)
    store_int(load_int(tables + OFFSET) + 8 * row, offset)
    store_int32(load_int(tables + LENGTH) + 4 * row, length)
