"""The compiled event scanner: reads JSON bytes into columns in one pass, without a Python object per event.

It reads the forms that Kineto and related profilers write. An event in any other form (escaped keys, exponents, string
correlations, broken JSON) is noted by its place; a row is reserved for it, and the general reader fills the row. Kineto
writes the same first line for each call of an operator, so a line whose exact bytes are known is not read again.
"""

from __future__ import annotations

import numpy as np

from augment.kernels import json_layout as layout
from augment.kernels import tokens
from augment.kernels.dictionary import FULL, intern, look_up, put_in
from augment.kernels.json_args import begin_args, keep_args, pass_gap, take_args
from augment.kernels.json_layout import Event, Head, Identity, Note, Place, Scan, Text
from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    compiled_apart,
    load_byte,
    load_int32,
    load_word,
    record_at,
    size_of,
    store_byte,
    store_int,
    store_int32,
    trailing_zeros,
)
from augment.kernels.tokens import (
    INCOMPLETE,
    ODD,
    ZERO,
    read_int,
    read_ns,
    skip_blank,
    skip_nested,
    skip_value,
    string_end,
)
from augment.kernels.wanted_args import OF_EVENT, OF_REST, key_word

HEAD_WIDTH, head_at = size_of(Head), record_at(Head)
NOTE_WIDTH, note_at = size_of(Note), record_at(Note)
FLOW_START, FLOW_FINISH = (np.uint64(int.from_bytes(text, "little")) for text in (b'"ph": "s', b'"ph": "f'))
KNOWN_PHASE = np.zeros(256, np.bool_)
KNOWN_PHASE[[ord(phase) for phase in layout.PHASES]] = True
ENDS_VALUE = np.zeros(256, np.bool_)  #: the bytes that may follow a bare value
ENDS_VALUE[[*range(33), *b',[]{"']] = True


@compiled_apart
def keep_line(slot: int, start: int, size: int, hashed: np.uint64, scan: Scan) -> None:
    """Store a line that was just read, and the head that was read from it, if there is room."""
    if put_in(start, size, hashed, slot, scan.lines):
        kept, head = head_at(scan.line_heads + HEAD_WIDTH * (scan.lines.count - 1)), scan.event.head
        kept.phase = head.phase
        kept.category = head.category
        kept.name = head.name
        kept.kinds = head.kinds
        kept.pid = head.pid
        kept.tid = head.tid


@compiled
def intern_text(text: Text, scan: Scan) -> int:
    """The number of a string of the current event; :data:`FULL` if there is no room for it."""
    return intern(text.start, text.end - text.start, as_word(text.hash), scan.strings)


@compiled
def make_head(scan: Scan) -> bool:
    """Make the head of the current event; False if there is no room for its strings."""
    event, head = scan.event, scan.event.head
    category = name = 0  # the empty string
    if event.seen & layout.HAS_CATEGORY:
        category = intern_text(event.category, scan)
    if event.seen & layout.HAS_NAME:
        name = intern_text(event.name, scan)
    head.phase = event.phase
    head.category = category
    head.name = name
    head.kinds = event.pid.kind * 4 + event.tid.kind
    head.pid = intern_text(event.pid.text, scan) if event.pid.kind == layout.STRING else event.pid.number
    head.tid = intern_text(event.tid.text, scan) if event.tid.kind == layout.STRING else event.tid.number
    no_pid = event.pid.kind == layout.STRING and head.pid == FULL
    no_tid = event.tid.kind == layout.STRING and head.tid == FULL
    return not (no_pid or no_tid or category == FULL or name == FULL)


@compiled
def keep_row(head: Head, offset: int, length: int, scan: Scan) -> bool:
    """Append the current event to the columns. False, with nothing appended, if a table must grow first."""
    event, row, fields, has = scan.event, scan.rows, scan.wanted.fields, scan.wanted.has
    device = fields[layout.DEVICE] if has & (1 << layout.DEVICE) else layout.ABSENT
    stream = fields[layout.STREAM] if has & (1 << layout.STREAM) else layout.ABSENT
    place = find_place(head.kinds, head.pid, head.tid, device, stream, scan)
    if place == FULL:
        return False
    store_int(scan.ts_column + 8 * row, event.ts)
    store_int(scan.dur_column + 8 * row, event.dur if head.phase == layout.SLICE else 0)
    store_byte(scan.phase_column + row, head.phase)
    store_int32(scan.category_column + 4 * row, head.category)
    store_int32(scan.name_column + 4 * row, head.name)
    store_int32(scan.place_column + 4 * row, place)
    store_int(scan.correlation_column + 8 * row, fields[layout.CORRELATION] if has & (1 << layout.CORRELATION) else -1)
    store_int(scan.offset_column + 8 * row, offset)
    store_int32(scan.length_column + 4 * row, length)
    if has & (1 << layout.SIZE):
        scan.sizes = put_pair(scan.size_rows, scan.size_values, scan.sizes, row, fields[layout.SIZE])
    if event.seen & layout.HAS_ID:
        scan.flows = put_pair(scan.flow_rows, scan.flow_values, scan.flows, row, event.id)
    keep_args(scan.wanted)
    scan.rows = row + 1
    return True


@compiled_apart
def note(kind: int, start: int, length: int, base: int, scan: Scan) -> None:
    """Leave an event to Python. If it may become a row, an empty row (phase 0) is reserved for it."""
    entry, row = note_at(scan.note_table + NOTE_WIDTH * scan.notes), scan.rows
    entry.kind = kind
    entry.row = row
    entry.start = start
    entry.end = start + length
    scan.notes += 1
    if kind == layout.NOTE_ODD:
        store_byte(scan.phase_column + row, 0)
        store_int(scan.offset_column + 8 * row, base + start)
        store_int32(scan.length_column + 4 * row, length)
        scan.rows = row + 1


@compiled
def kind_of_note(event: Event) -> int:
    """What Python must do for an event that was read without difficulty; -1 if nothing, because it is an ordinary
    row.
    """
    seen, phase = event.seen, event.phase
    if seen & layout.HAS_PHASE and phase == layout.METADATA:
        return layout.NOTE_METADATA
    if not (seen & layout.HAS_PHASE and seen & layout.HAS_TS and KNOWN_PHASE[phase]):
        return layout.NOTE_UNUSABLE
    return layout.NOTE_UNUSABLE if phase == layout.SLICE and not seen & layout.HAS_DUR else -1


@compiled
def scan_event(stop: int, start: int, base: int, origin: int, scan: Scan) -> int:
    """Take the event that opens at ``start``. Returns the position after it, or :data:`INCOMPLETE` or :data:`FULL`."""
    known, line, line_end, hashed = -1, start, -1, ZERO
    event = scan.event
    begin_args(scan.rows, scan.wanted)
    if scan.no_lines < layout.GIVE_UP_LINES:
        line = skip_blank(stop, start + 1)
        word = load_word(line)
        if word != FLOW_START and word != FLOW_FINISH:  # their first lines contain an id and a time: all differ
            line_end, hashed = line_at(stop, line)
            if line_end < 0:
                scan.no_lines += 1
        if line_end >= 0:
            known = look_up(line, line_end - line, hashed, scan.lines)
    head = event.head
    if known >= 0:
        head = head_at(scan.line_heads + HEAD_WIDTH * known)
        event.seen = layout.HEAD
        event.phase = head.phase
        i = read_rest(stop, line_end, scan)
    else:
        i = read_event(stop, start, line_end, scan)
    kind = layout.NOTE_ODD
    if i == ODD:
        i = skip_nested(stop, start, False)
    else:
        kind = kind_of_note(event)
    if i < 0:
        return i
    if kind >= 0:
        note(kind, start - origin, i - start, base, scan)
        return i
    if known < 0:
        if not make_head(scan):
            return FULL
        if event.line >= 0 and not event.seen & layout.HAS_HEAD:
            keep_line(-1 - known, line, line_end - line, hashed, scan)
    return i if keep_row(head, base + start - origin, i - start, scan) else FULL


@compiled
def skip_element(stop: int, i: int) -> int:
    """The position after an element that is not an object; :data:`ODD` if there is no element, or if other text adjoins
    it.
    """
    if load_byte(i) == tokens.OPEN_BRACKET:
        return skip_nested(stop, i, False)
    i = skip_value(stop, i)
    if i == stop:
        return INCOMPLETE  # the text that comes next may adjoin the element
    return ODD if i >= 0 and not ENDS_VALUE[load_byte(i)] else i


@compiled_apart
def note_undivided(base: int, scan: Scan) -> None:
    """Count a missing comma before the element that was just taken."""
    if scan.missing_commas == 0:
        scan.first_missing = base + scan.position
    scan.missing_commas += 1


@compiled
def scan(origin: int, size: int, base: int, scan: Scan) -> int:
    """Scan array elements from ``scan.position`` on, until one of :data:`MORE`, END, GROW or BROKEN applies.

    ``origin`` is the address of the text, and ``base`` its offset in the whole text. On return, ``scan.position`` is
    the first element that was not taken, the closing bracket, or the place where the text is broken.
    """
    stop = origin + size
    i = origin + scan.position
    while True:
        scan.position = i - origin
        if scan.rows >= scan.row_room or scan.notes >= scan.note_room:
            return layout.GROW
        i = skip_blank(stop, i)
        while i < stop and load_byte(i) == tokens.COMMA:
            i = skip_blank(stop, i + 1)
            scan.undivided = 0
        scan.position = i - origin
        if i == stop:
            return layout.MORE
        if load_byte(i) == tokens.CLOSE_BRACKET:
            scan.undivided = 0
            return layout.END
        if load_byte(i) == tokens.OPEN_BRACE:
            i = scan_event(stop, i, base, origin, scan)
        else:
            start, i = i, skip_element(stop, i)
            if i == ODD:
                return layout.BROKEN
            if i >= 0:
                note(layout.NOTE_UNUSABLE, start - origin, i - start, base, scan)
        if i == INCOMPLETE:
            return layout.MORE
        if i == FULL:
            return layout.GROW
        if scan.undivided:
            note_undivided(base, scan)
        scan.undivided = 1
        scan.events += 1
        scan.last_end = base + i - origin


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


K_PH, K_TS, K_DUR, K_NAME, K_CAT, K_PID, K_TID, K_ID, K_ARGS = (
    np.uint64(key_word(key)) for key in ("ph", "ts", "dur", "name", "cat", "pid", "tid", "id", "args")
)


@compiled
def read_string(stop: int, i: int, text: Text) -> int:
    """Store a string's place and hash. Returns the position after the string."""
    if load_byte(i) != tokens.QUOTE:
        return ODD
    at, hashed, escapes = string_end(stop, i + 1)
    if at < 0:
        return INCOMPLETE
    if escapes == tokens.BAD_ESCAPE:
        return ODD
    text.start = i + 1
    text.end = at
    text.hash = np.int64(hashed)
    return at + 1


@compiled
def read_identity(stop: int, i: int, identity: Identity) -> int:
    """Store a pid or tid. Returns the position after the value."""
    if load_byte(i) == tokens.QUOTE:
        identity.kind = layout.STRING
        return read_string(stop, i, identity.text)
    identity.number, after = read_int(stop, i)
    identity.kind = layout.NUMBER
    return after


@compiled
def read_phase(stop: int, i: int, event: Event) -> int:
    """Store the single letter of ``ph``. Returns the position after it."""
    if i + 2 >= stop:
        return INCOMPLETE
    letter = load_byte(i + 1)
    if load_byte(i) != tokens.QUOTE or load_byte(i + 2) != tokens.QUOTE:
        return ODD
    if letter == tokens.BACKSLASH or letter == tokens.QUOTE:
        return ODD
    event.phase = letter
    event.seen |= layout.HAS_PHASE | layout.HAS_HEAD
    return i + 3


@compiled
def read_member(stop: int, i: int, length: int, key: np.uint64, scan: Scan) -> int:
    """Read one member of the event. Returns the position after its value."""
    event = scan.event
    if length == 2 and key == K_PH:
        return read_phase(stop, i, event)
    if length == 2 and key == K_TS:
        event.ts, after = read_ns(stop, i)
        event.seen |= layout.HAS_TS
        return after
    if length == 3 and key == K_DUR:
        event.dur, after = read_ns(stop, i)
        event.seen |= layout.HAS_DUR
        return after
    if length == 4 and key == K_NAME:
        event.seen |= layout.HAS_NAME | layout.HAS_HEAD
        return read_string(stop, i, event.name)
    if length == 3 and key == K_CAT:
        event.seen |= layout.HAS_CATEGORY | layout.HAS_HEAD
        return read_string(stop, i, event.category)
    if length == 3 and (key == K_PID or key == K_TID):
        event.seen |= layout.HAS_HEAD
        return read_identity(stop, i, event.pid if key == K_PID else event.tid)
    if length == 2 and key == K_ID:
        event.id, after = read_int(stop, i)
        event.seen |= layout.HAS_ID
        return ODD if after >= 0 and event.id < 0 else after
    if length == 4 and key == K_ARGS:
        return take_args(stop, i, scan.rows, scan.wanted) if load_byte(i) == tokens.OPEN_BRACE else ODD
    return skip_value(stop, i)


@compiled
def read_members(stop: int, i: int, line_end: int, before: int, scan: Scan) -> int:
    """Read the members from ``i``, ``before`` a gap, to the end of the event. Returns the position after it.

    ``event.line`` becomes ``line_end`` if the text up to ``line_end`` consists of whole members that form an event's
    head.
    """
    event = scan.event
    i, length, key, _, before = pass_gap(stop, i, before, scan.wanted)
    while i >= 0 and length >= 0:
        i = read_member(stop, i, length, key, scan)
        if i < 0:
            return i
        if i + 1 == line_end and load_byte(i) == tokens.COMMA and event.seen == layout.HEAD | layout.HAS_HEAD:
            event.line = line_end
            event.seen = layout.HEAD
        i, length, key, _, before = pass_gap(stop, i, before, scan.wanted)
    return i


@compiled
def read_event(stop: int, i: int, line_end: int, scan: Scan) -> int:
    """Read the event that opens at ``i``: see :func:`read_members`."""
    event = scan.event
    event.seen = 0
    event.line = -1
    event.pid.kind = layout.MISSING
    event.tid.kind = layout.MISSING
    event.pid.number = 0
    event.tid.number = 0
    return read_members(stop, i + 1, line_end, OF_EVENT, scan)


@compiled
def read_rest(stop: int, i: int, scan: Scan) -> int:
    """Read the members from ``i``, after a comma, to the end of the event; :data:`ODD` if they repeat a member of its
    head.
    """
    i = skip_blank(stop, i)
    if i < stop and load_byte(i) == tokens.CLOSE_BRACE:
        return ODD
    i = read_members(stop, i, -1, OF_REST, scan)
    return ODD if i >= 0 and scan.event.seen & layout.HAS_HEAD else i


@compiled
def line_at(stop: int, i: int) -> tuple[int, np.uint64]:
    """The position of the line end after ``i`` and the hash of the text before it; -1 if there is no line end
    nearby.
    """
    hashed, salt = ZERO, tokens.SALT
    last = min(stop, i + layout.LONGEST_LINE)
    while i < last:
        word = load_word(i)
        ends = word ^ tokens.LINE_ENDS
        matches = (ends - tokens.LOW) & ~ends & tokens.HIGH
        if matches != ZERO:
            bit = trailing_zeros(matches) - np.uint64(7)
            at = i + np.int64(bit >> np.uint64(3))
            if bit != ZERO:
                hashed += ((word & (tokens.ALL >> (np.uint64(64) - bit))) ^ salt) * tokens.MULTIPLIER
            return (at if at < stop else -1), hashed ^ (hashed >> tokens.SHIFT)
        hashed += (word ^ salt) * tokens.MULTIPLIER
        salt += tokens.SALT
        i += 8
    return -1, hashed
