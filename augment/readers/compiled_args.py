"""The compiled reading of an object's keys, and of what is wanted of an event's args.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.dictionary import hash_bytes, same_bytes
from augment.compiled.memory import (
    compiled,
    compiled_apart,
    load_byte,
    load_int,
    load_word,
    store_byte,
    store_int,
    store_int32,
)
from augment.compiled.tokens import (
    CLOSE_BRACE,
    COLON,
    COMMA,
    INCOMPLETE,
    ODD,
    QUOTE,
    ZERO,
    ZERO_DIGIT,
    plain_end,
    read_int,
    skip_blank,
    skip_value,
)
from augment.readers.compiled_layout import (
    ARG,
    ARG_DICTIONARY,
    ARG_KINDS,
    ARG_ROOM,
    ARG_ROWS,
    ARG_TEXTS,
    ARG_VALUES,
    ARGS,
    CORRELATION,
    FIELD,
    FULL,
    HAS,
    HAS_DEVICE,
    HAS_SIZE,
    HAS_STREAM,
    IS_CODE,
    IS_TEXT,
    KEY_BITS,
    KEY_MIXER,
    KEY_SLOTS,
    KEY_TEXT,
    KEY_WIDTH,
    KEY_WORD,
    KEYS,
    ROWS,
    SEEN,
    TAKEN,
    TAKEN_ARGS,
)
from augment.readers.compiled_tables import intern

MIXER, KEY_SHIFT = np.uint64(KEY_MIXER), np.uint64(64 - KEY_BITS)


@compiled
def next_key(stop: int, i: int, first: bool) -> tuple[int, int, np.uint64, int]:
    """From after a value (or an opening brace, if ``first``) to the next member.

    Returns the position of its value, the length of its key, its :func:`key_word` and its position; length -1 and the
    position after the brace where the object closes; else :data:`INCOMPLETE` or :data:`ODD` as the position.
    """
    i = skip_blank(stop, i)
    if i >= stop:
        return INCOMPLETE, 0, ZERO, 0
    if load_byte(i) == CLOSE_BRACE:
        return i + 1, -1, ZERO, 0
    if not first:
        if load_byte(i) != COMMA:
            return ODD, 0, ZERO, 0
        i = skip_blank(stop, i + 1)
        if i >= stop:
            return INCOMPLETE, 0, ZERO, 0
    if load_byte(i) != QUOTE:
        return ODD, 0, ZERO, 0
    key = i + 1
    at = plain_end(stop, key)
    if at < 0:
        return at, 0, ZERO, 0
    length = at - key
    word = load_word(key)
    if length < 8:
        word &= (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
    elif length > 8:
        word ^= load_word(at - 8) * MIXER
    i = skip_blank(stop, at + 1)
    if i >= stop:
        return INCOMPLETE, 0, ZERO, 0
    if load_byte(i) != COLON:
        return ODD, 0, ZERO, 0
    i = skip_blank(stop, i + 1)
    return (i if i < stop else INCOMPLETE), length, word, key


@compiled
def saw(fields: int, what: int) -> None:
    """Note that the event at hand has ``what``."""
    store_int(fields + SEEN, load_int(fields + SEEN) | what)


@compiled
def find_key(length: int, word: np.uint64, key: int, tables: int) -> int:
    """The address of the entry of the key at ``key`` among those that are wanted; 0 if it is not."""
    keys = load_int(tables + KEYS)
    slot = np.int64((word + np.uint64(length)) * MIXER >> KEY_SHIFT)
    while True:
        entry: int = keys + KEY_WIDTH * slot
        known = load_int(entry)
        if known == length and load_word(entry + KEY_WORD) == word:
            if length <= 8 or same_bytes(load_int(entry + KEY_TEXT), key, length):
                return entry
        if known < 0:
            return 0
        slot = (slot + 1) & (KEY_SLOTS - 1)


@compiled_apart
def take_arg(stop: int, i: int, entry: int, fields: int, tables: int, state: int) -> int:
    """Take the value at ``i`` of an arg that few events have; the position after it, or :data:`FULL`."""
    arg, taken = load_int(entry + ARG), load_int(fields + TAKEN)
    bit = np.int64(1) << arg
    if load_int(fields + TAKEN_ARGS) & bit:
        return ODD  # of two, the last counts, whatever it is
    if taken >= load_int(tables + ARG_ROOM):
        return FULL
    value, after = 0, ODD
    if load_int(entry + IS_TEXT) == 0:
        value, after = read_int(stop, i)
        if after > i + 1 and load_byte(i) == ZERO_DIGIT:
            after = ODD  # JSON knows no such number
    if after == ODD:
        after = skip_value(stop, i)
        if after < 0:
            return after
        hashed = hash_bytes(i, after - i, ZERO)
        value = intern(i, after - i, hashed, tables + ARG_DICTIONARY, state + ARG_TEXTS)
        if value == FULL:
            return FULL
        arg += IS_CODE
    if after < 0:
        return after
    store_int32(load_int(tables + ARG_ROWS) + 4 * taken, load_int(state + ROWS))
    store_int(load_int(tables + ARG_VALUES) + 8 * taken, value)
    store_byte(load_int(tables + ARG_KINDS) + taken, arg)
    store_int(fields + TAKEN, taken + 1)
    store_int(fields + TAKEN_ARGS, load_int(fields + TAKEN_ARGS) | bit)
    return after


@compiled
def read_args(stop: int, i: int, fields: int, tables: int, state: int) -> int:
    """Take what is wanted of the args object that opens at ``i``; the position after it."""
    store_int(fields + CORRELATION, -1)
    store_int(fields + SEEN, load_int(fields + SEEN) & ~(HAS_SIZE | HAS_DEVICE | HAS_STREAM))
    store_int(fields + TAKEN, load_int(state + ARGS))
    store_int(fields + TAKEN_ARGS, 0)
    i, length, word, key = next_key(stop, i + 1, True)
    while i >= 0 and length >= 0:
        entry = find_key(length, word, key, tables)
        if entry == 0:
            i = skip_value(stop, i)
        elif load_int(entry + FIELD) >= 0:
            value, i = read_int(stop, i)
            store_int(fields + load_int(entry + FIELD), value)
            saw(fields, load_int(entry + HAS))
        else:
            i = take_arg(stop, i, entry, fields, tables, state)
        if i < 0:
            return i
        i, length, word, key = next_key(stop, i, False)
    return i
