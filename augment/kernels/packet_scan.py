"""The compiled packet scan: does the work of ``readers/perfetto/scan.py`` for nearly all packets of a file.

It takes packets that hold only a track event whose track, place and strings are known. Any other packet is left,
unchanged, to Python.
"""

from __future__ import annotations

import numpy as np

from augment.kernels import packet_layout as layout
from augment.kernels.dictionary import same_bytes
from augment.kernels.memory import (
    as_word,
    compiled,
    compiled_apart,
    load_byte,
    load_int,
    load_int32,
    record_at,
    size_of,
    store_byte,
    store_int,
    store_int32,
)
from augment.kernels.packet_layout import CurrentEvent, KeyText, Numbers, PacketScan, Sequence, Slot

sequence_at = record_at(Sequence)
SLOT_SIZE, slot_at = size_of(Slot), record_at(Slot)
KEY_TEXT_SIZE, key_text_at = size_of(KeyText), record_at(KeyText)
ANNOTATION = 0x22  #: the tag of an event's arg
MANY = np.uint64(0x9E3779B97F4A7C15)
OTHER_MANY = np.uint64(0xC2B2AE3D27D4EB4F)
SHIFT = np.uint64(40)
LOW_SEVEN = np.uint64(127)


@compiled
def long_varint(at: int, stop: int) -> tuple[int, int]:
    """The varint at ``at`` as an int64 and the position after it; :data:`ODD` if it does not end before ``stop``."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < stop and shift < np.uint64(70):
        byte = np.uint64(load_byte(at))
        at += 1
        if shift < np.uint64(64):
            value |= (byte & LOW_SEVEN) << shift
        if byte <= LOW_SEVEN:
            return np.int64(value), at
        shift += np.uint64(7)
    return 0, ODD


@compiled
def varint(at: int, stop: int) -> tuple[int, int]:
    """As :func:`long_varint`, but faster for a single byte."""
    if at < stop:
        byte = load_byte(at)
        if byte < 128:
            return byte, at + 1
    return long_varint(at, stop)


@compiled
def skip(tag: int, at: int, stop: int) -> int:
    """The position after the value of a field; :data:`ODD` if it does not end before ``stop``."""
    kind = tag & 7
    if kind == 0:
        _, at = varint(at, stop)
        return at
    if kind == 2:
        size, at = varint(at, stop)
        if at < 0 or size < 0 or size > stop - at:
            return ODD
        return at + size
    if kind == 1:
        at += 8
    elif kind == 5:
        at += 4
    else:
        return ODD
    return at if at <= stop and tag >= 8 else ODD


@compiled
def slot_of(first: int, second: int, third: int) -> int:
    """The hash of a key, before the mask is applied."""
    hashed = (as_word(first) * MANY) ^ (as_word(second) * OTHER_MANY)
    hashed = (hashed ^ as_word(third)) * MANY
    return np.int64(hashed >> SHIFT)


@compiled
def number_of(slots: int, mask: int, first: int, second: int, third: int) -> int:
    """The number of a key; -1 if it has no number."""
    place = slot_of(first, second, third) & mask
    while True:
        slot = slot_at(slots + SLOT_SIZE * place)
        if slot.number < 0 or (slot.first == first and slot.second == second and slot.third == third):
            return slot.number
        place = (place + 1) & mask


@compiled
def code_of_text(start: int, size: int, scan: PacketScan) -> int:
    """The code of the arg with this text as its key; 0 if it is not a column."""
    for number in range(scan.key_count):
        key = key_text_at(scan.key_texts + KEY_TEXT_SIZE * number)
        if key.size == size and same_bytes(key.text, start, size):
            return key.code
    return 0


@compiled
def annotation(at: int, stop: int, sequence: Sequence, scan: PacketScan) -> tuple[int, int]:
    """The code of an arg (0 if it is not a column, :data:`ODD` if Python must look) and its value."""
    code, value, plain = 0, np.int64(0), False
    while at < stop:
        tag, at = varint(at, stop)
        if at < 0:
            return ODD, 0
        if tag == 0x08:  # key by number
            iid, at = varint(at, stop)
            if at < 0 or iid < 0 or iid >= sequence.keys.count:
                return ODD, 0
            code = load_int32(sequence.keys.table + 4 * iid)
            if code == 0:
                return 0, 0
        elif tag == 0x52:  # key as text
            size, start = varint(at, stop)
            at = skip(tag, at, stop)
            if at < 0:
                return ODD, 0
            code = code_of_text(start, size, scan)
            if code == 0:
                return 0, 0
        elif tag == 0x18 or tag == 0x20:  # an integer
            value, at = varint(at, stop)
            if at < 0 or (tag == 0x18 and value < 0):
                return ODD, 0
            plain = True
        else:
            if code:
                return ODD, 0
            at = skip(tag, at, stop)
            if at < 0:
                return ODD, 0
    if code and (not plain or code == layout.AGENT_ARG):
        return ODD, 0
    return code, value


@compiled_apart
def may_nest_too_deeply(at: int, stop: int, event: CurrentEvent) -> bool:
    """Whether an arg may have values that lie too deep."""
    ends = event.nested
    depth = 0
    while at < stop:
        tag, at = varint(at, stop)
        after = skip(tag, at, stop) if at >= 0 else ODD
        if after < 0 or tag == 0x42:  # damaged, or the older form: Python decides
            return True
        if tag == 0x5A or tag == 0x62:  # an entry of a dictionary or an element of an array: continue inside it
            if depth == layout.DEEPEST:
                return True
            ends[depth] = after
            depth += 1
            _, at = varint(at, stop)
        else:
            at = after
        while depth > 0 and at >= ends[depth - 1]:
            depth -= 1
    return False


@compiled
def trace_time(given: int, sequence: Sequence) -> int:
    """A packet's time on the trace's clock. An incremental clock advances when the packet is taken."""
    if sequence.clock_kind == layout.TRACE_CLOCK:
        return given
    if sequence.clock_kind == layout.MOVING_CLOCK:
        return sequence.clock_trace + given * sequence.clock_unit
    return sequence.clock_trace + (given - sequence.clock_shown) * sequence.clock_unit


@compiled
def begin_event(sequence: Sequence, scan: PacketScan) -> None:
    """Reset the state of the event. The next event starts with the defaults of its sequence."""
    event = scan.event
    event.kind = 0
    event.track = sequence.default_track
    event.name = 0
    event.category = 0
    event.flows = scan.flows.count
    event.has_size = 0
    event.args[layout.CORRELATION_ARG] = -1
    event.args[layout.DEVICE_ARG] = layout.ABSENT
    event.args[layout.STREAM_ARG] = layout.ABSENT
    event.args[layout.DURATION_ARG] = 0


@compiled
def read_arg(at: int, stop: int, sequence: Sequence, scan: PacketScan) -> int:
    """Read an arg of the current event. Returns the position after it."""
    size, first = varint(at, stop)
    after = skip(ANNOTATION, at, stop)
    if after < 0:
        return ODD
    code, value = annotation(first, after, sequence, scan)
    if code < 0 or (size >= layout.LEAST_DEEP_BYTES and may_nest_too_deeply(first, after, scan.event)):
        return ODD
    scan.event.args[code] = value
    if code == layout.SIZE_ARG:
        scan.event.has_size = 1
    return after


@compiled
def read_string(at: int, stop: int, known: int, numbers: Numbers) -> tuple[int, int]:
    """The number of the string whose iid is at ``at``, or ``known``, if that is not 0; and the position after it."""
    iid, at = varint(at, stop)
    if at < 0 or iid < 0 or iid >= numbers.count:
        return known, ODD
    return (known if known != 0 else load_int32(numbers.table + 4 * iid)), at


@compiled
def read_field(tag: int, at: int, stop: int, sequence: Sequence, scan: PacketScan) -> int:
    """Read a field of the current event. Returns the position after it, :data:`ODD`, or :data:`FULL` if a table must
    grow first.
    """
    event = scan.event
    if tag == ANNOTATION:
        return read_arg(at, stop, sequence, scan)
    if tag == 0x48:
        event.kind, at = varint(at, stop)
        return at
    if tag == 0x58:
        event.track, at = varint(at, stop)
        return at
    if tag == 0x50:
        event.name, at = read_string(at, stop, event.name, sequence.names)
        return at
    if tag == 0x18:
        event.category, at = read_string(at, stop, event.category, sequence.categories)
        return at
    if tag == 377 or tag == 385:  # a flow, and one that ends here
        return put_flow(at, stop, 1 if tag == 385 else 0, scan)
    if tag == 178 or tag == 186 or tag == 288 or tag == 336 or tag == 24002:
        return ODD  # category and name as texts, flows of older files, work that was launched
    return skip(tag, at, stop)


@compiled
def take_event(at: int, stop: int, ts: int, sequence: Sequence, offset: int, length: int, scan: PacketScan) -> int:
    """Take a track event. Returns :data:`MORE`, or why it was not taken. Nothing is stored unless the whole event is
    taken.
    """
    begin_event(sequence, scan)
    while at < stop:
        tag, at = varint(at, stop)
        if at >= 0:
            at = read_field(tag, at, stop, sequence, scan)
        if at < 0:
            return layout.GROW if at == FULL else layout.BY_HAND
    event = scan.event
    track = number_of(scan.track_slots, scan.track_mask, event.track, 0, 0)
    if track < 0 or event.kind < 1 or event.kind > 4:
        return layout.BY_HAND
    if event.kind == 2:
        return take_end(ts, track, scan)
    device, stream = event.args[layout.DEVICE_ARG], event.args[layout.STREAM_ARG]
    place = number_of(scan.place_slots, scan.place_mask, track, device, stream)
    return put_row(ts, track, place, offset, length, scan) if place >= 0 else layout.BY_HAND


@compiled
def sequence_of(number: int, flags: int, clock: int, scan: PacketScan) -> int:
    """The address of a packet's sequence; 0 if Python must take the packet."""
    if number < 0 or number >= scan.sequence_count:
        return 0
    address = load_int(scan.sequences + 8 * number)
    if address == 0 or flags & 1:
        return 0
    sequence = sequence_at(address)
    if (flags & 2 and sequence.valid == 0) or sequence.clock_kind == layout.NO_CLOCK:
        return 0
    return 0 if clock and clock != sequence.clock_number else address


@compiled
def take_packet(at: int, stop: int, offset: int, scan: PacketScan) -> int:
    """Take a packet. Returns :data:`MORE`, or why it was not taken."""
    length = stop - at
    ts, number, flags, clock = np.int64(layout.ABSENT), np.int64(0), np.int64(0), np.int64(0)
    event, event_stop = 0, 0
    while at < stop:
        tag, at = varint(at, stop)
        if at < 0:
            return layout.BY_HAND
        if tag == 0x40:
            ts, at = varint(at, stop)
        elif tag == 0x50:
            number, at = varint(at, stop)
        elif tag == 0x68:
            flags, at = varint(at, stop)
        elif tag == 464:
            clock, at = varint(at, stop)
        elif tag == 0x5A:
            _, event = varint(at, stop)
            event_stop = at = skip(tag, at, stop)
        elif tag == 328 or (tag & 7) != 0:  # state is cleared, or any other part
            return layout.BY_HAND
        else:
            _, at = varint(at, stop)
        if at < 0:
            return layout.BY_HAND
    address = sequence_of(number, flags, clock, scan)
    if event == 0 or ts < 0 or address == 0:
        return layout.BY_HAND
    sequence = sequence_at(address)
    known = trace_time(ts, sequence)
    if known < 0:
        return layout.BY_HAND
    why = take_event(event, event_stop, known, sequence, offset, length, scan)
    if why == layout.MORE and sequence.clock_kind == layout.MOVING_CLOCK:
        sequence.clock_trace = known
    return why


@compiled
def scan_packets(start: int, stop: int, base: int, scan: PacketScan) -> int:
    """Take packets from ``start + scan.position`` on; ``base`` is the offset of ``start``. Returns why it stopped.

    Up to eight bytes beyond ``stop`` may be loaded.
    """
    at = start + scan.position
    while at < stop:
        if load_byte(at) != 0x0A:
            return layout.BY_HAND
        size, first = varint(at + 1, stop)
        if first < 0 or size < 0 or size > stop - first:
            return layout.BY_HAND  # the packet extends beyond the end, or is not a packet: Python decides
        why = take_packet(first, first + size, base + first - start, scan)
        if why != layout.MORE:
            return why
        at = first + size
        scan.position = at - start
        scan.packets += 1
    return layout.MORE


ODD, FULL = -1, -2  #: results in place of a position: Python must look; a table must grow first


@compiled
def take_end(ts: int, track: int, scan: PacketScan) -> int:
    """Store the end of a slice. Returns :data:`MORE`, or why it was not stored."""
    ends, row = scan.ends, scan.ends.count
    if row >= ends.room:
        return layout.GROW
    store_int(ends.ts + 8 * row, ts)
    store_int32(ends.track + 4 * row, track)
    store_int(ends.before + 8 * row, scan.events.count)
    ends.count = row + 1
    return layout.MORE


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
        return layout.GROW
    store_int(events.ts + 8 * row, ts)
    store_int(events.dur + 8 * row, min(args[layout.DURATION_ARG], 0))
    store_byte(events.kind + row, 66 if event.kind == 1 else 105 if event.kind == 3 else 67)  # B, i, C
    store_int32(events.category + 4 * row, event.category)
    store_int32(events.name + 4 * row, event.name)
    store_int32(events.track + 4 * row, track)
    store_int32(events.place + 4 * row, place)
    store_int(events.correlation + 8 * row, args[layout.CORRELATION_ARG])
    store_int(events.offset + 8 * row, offset)
    store_int32(events.length + 4 * row, length)
    if event.has_size:
        store_int(sizes.row + 8 * sizes.count, row)
        store_int(sizes.value + 8 * sizes.count, args[layout.SIZE_ARG])
        sizes.count += 1
    scan.flows.count = event.flows
    events.count = row + 1
    return layout.MORE
