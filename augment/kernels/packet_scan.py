"""The compiled packet scan: does the work of ``readers/perfetto/scan.py`` for nearly all packets of a file.

It takes packets that hold only a track event whose track, place and strings are known. Any other packet is left,
unchanged, to Python.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.memory import (
    as_word,
    compiled,
    compiled_apart,
    load_byte,
    load_int,
    load_int32,
    store_int,
)
from augment.kernels.packet_layout import (
    ABSENT,
    AGENT_ARG,
    BLOCK_COUNT,
    BLOCKS,
    BY_HAND,
    CATEGORIES,
    CLOCK_KIND,
    CLOCK_NUMBER,
    CLOCK_SHOWN,
    CLOCK_TRACE,
    CLOCK_UNIT,
    CORRELATION_ARG,
    DEEPEST,
    DEFAULT_TRACK,
    DEVICE_ARG,
    DURATION_ARG,
    FLOWS,
    GROW,
    KEY_COUNT,
    KEY_TEXT,
    KEY_TEXTS,
    KEYS,
    KEYS_COUNT,
    LEAST_DEEP_BYTES,
    MORE,
    MOVING_CLOCK,
    NAMES,
    NESTED,
    NO_CLOCK,
    OWN_ARGS,
    OWN_CATEGORY,
    OWN_FLOWS,
    OWN_HAS_SIZE,
    OWN_KIND,
    OWN_NAME,
    OWN_TRACK,
    PACKETS,
    PLACE_MASK,
    PLACE_SLOTS,
    POSITION,
    SIZE_ARG,
    SLOT,
    STREAM_ARG,
    TRACE_CLOCK,
    TRACK_MASK,
    TRACK_SLOTS,
    VALID,
)
from augment.kernels.packet_rows import FULL, ODD, put_flow, put_row, take_end

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
    slot = slot_of(first, second, third) & mask
    while True:
        entry = slots + SLOT * slot
        number = load_int(entry + 24)
        if number < 0:
            return -1
        if load_int(entry) == first and load_int(entry + 8) == second and load_int(entry + 16) == third:
            return number
        slot = (slot + 1) & mask


@compiled
def code_of_text(start: int, size: int, tables: int) -> int:
    """The code of the arg with this text as its key; 0 if it is not a column."""
    entry = load_int(tables + KEY_TEXTS)
    for _ in range(load_int(tables + KEY_COUNT)):
        if load_int(entry + 8) == size:
            known = load_int(entry)
            k = 0
            while k < size and load_byte(known + k) == load_byte(start + k):
                k += 1
            if k == size:
                return load_int(entry + 16)
        entry += KEY_TEXT
    return 0


@compiled
def annotation(at: int, stop: int, block: int, tables: int) -> tuple[int, int]:
    """The code of an arg (0 if it is not a column, :data:`ODD` if Python must look) and its value."""
    code, value, plain = 0, np.int64(0), False
    while at < stop:
        tag, at = varint(at, stop)
        if at < 0:
            return ODD, 0
        if tag == 0x08:  # key by number
            iid, at = varint(at, stop)
            if at < 0 or iid < 0 or iid >= load_int(block + KEYS_COUNT):
                return ODD, 0
            code = load_int32(load_int(block + KEYS) + 4 * iid)
            if code == 0:
                return 0, 0
        elif tag == 0x52:  # key as text
            size, start = varint(at, stop)
            at = skip(tag, at, stop)
            if at < 0:
                return ODD, 0
            code = code_of_text(start, size, tables)
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
    if code and (not plain or code == AGENT_ARG):
        return ODD, 0
    return code, value


@compiled_apart
def may_nest_too_deeply(at: int, stop: int, ends: int) -> bool:
    """Whether an arg may have values that lie too deep. ``ends`` has room for the ends of :data:`DEEPEST` values."""
    depth = 0
    while at < stop:
        tag, at = varint(at, stop)
        after = skip(tag, at, stop) if at >= 0 else ODD
        if after < 0 or tag == 0x42:  # damaged, or the older form: Python decides
            return True
        if tag == 0x5A or tag == 0x62:  # an entry of a dictionary or an element of an array: continue inside it
            if depth == DEEPEST:
                return True
            store_int(ends + 8 * depth, after)
            depth += 1
            _, at = varint(at, stop)
        else:
            at = after
        while depth > 0 and at >= load_int(ends + 8 * (depth - 1)):
            depth -= 1
    return False


@compiled
def trace_time(given: int, block: int) -> int:
    """A packet's time on the trace's clock. An incremental clock advances when the packet is taken."""
    kind = load_int(block + CLOCK_KIND)
    if kind == TRACE_CLOCK:
        return given
    unit = load_int(block + CLOCK_UNIT)
    if kind == MOVING_CLOCK:
        return load_int(block + CLOCK_TRACE) + given * unit
    return load_int(block + CLOCK_TRACE) + (given - load_int(block + CLOCK_SHOWN)) * unit


@compiled
def begin_event(block: int, state: int) -> None:
    """Reset the state of the event. The next event starts with the defaults of its sequence."""
    store_int(state + OWN_KIND, 0)
    store_int(state + OWN_TRACK, load_int(block + DEFAULT_TRACK))
    store_int(state + OWN_NAME, 0)
    store_int(state + OWN_CATEGORY, 0)
    store_int(state + OWN_FLOWS, load_int(state + FLOWS))
    store_int(state + OWN_HAS_SIZE, 0)
    store_int(state + OWN_ARGS + 8 * CORRELATION_ARG, -1)
    store_int(state + OWN_ARGS + 8 * DEVICE_ARG, ABSENT)
    store_int(state + OWN_ARGS + 8 * STREAM_ARG, ABSENT)
    store_int(state + OWN_ARGS + 8 * DURATION_ARG, 0)


@compiled
def read_arg(at: int, stop: int, block: int, tables: int, state: int) -> int:
    """Read an arg of the current event. Returns the position after it."""
    size, first = varint(at, stop)
    after = skip(ANNOTATION, at, stop)
    if after < 0:
        return ODD
    code, value = annotation(first, after, block, tables)
    if code < 0 or (size >= LEAST_DEEP_BYTES and may_nest_too_deeply(first, after, state + NESTED)):
        return ODD
    store_int(state + OWN_ARGS + 8 * code, value)
    if code == SIZE_ARG:
        store_int(state + OWN_HAS_SIZE, 1)
    return after


@compiled
def read_string(at: int, stop: int, numbers: int, target: int) -> int:
    """Read a string by its iid; the first is stored at ``target``. ``numbers`` is the address of the known strings and
    their count. Returns the position after the string.
    """
    iid, at = varint(at, stop)
    if at < 0 or iid < 0 or iid >= load_int(numbers + 8):
        return ODD
    known = load_int32(load_int(numbers) + 4 * iid)
    if load_int(target) == 0:
        store_int(target, known)
    return at


@compiled
def read_field(tag: int, at: int, stop: int, block: int, tables: int, state: int) -> int:
    """Read a field of the current event. Returns the position after it, :data:`ODD`, or :data:`FULL` if a table must
    grow first.
    """
    if tag == ANNOTATION:
        return read_arg(at, stop, block, tables, state)
    if tag == 0x48 or tag == 0x58:
        value, at = varint(at, stop)
        store_int(state + (OWN_KIND if tag == 0x48 else OWN_TRACK), value)
        return at
    if tag == 0x50:
        return read_string(at, stop, block + NAMES, state + OWN_NAME)
    if tag == 0x18:
        return read_string(at, stop, block + CATEGORIES, state + OWN_CATEGORY)
    if tag == 377 or tag == 385:  # a flow, and one that ends here
        return put_flow(at, stop, 1 if tag == 385 else 0, tables, state)
    if tag == 178 or tag == 186 or tag == 288 or tag == 336 or tag == 24002:
        return ODD  # category and name as texts, flows of older files, work that was launched
    return skip(tag, at, stop)


@compiled
def take_event(
    at: int, stop: int, ts: int, block: int, offset: int, length: int, tables: int, state: int
) -> int:  # fmt: skip
    """Take a track event. Returns :data:`MORE`, or why it was not taken. Nothing is stored unless the whole event is
    taken.
    """
    begin_event(block, state)
    while at < stop:
        tag, at = varint(at, stop)
        if at >= 0:
            at = read_field(tag, at, stop, block, tables, state)
        if at < 0:
            return GROW if at == FULL else BY_HAND
    kind, uuid = load_int(state + OWN_KIND), load_int(state + OWN_TRACK)
    track = number_of(load_int(tables + TRACK_SLOTS), load_int(tables + TRACK_MASK), uuid, 0, 0)
    if track < 0 or kind < 1 or kind > 4:
        return BY_HAND
    if kind == 2:
        return take_end(ts, track, tables, state)
    args = state + OWN_ARGS
    device, stream = load_int(args + 8 * DEVICE_ARG), load_int(args + 8 * STREAM_ARG)
    place = number_of(load_int(tables + PLACE_SLOTS), load_int(tables + PLACE_MASK), track, device, stream)
    if place < 0:
        return BY_HAND
    return put_row(ts, kind, track, place, offset, length, tables, state)


@compiled
def take_packet(at: int, stop: int, offset: int, tables: int, state: int) -> int:
    """Take a packet. Returns :data:`MORE`, or why it was not taken."""
    length = stop - at
    ts, sequence, flags, clock = np.int64(ABSENT), np.int64(0), np.int64(0), np.int64(0)
    event, event_stop = 0, 0
    while at < stop:
        tag, at = varint(at, stop)
        if at < 0:
            return BY_HAND
        if tag == 0x40:
            ts, at = varint(at, stop)
        elif tag == 0x50:
            sequence, at = varint(at, stop)
        elif tag == 0x68:
            flags, at = varint(at, stop)
        elif tag == 464:
            clock, at = varint(at, stop)
        elif tag == 0x5A:
            _, event = varint(at, stop)
            event_stop = at = skip(tag, at, stop)
        elif tag == 328 or (tag & 7) != 0:  # state is cleared, or any other part
            return BY_HAND
        else:
            _, at = varint(at, stop)
        if at < 0:
            return BY_HAND
    if event == 0 or ts < 0 or sequence < 0 or sequence >= load_int(tables + BLOCK_COUNT):
        return BY_HAND
    block = load_int(load_int(tables + BLOCKS) + 8 * sequence)
    if block == 0 or flags & 1 or (flags & 2 and load_int(block + VALID) == 0):
        return BY_HAND
    if load_int(block + CLOCK_KIND) == NO_CLOCK or (clock and clock != load_int(block + CLOCK_NUMBER)):
        return BY_HAND
    known = trace_time(ts, block)
    if known < 0:
        return BY_HAND
    why = take_event(event, event_stop, known, block, offset, length, tables, state)
    if why == MORE and load_int(block + CLOCK_KIND) == MOVING_CLOCK:
        store_int(block + CLOCK_TRACE, known)
    return why


@compiled
def scan_packets(start: int, stop: int, base: int, tables: int, state: int) -> int:
    """Take packets from ``start + state[POSITION]`` on; ``base`` is the offset of ``start``. Returns why it stopped.

    Up to eight bytes beyond ``stop`` may be loaded.
    """
    at = start + load_int(state + POSITION)
    while at < stop:
        if load_byte(at) != 0x0A:
            return BY_HAND
        size, first = varint(at + 1, stop)
        if first < 0 or size < 0 or size > stop - first:
            return BY_HAND  # the packet extends beyond the end, or is not a packet: Python decides
        why = take_packet(first, first + size, base + first - start, tables, state)
        if why != MORE:
            return why
        at = first + size
        store_int(state + POSITION, at - start)
        store_int(state + PACKETS, load_int(state + PACKETS) + 1)
    return MORE
