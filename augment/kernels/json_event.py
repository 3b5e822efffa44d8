"""Compiled code that reads one event into a few integers."""

from __future__ import annotations

import numpy as np

from augment.kernels.args import next_key, take_args
from augment.kernels.json_layout import (
    CATEGORY,
    CORRELATION,
    DUR,
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
    ID,
    LINE,
    LONGEST_LINE,
    MISSING,
    NAME,
    NUMBER,
    PHASE,
    PID,
    PID_KIND,
    SEEN,
    STRING,
    TID,
    TID_KIND,
    TO_END,
    TO_HASH,
    TS,
)
from augment.kernels.memory import (
    compiled,
    load_byte,
    load_int,
    load_word,
    store_int,
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
from augment.kernels.wanted_args import FIELDS_SEEN, ROW, key_word

K_PH, K_TS, K_DUR, K_NAME, K_CAT, K_PID, K_TID, K_ID, K_ARGS = (
    np.uint64(key_word(key)) for key in ("ph", "ts", "dur", "name", "cat", "pid", "tid", "id", "args")
)


@compiled
def saw(fields: int, what: int) -> None:
    """Record in the event's flags that it has ``what``."""
    store_int(fields + SEEN, load_int(fields + SEEN) | what)


@compiled
def read_args(stop: int, i: int, fields: int, wanted: int) -> int:
    """Take the wanted args from the args object that opens at ``i``. Returns the position after it."""
    store_int(fields + CORRELATION, -1)
    store_int(fields + SEEN, load_int(fields + SEEN) & ~(HAS_SIZE | HAS_DEVICE | HAS_STREAM))
    i = take_args(stop, i, load_int(wanted + ROW), fields, wanted)
    saw(fields, load_int(wanted + FIELDS_SEEN))
    return i


@compiled
def read_string(stop: int, i: int, field: int) -> int:
    """Store a string's place and hash in the three integers at ``field``. Returns the position after the string."""
    if load_byte(i) != QUOTE:
        return ODD
    at, hashed, escapes = string_end(stop, i + 1)
    if at < 0:
        return INCOMPLETE
    if escapes == BAD_ESCAPE:
        return ODD
    store_int(field, i + 1)
    store_int(field + TO_END, at)
    store_int(field + TO_HASH, np.int64(hashed))
    return at + 1


@compiled
def read_identity(stop: int, i: int, kind: int) -> int:
    """Store a pid or tid in the integers at ``kind`` and after it. Returns the position after the value."""
    if load_byte(i) == QUOTE:
        store_int(kind, STRING)
        return read_string(stop, i, kind + 8)
    value, after = read_int(stop, i)
    store_int(kind, NUMBER)
    store_int(kind + 8, value)
    return after


@compiled
def read_phase(stop: int, i: int, fields: int) -> int:
    """Store the single letter of ``ph``. Returns the position after it."""
    if i + 2 >= stop:
        return INCOMPLETE
    letter = load_byte(i + 1)
    if load_byte(i) != QUOTE or load_byte(i + 2) != QUOTE or letter == BACKSLASH or letter == QUOTE:
        return ODD
    store_int(fields + PHASE, letter)
    saw(fields, HAS_PHASE | HAS_HEAD)
    return i + 3


@compiled
def read_member(stop: int, i: int, length: int, key: np.uint64, fields: int, wanted: int) -> int:
    """Read one member of an event into ``fields``. Returns the position after its value."""
    if length == 2 and key == K_PH:
        return read_phase(stop, i, fields)
    if (length == 2 and key == K_TS) or (length == 3 and key == K_DUR):
        value, after = read_ns(stop, i)
        store_int(fields + (TS if length == 2 else DUR), value)
        saw(fields, HAS_TS if length == 2 else HAS_DUR)
        return after
    if length == 4 and key == K_NAME:
        saw(fields, HAS_NAME | HAS_HEAD)
        return read_string(stop, i, fields + NAME)
    if length == 3 and key == K_CAT:
        saw(fields, HAS_CATEGORY | HAS_HEAD)
        return read_string(stop, i, fields + CATEGORY)
    if length == 3 and (key == K_PID or key == K_TID):
        saw(fields, HAS_HEAD)
        return read_identity(stop, i, fields + (PID_KIND if key == K_PID else TID_KIND))
    if length == 2 and key == K_ID:
        value, after = read_int(stop, i)
        store_int(fields + ID, value)
        saw(fields, HAS_ID)
        return ODD if after >= 0 and value < 0 else after
    if length == 4 and key == K_ARGS:
        return read_args(stop, i, fields, wanted) if load_byte(i) == OPEN_BRACE else ODD
    return skip_value(stop, i)


@compiled
def read_event(stop: int, i: int, fields: int, line_end: int, wanted: int) -> int:
    """Read the event that opens at ``i`` into ``fields``. Returns the position after it.

    ``fields[LINE]`` becomes ``line_end`` if the text up to ``line_end`` consists of whole members that form an event's
    head.
    """
    store_int(fields + SEEN, 0)
    store_int(fields + LINE, -1)
    store_int(fields + PID_KIND, MISSING)
    store_int(fields + TID_KIND, MISSING)
    store_int(fields + PID, 0)
    store_int(fields + TID, 0)
    store_int(fields + CORRELATION, -1)
    i, length, key, _ = next_key(stop, i + 1, True)
    while i >= 0 and length >= 0:
        i = read_member(stop, i, length, key, fields, wanted)
        if i < 0:
            return i
        if i + 1 == line_end and load_byte(i) == COMMA and load_int(fields + SEEN) == HEAD | HAS_HEAD:
            store_int(fields + LINE, line_end)
            store_int(fields + SEEN, HEAD)
        i, length, key, _ = next_key(stop, i, False)
    return i


@compiled
def read_rest(stop: int, i: int, fields: int, wanted: int) -> int:
    """Read the members from ``i``, after a comma, to the end of the event; :data:`ODD` if they repeat a member of its
    head.
    """
    i = skip_blank(stop, i)
    if i < stop and load_byte(i) == CLOSE_BRACE:
        return ODD
    i, length, key, _ = next_key(stop, i, True)
    while i >= 0 and length >= 0:
        i = read_member(stop, i, length, key, fields, wanted)
        if i < 0:
            return i
        i, length, key, _ = next_key(stop, i, False)
    return ODD if i >= 0 and load_int(fields + SEEN) & HAS_HEAD else i


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
