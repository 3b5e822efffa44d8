"""Compiled code of the reader: stores the results of the packet scan in tables."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, store_byte, store_int, store_int32
from augment.kernels.packet_layout import CORRELATION_ARG, DURATION_ARG, GROW, MORE, SIZE_ARG, PacketScan

ODD, FULL = -1, -2  #: results in place of a position: Python must look; a table must grow first


@compiled
def take_end(ts: int, track: int, scan: PacketScan) -> int:
    """Store the end of a slice. Returns :data:`MORE`, or why it was not stored."""
    ends, row = scan.ends, scan.ends.count
    if row >= ends.room:
        return GROW
    store_int(ends.ts + 8 * row, ts)
    store_int32(ends.track + 4 * row, track)
    store_int(ends.before + 8 * row, scan.events.count)
    ends.count = row + 1
    return MORE


@compiled
def put_flow(at: int, stop: int, is_last: int, scan: PacketScan) -> int:
    """Store the flow at ``at``, which counts when its event is taken. Returns the position after it, or why it was not
    stored.
    """
    flows, row = scan.flows, scan.event.flows
    if at + 8 > stop:
        return ODD
    if row >= flows.room:
        return FULL
    store_int(flows.row + 8 * row, scan.events.count)
    store_int(flows.value + 8 * row, load_int(at))
    store_int(flows.last + 8 * row, is_last)
    scan.event.flows = row + 1
    return at + 8


@compiled
def put_row(ts: int, track: int, place: int, offset: int, length: int, scan: PacketScan) -> int:
    """Store the current event, which is not an end. Returns :data:`MORE`, or why it was not stored."""
    event, events, sizes, args = scan.event, scan.events, scan.sizes, scan.event.args
    row = events.count
    if row >= events.room or sizes.count >= sizes.room:
        return GROW
    store_int(events.ts + 8 * row, ts)
    store_int(events.dur + 8 * row, min(args[DURATION_ARG], 0))
    store_byte(events.kind + row, 66 if event.kind == 1 else 105 if event.kind == 3 else 67)  # B, i, C
    store_int32(events.category + 4 * row, event.category)
    store_int32(events.name + 4 * row, event.name)
    store_int32(events.track + 4 * row, track)
    store_int32(events.place + 4 * row, place)
    store_int(events.correlation + 8 * row, args[CORRELATION_ARG])
    store_int(events.offset + 8 * row, offset)
    store_int32(events.length + 4 * row, length)
    if event.has_size:
        store_int(sizes.row + 8 * sizes.count, row)
        store_int(sizes.value + 8 * sizes.count, args[SIZE_ARG])
        sizes.count += 1
    scan.flows.count = event.flows
    events.count = row + 1
    return MORE
