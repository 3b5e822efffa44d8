"""The compiled event scanner: reads JSON bytes into columns in one pass, without a Python object per event.

It reads the forms that Kineto and related profilers write. An event in any other form (escaped keys, exponents, string
correlations, broken JSON) is noted by its place; a row is reserved for it, and the general reader fills the row. Kineto
writes the same first line for each call of an operator, so a line whose exact bytes are known is not read again.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.args import begin_args, keep_args
from augment.kernels.dictionary import intern, look_up, put_in
from augment.kernels.interned import FULL
from augment.kernels.json_event import line_at, read_event, read_rest
from augment.kernels.json_layout import (
    ABSENT,
    BROKEN,
    CORRELATION,
    DEVICE,
    END,
    GIVE_UP_LINES,
    GROW,
    HAS_CATEGORY,
    HAS_DUR,
    HAS_HEAD,
    HAS_ID,
    HAS_NAME,
    HAS_PHASE,
    HAS_TS,
    HEAD,
    METADATA,
    MORE,
    NOTE_METADATA,
    NOTE_ODD,
    NOTE_UNUSABLE,
    PHASES,
    SIZE,
    SLICE,
    STREAM,
    STRING,
    Event,
    Head,
    Note,
    Scan,
    Text,
)
from augment.kernels.json_tables import find_place, put_pair
from augment.kernels.memory import (
    as_word,
    compiled,
    compiled_apart,
    load_byte,
    load_word,
    record_at,
    size_of,
    store_byte,
    store_int,
    store_int32,
)
from augment.kernels.tokens import (
    CLOSE_BRACKET,
    COMMA,
    INCOMPLETE,
    ODD,
    OPEN_BRACE,
    OPEN_BRACKET,
    ZERO,
    skip_blank,
    skip_nested,
    skip_value,
)

HEAD_WIDTH, head_at = size_of(Head), record_at(Head)
NOTE_WIDTH, note_at = size_of(Note), record_at(Note)
FLOW_START, FLOW_FINISH = (np.uint64(int.from_bytes(text, "little")) for text in (b'"ph": "s', b'"ph": "f'))
KNOWN_PHASE = np.zeros(256, np.bool_)
KNOWN_PHASE[[ord(phase) for phase in PHASES]] = True
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
    if event.seen & HAS_CATEGORY:
        category = intern_text(event.category, scan)
    if event.seen & HAS_NAME:
        name = intern_text(event.name, scan)
    head.phase = event.phase
    head.category = category
    head.name = name
    head.kinds = event.pid.kind * 4 + event.tid.kind
    head.pid = intern_text(event.pid.text, scan) if event.pid.kind == STRING else event.pid.number
    head.tid = intern_text(event.tid.text, scan) if event.tid.kind == STRING else event.tid.number
    full = (event.pid.kind == STRING and head.pid == FULL) or (event.tid.kind == STRING and head.tid == FULL)
    return not (full or category == FULL or name == FULL)


@compiled
def keep_row(head: Head, offset: int, length: int, scan: Scan) -> bool:
    """Append the current event to the columns. False, with nothing appended, if a table must grow first."""
    event, row, fields, has = scan.event, scan.rows, scan.wanted.fields, scan.wanted.has
    device = fields[DEVICE] if has & (1 << DEVICE) else ABSENT
    stream = fields[STREAM] if has & (1 << STREAM) else ABSENT
    place = find_place(head.kinds, head.pid, head.tid, device, stream, scan)
    if place == FULL:
        return False
    store_int(scan.ts_column + 8 * row, event.ts)
    store_int(scan.dur_column + 8 * row, event.dur if head.phase == SLICE else 0)
    store_byte(scan.phase_column + row, head.phase)
    store_int32(scan.category_column + 4 * row, head.category)
    store_int32(scan.name_column + 4 * row, head.name)
    store_int32(scan.place_column + 4 * row, place)
    store_int(scan.correlation_column + 8 * row, fields[CORRELATION] if has & (1 << CORRELATION) else -1)
    store_int(scan.offset_column + 8 * row, offset)
    store_int32(scan.length_column + 4 * row, length)
    if has & (1 << SIZE):
        scan.sizes = put_pair(scan.size_rows, scan.size_values, scan.sizes, row, fields[SIZE])
    if event.seen & HAS_ID:
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
    if kind == NOTE_ODD:
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
    if seen & HAS_PHASE and phase == METADATA:
        return NOTE_METADATA
    if not (seen & HAS_PHASE and seen & HAS_TS and KNOWN_PHASE[phase]):
        return NOTE_UNUSABLE
    return NOTE_UNUSABLE if phase == SLICE and not seen & HAS_DUR else -1


@compiled
def scan_event(stop: int, start: int, base: int, origin: int, scan: Scan) -> int:
    """Take the event that opens at ``start``. Returns the position after it, or :data:`INCOMPLETE` or :data:`FULL`."""
    known, line, line_end, hashed = -1, start, -1, ZERO
    event = scan.event
    begin_args(scan.rows, scan.wanted)
    if scan.no_lines < GIVE_UP_LINES:
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
        event.seen = HEAD
        event.phase = head.phase
        i = read_rest(stop, line_end, scan)
    else:
        i = read_event(stop, start, line_end, scan)
    kind = NOTE_ODD
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
        if event.line >= 0 and not event.seen & HAS_HEAD:
            keep_line(-1 - known, line, line_end - line, hashed, scan)
    return i if keep_row(head, base + start - origin, i - start, scan) else FULL


@compiled
def skip_element(stop: int, i: int) -> int:
    """The position after an element that is not an object; :data:`ODD` if there is no element, or if other text adjoins
    it.
    """
    if load_byte(i) == OPEN_BRACKET:
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
            return GROW
        i = skip_blank(stop, i)
        while i < stop and load_byte(i) == COMMA:
            i = skip_blank(stop, i + 1)
            scan.undivided = 0
        scan.position = i - origin
        if i == stop:
            return MORE
        if load_byte(i) == CLOSE_BRACKET:
            scan.undivided = 0
            return END
        if load_byte(i) == OPEN_BRACE:
            i = scan_event(stop, i, base, origin, scan)
        else:
            start, i = i, skip_element(stop, i)
            if i == ODD:
                return BROKEN
            if i >= 0:
                note(NOTE_UNUSABLE, start - origin, i - start, base, scan)
        if i == INCOMPLETE:
            return MORE
        if i == FULL:
            return GROW
        if scan.undivided:
            note_undivided(base, scan)
        scan.undivided = 1
        scan.events += 1
        scan.last_end = base + i - origin
