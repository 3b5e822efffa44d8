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
    ARGS,
    BROKEN,
    CATEGORY,
    CATEGORY_COLUMN,
    CORRELATION,
    CORRELATION_COLUMN,
    DEVICE,
    DUR,
    DUR_COLUMN,
    END,
    EVENTS,
    FIRST_MISSING,
    FLOW_ROWS,
    FLOWS,
    GIVE_UP_LINES,
    GROW,
    HAS_CATEGORY,
    HAS_DEVICE,
    HAS_DUR,
    HAS_HEAD,
    HAS_ID,
    HAS_NAME,
    HAS_PHASE,
    HAS_SIZE,
    HAS_STREAM,
    HAS_TS,
    HEAD,
    HEAD_AT,
    HEAD_WIDTH,
    ID,
    LAST_END,
    LENGTH_COLUMN,
    LINE,
    LINE_DICTIONARY,
    LINE_HEADS,
    LINE_POOL,
    LINES,
    METADATA,
    MISSING_COMMAS,
    MORE,
    NAME,
    NAME_COLUMN,
    NO_LINES,
    NOTE_METADATA,
    NOTE_ODD,
    NOTE_ROOM,
    NOTE_TABLE,
    NOTE_UNUSABLE,
    NOTE_WIDTH,
    NOTES,
    OFFSET_COLUMN,
    PHASE,
    PHASE_COLUMN,
    PHASES,
    PID,
    PID_KIND,
    PLACE_COLUMN,
    POSITION,
    ROW_ROOM,
    ROWS,
    SEEN,
    SIZE,
    SIZE_ROWS,
    SIZES,
    SLICE,
    STREAM,
    STRING,
    STRING_DICTIONARY,
    STRINGS,
    TID,
    TID_KIND,
    TO_END,
    TO_HASH,
    TS,
    TS_COLUMN,
    UNDIVIDED,
)
from augment.kernels.json_tables import append_pair, find_place
from augment.kernels.memory import (
    compiled,
    compiled_apart,
    load_byte,
    load_int,
    load_word,
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

FLOW_START, FLOW_FINISH = (np.uint64(int.from_bytes(text, "little")) for text in (b'"ph": "s', b'"ph": "f'))
KNOWN_PHASE = np.zeros(256, np.bool_)
KNOWN_PHASE[[ord(phase) for phase in PHASES]] = True
ENDS_VALUE = np.zeros(256, np.bool_)  #: the bytes that may follow a bare value
ENDS_VALUE[[*range(33), *b',[]{"']] = True


@compiled_apart
def keep_line(slot: int, start: int, size: int, hashed: np.uint64, head: int, tables: int, state: int) -> None:
    """Store a line that was just read, if there is room. ``head`` is the address of the values read from it."""
    new, at = load_int(state + LINES), load_int(state + LINE_POOL)
    if put_in(start, size, hashed, slot, tables + LINE_DICTIONARY, new, at):
        for k in range(0, HEAD_WIDTH, 8):
            store_int(load_int(tables + LINE_HEADS) + HEAD_WIDTH * new + k, load_int(head + k))
        store_int(state + LINES, new + 1)
        store_int(state + LINE_POOL, at + size)


@compiled
def intern_field(fields: int, field: int, tables: int, state: int) -> int:
    """The id of a string of the current event; :data:`FULL` if there is no room for it."""
    start = load_int(fields + field)
    size = load_int(fields + field + TO_END) - start
    return intern(start, size, load_word(fields + field + TO_HASH), tables + STRING_DICTIONARY, state + STRINGS)


@compiled
def make_head(fields: int, tables: int, state: int) -> bool:
    """Write phase, category, name, kinds, pid and tid of the current event to ``fields + HEAD_AT``; False if there is
    no room.
    """
    seen = load_int(fields + SEEN)
    category = name = 0  # the empty string
    if seen & HAS_CATEGORY:
        category = intern_field(fields, CATEGORY, tables, state)
    if seen & HAS_NAME:
        name = intern_field(fields, NAME, tables, state)
    pid, tid = load_int(fields + PID), load_int(fields + TID)
    full = category == FULL or name == FULL
    if load_int(fields + PID_KIND) == STRING:
        pid = intern_field(fields, PID, tables, state)
        full |= pid == FULL
    if load_int(fields + TID_KIND) == STRING:
        tid = intern_field(fields, TID, tables, state)
        full |= tid == FULL
    head = fields + HEAD_AT
    store_int(head, load_int(fields + PHASE))
    store_int(head + 8, category)
    store_int(head + 16, name)
    store_int(head + 24, load_int(fields + PID_KIND) * 4 + load_int(fields + TID_KIND))
    store_int(head + 32, pid)
    store_int(head + 40, tid)
    return not full


@compiled
def keep_row(fields: int, head: int, offset: int, length: int, tables: int, state: int) -> bool:
    """Append the current event to the columns. False, with nothing appended, if a table must grow first."""
    seen, row = load_int(fields + SEEN), load_int(state + ROWS)
    device = load_int(fields + DEVICE) if seen & HAS_DEVICE else ABSENT
    stream = load_int(fields + STREAM) if seen & HAS_STREAM else ABSENT
    kinds, pid, tid = load_int(head + 24), load_int(head + 32), load_int(head + 40)
    place = find_place(kinds, pid, tid, device, stream, tables, state)
    if place == FULL:
        return False
    phase = load_int(head)
    store_int(load_int(tables + TS_COLUMN) + 8 * row, load_int(fields + TS))
    store_int(load_int(tables + DUR_COLUMN) + 8 * row, load_int(fields + DUR) if phase == SLICE else 0)
    store_byte(load_int(tables + PHASE_COLUMN) + row, phase)
    store_int32(load_int(tables + CATEGORY_COLUMN) + 4 * row, load_int(head + 8))
    store_int32(load_int(tables + NAME_COLUMN) + 4 * row, load_int(head + 16))
    store_int32(load_int(tables + PLACE_COLUMN) + 4 * row, place)
    store_int(load_int(tables + CORRELATION_COLUMN) + 8 * row, load_int(fields + CORRELATION))
    store_int(load_int(tables + OFFSET_COLUMN) + 8 * row, offset)
    store_int32(load_int(tables + LENGTH_COLUMN) + 4 * row, length)
    if seen & HAS_SIZE:
        append_pair(tables + SIZE_ROWS, state + SIZES, row, load_int(fields + SIZE))
    if seen & HAS_ID:
        append_pair(tables + FLOW_ROWS, state + FLOWS, row, load_int(fields + ID))
    keep_args(load_int(tables + ARGS))
    store_int(state + ROWS, row + 1)
    return True


@compiled_apart
def note(kind: int, start: int, length: int, base: int, tables: int, state: int) -> None:
    """Leave an event to Python. If it may become a row, an empty row (phase 0) is reserved for it."""
    count, row = load_int(state + NOTES), load_int(state + ROWS)
    place = load_int(tables + NOTE_TABLE) + NOTE_WIDTH * count
    store_int(place, kind)
    store_int(place + 8, row)
    store_int(place + 16, start)
    store_int(place + 24, start + length)
    store_int(state + NOTES, count + 1)
    if kind == NOTE_ODD:
        store_byte(load_int(tables + PHASE_COLUMN) + row, 0)
        store_int(load_int(tables + OFFSET_COLUMN) + 8 * row, base + start)
        store_int32(load_int(tables + LENGTH_COLUMN) + 4 * row, length)
        store_int(state + ROWS, row + 1)


@compiled
def kind_of_note(fields: int) -> int:
    """What Python must do for an event that was read without difficulty; -1 if nothing, because it is an ordinary
    row.
    """
    seen, phase = load_int(fields + SEEN), load_int(fields + PHASE)
    if seen & HAS_PHASE and phase == METADATA:
        return NOTE_METADATA
    if not (seen & HAS_PHASE and seen & HAS_TS and KNOWN_PHASE[phase]):
        return NOTE_UNUSABLE
    return NOTE_UNUSABLE if phase == SLICE and not seen & HAS_DUR else -1


@compiled
def scan_event(stop: int, start: int, base: int, origin: int, fields: int, tables: int, state: int) -> int:
    """Take the event that opens at ``start``. Returns the position after it, or :data:`INCOMPLETE` or :data:`FULL`."""
    known, line, line_end, hashed = -1, start, -1, ZERO
    wanted = load_int(tables + ARGS)
    begin_args(load_int(state + ROWS), wanted)
    if load_int(state + NO_LINES) < GIVE_UP_LINES:
        line = skip_blank(stop, start + 1)
        word = load_word(line)
        if word != FLOW_START and word != FLOW_FINISH:  # their first lines contain an id and a time: all differ
            line_end, hashed = line_at(stop, line)
            if line_end < 0:
                store_int(state + NO_LINES, load_int(state + NO_LINES) + 1)
        if line_end >= 0:
            known = look_up(line, line_end - line, hashed, tables + LINE_DICTIONARY)
    head = fields + HEAD_AT
    if known >= 0:
        head = load_int(tables + LINE_HEADS) + HEAD_WIDTH * known
        store_int(fields + SEEN, HEAD)
        store_int(fields + PHASE, load_int(head))
        store_int(fields + CORRELATION, -1)
        i = read_rest(stop, line_end, fields, wanted)
    else:
        i = read_event(stop, start, fields, line_end, wanted)
    kind = NOTE_ODD
    if i == ODD:
        i = skip_nested(stop, start, False)
    else:
        kind = kind_of_note(fields)
    if i < 0:
        return i
    if kind >= 0:
        note(kind, start - origin, i - start, base, tables, state)
        return i
    if known < 0:
        if not make_head(fields, tables, state):
            return FULL
        if load_int(fields + LINE) >= 0 and not load_int(fields + SEEN) & HAS_HEAD:
            keep_line(-1 - known, line, line_end - line, hashed, head, tables, state)
    return i if keep_row(fields, head, base + start - origin, i - start, tables, state) else FULL


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
def note_undivided(base: int, state: int) -> None:
    """Count a missing comma before the element that was just taken."""
    if load_int(state + MISSING_COMMAS) == 0:
        store_int(state + FIRST_MISSING, base + load_int(state + POSITION))
    store_int(state + MISSING_COMMAS, load_int(state + MISSING_COMMAS) + 1)


@compiled
def scan(origin: int, size: int, base: int, fields: int, tables: int, state: int) -> int:
    """Scan array elements from ``state[POSITION]`` on, until one of :data:`MORE`, END, GROW or BROKEN applies.

    All arguments but ``size`` and ``base`` are addresses; ``base`` is the offset of the text at ``origin`` in the whole
    text. On return, ``state[POSITION]`` is the first element that was not taken, the closing bracket, or the place
    where the text is broken.
    """
    stop = origin + size
    i = origin + load_int(state + POSITION)
    while True:
        store_int(state + POSITION, i - origin)
        if load_int(state + ROWS) >= load_int(tables + ROW_ROOM) or load_int(state + NOTES) >= load_int(
            tables + NOTE_ROOM
        ):
            return GROW
        i = skip_blank(stop, i)
        while i < stop and load_byte(i) == COMMA:
            i = skip_blank(stop, i + 1)
            store_int(state + UNDIVIDED, 0)
        store_int(state + POSITION, i - origin)
        if i == stop:
            return MORE
        if load_byte(i) == CLOSE_BRACKET:
            store_int(state + UNDIVIDED, 0)
            return END
        if load_byte(i) == OPEN_BRACE:
            i = scan_event(stop, i, base, origin, fields, tables, state)
        else:
            start, i = i, skip_element(stop, i)
            if i == ODD:
                return BROKEN
            if i >= 0:
                note(NOTE_UNUSABLE, start - origin, i - start, base, tables, state)
        if i == INCOMPLETE:
            return MORE
        if i == FULL:
            return GROW
        if load_int(state + UNDIVIDED):
            note_undivided(base, state)
        store_int(state + UNDIVIDED, 1)
        store_int(state + EVENTS, load_int(state + EVENTS) + 1)
        store_int(state + LAST_END, base + i - origin)
