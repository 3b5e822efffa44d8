"""Compiled code that reads one event into a few integers."""

from __future__ import annotations

import numpy as np

from augment.kernels.args import pass_gap, take_args
from augment.kernels.json_layout import (
    HAS_CATEGORY,
    HAS_DUR,
    HAS_HEAD,
    HAS_ID,
    HAS_NAME,
    HAS_PHASE,
    HAS_TS,
    HEAD,
    LONGEST_LINE,
    MISSING,
    NUMBER,
    STRING,
    Event,
    Identity,
    Scan,
    Text,
)
from augment.kernels.memory import (
    compiled,
    load_byte,
    load_word,
    trailing_zeros,
)
from augment.kernels.tokens import (
    ALL,
    BACKSLASH,
    BAD_ESCAPE,
    CLOSE_BRACE,
    COMMA,
    HIGH,
    INCOMPLETE,
    LINE_ENDS,
    LOW,
    MULTIPLIER,
    ODD,
    OPEN_BRACE,
    QUOTE,
    SALT,
    SHIFT,
    ZERO,
    read_int,
    read_ns,
    skip_blank,
    skip_value,
    string_end,
)
from augment.kernels.wanted_args import OF_EVENT, OF_REST, key_word

K_PH, K_TS, K_DUR, K_NAME, K_CAT, K_PID, K_TID, K_ID, K_ARGS = (
    np.uint64(key_word(key)) for key in ("ph", "ts", "dur", "name", "cat", "pid", "tid", "id", "args")
)


@compiled
def read_string(stop: int, i: int, text: Text) -> int:
    """Store a string's place and hash. Returns the position after the string."""
    if load_byte(i) != QUOTE:
        return ODD
    at, hashed, escapes = string_end(stop, i + 1)
    if at < 0:
        return INCOMPLETE
    if escapes == BAD_ESCAPE:
        return ODD
    text.start = i + 1
    text.end = at
    text.hash = np.int64(hashed)
    return at + 1


@compiled
def read_identity(stop: int, i: int, identity: Identity) -> int:
    """Store a pid or tid. Returns the position after the value."""
    if load_byte(i) == QUOTE:
        identity.kind = STRING
        return read_string(stop, i, identity.text)
    identity.number, after = read_int(stop, i)
    identity.kind = NUMBER
    return after


@compiled
def read_phase(stop: int, i: int, event: Event) -> int:
    """Store the single letter of ``ph``. Returns the position after it."""
    if i + 2 >= stop:
        return INCOMPLETE
    letter = load_byte(i + 1)
    if load_byte(i) != QUOTE or load_byte(i + 2) != QUOTE or letter == BACKSLASH or letter == QUOTE:
        return ODD
    event.phase = letter
    event.seen |= HAS_PHASE | HAS_HEAD
    return i + 3


@compiled
def read_member(stop: int, i: int, length: int, key: np.uint64, scan: Scan) -> int:
    """Read one member of the event. Returns the position after its value."""
    event = scan.event
    if length == 2 and key == K_PH:
        return read_phase(stop, i, event)
    if length == 2 and key == K_TS:
        event.ts, after = read_ns(stop, i)
        event.seen |= HAS_TS
        return after
    if length == 3 and key == K_DUR:
        event.dur, after = read_ns(stop, i)
        event.seen |= HAS_DUR
        return after
    if length == 4 and key == K_NAME:
        event.seen |= HAS_NAME | HAS_HEAD
        return read_string(stop, i, event.name)
    if length == 3 and key == K_CAT:
        event.seen |= HAS_CATEGORY | HAS_HEAD
        return read_string(stop, i, event.category)
    if length == 3 and (key == K_PID or key == K_TID):
        event.seen |= HAS_HEAD
        return read_identity(stop, i, event.pid if key == K_PID else event.tid)
    if length == 2 and key == K_ID:
        event.id, after = read_int(stop, i)
        event.seen |= HAS_ID
        return ODD if after >= 0 and event.id < 0 else after
    if length == 4 and key == K_ARGS:
        return take_args(stop, i, scan.rows, scan.wanted) if load_byte(i) == OPEN_BRACE else ODD
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
        if i + 1 == line_end and load_byte(i) == COMMA and event.seen == HEAD | HAS_HEAD:
            event.line = line_end
            event.seen = HEAD
        i, length, key, _, before = pass_gap(stop, i, before, scan.wanted)
    return i


@compiled
def read_event(stop: int, i: int, line_end: int, scan: Scan) -> int:
    """Read the event that opens at ``i``: see :func:`read_members`."""
    event = scan.event
    event.seen = 0
    event.line = -1
    event.pid.kind = MISSING
    event.tid.kind = MISSING
    event.pid.number = 0
    event.tid.number = 0
    return read_members(stop, i + 1, line_end, OF_EVENT, scan)


@compiled
def read_rest(stop: int, i: int, scan: Scan) -> int:
    """Read the members from ``i``, after a comma, to the end of the event; :data:`ODD` if they repeat a member of its
    head.
    """
    i = skip_blank(stop, i)
    if i < stop and load_byte(i) == CLOSE_BRACE:
        return ODD
    i = read_members(stop, i, -1, OF_REST, scan)
    return ODD if i >= 0 and scan.event.seen & HAS_HEAD else i


@compiled
def line_at(stop: int, i: int) -> tuple[int, np.uint64]:
    """The position of the line end after ``i`` and the hash of the text before it; -1 if there is no line end
    nearby.
    """
    hashed, salt = ZERO, SALT
    last = min(stop, i + LONGEST_LINE)
    while i < last:
        word = load_word(i)
        ends = word ^ LINE_ENDS
        matches = (ends - LOW) & ~ends & HIGH
        if matches != ZERO:
            bit = trailing_zeros(matches) - np.uint64(7)
            at = i + np.int64(bit >> np.uint64(3))
            if bit != ZERO:
                hashed += ((word & (ALL >> (np.uint64(64) - bit))) ^ salt) * MULTIPLIER
            return (at if at < stop else -1), hashed ^ (hashed >> SHIFT)
        hashed += (word ^ salt) * MULTIPLIER
        salt += SALT
        i += 8
    return -1, hashed
