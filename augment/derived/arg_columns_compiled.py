"""Compiled code of ``arg_columns.py``: few args of many events, from the events' own JSON.

Integers are stored as they stand. Any other value is looked up with its key, by their bytes, in a dictionary that
Python fills; so is each key. Events of odd forms are left to Python as a whole. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np

from augment.compiled.args import find_args, find_args_by_member
from augment.compiled.dictionary import find_known, hash_bytes
from augment.compiled.known_bytes import CODES, POOL
from augment.compiled.memory import compiled, load_byte, load_int, load_int32, store_byte, store_int
from augment.compiled.tokens import (
    BAD_ESCAPE,
    CLOSE_BRACE,
    COLON,
    COMMA,
    ODD,
    QUOTE,
    ZERO_DIGIT,
    read_int,
    skip_blank,
    skip_value,
    string_end,
)
from augment.derived.arg_columns_layout_compiled import (
    ARGS_END,
    DONE,
    KEY_CATEGORIES,
    KEY_INDEX,
    KEY_IS_TEXT,
    MISS,
    MISS_END,
    MISS_HASH,
    MISS_IS_KEY,
    MISS_START,
    ODD_ROW,
    PLAIN,
    ROW,
    VALUE,
    VALUE_FLAG,
)

WORD = 8
IS_KEY = np.uint64(0x5851F42D4C957F2D)  #: tells a key from a key with its value


@compiled
def missed(start: int, end: int, hashed: np.uint64, is_key: bool, state: int) -> int:
    """Ask Python for the code of these bytes."""
    store_int(state + MISS_START, start)
    store_int(state + MISS_END, end)
    store_int(state + MISS_HASH, np.int64(hashed))
    store_int(state + MISS_IS_KEY, 1 if is_key else 0)
    return MISS


@compiled
def code_of(entry: int, tables: int) -> int:
    """The address of the code of an entry."""
    return load_int(tables + POOL) + load_int(load_int(tables + CODES) + WORD * entry)


@compiled
def put(columns: int, index: int, row: int, flag: int, value: int) -> None:
    """Add what ``row`` has of column ``index``."""
    column = columns + 4 * WORD * index
    length = load_int(column + 3 * WORD)
    count = load_int(length)
    store_int(load_int(column) + WORD * count, row)
    store_int(load_int(column + WORD) + WORD * count, value)
    store_byte(load_int(column + 2 * WORD) + count, flag)
    store_int(length, count + 1)


@compiled
def take_value(
    i: int, value: int, stop: int, hashed: np.uint64, key: int, row: int, columns: int, tables: int, state: int
) -> int:
    """Store the ``value`` of the wanted arg that begins at ``i``: the position after it, or ``-1 -`` why not.

    ``hashed`` is of its key, whose code is at ``key``.
    """
    index = load_int(key + KEY_INDEX)
    if load_int(key + KEY_IS_TEXT) == 0:
        number, after = read_int(stop, value)
        if after >= 0 and (load_byte(value) != ZERO_DIGIT or after == value + 1):
            put(columns, index, row, PLAIN, number)
            return after
    after = skip_value(stop, value)
    if after < 0:
        return -1 - ODD_ROW
    hashed = hash_bytes(value, after - value, hashed)
    entry = find_known(i, after - i, hashed, tables)
    if entry < 0:
        return -1 - missed(i, after, hashed, False, state)
    code = code_of(entry, tables)
    put(columns, index, row, load_int(code + VALUE_FLAG), load_int(code + VALUE))
    return after


@compiled
def take_args(i: int, stop: int, category: int, row: int, columns: int, tables: int, state: int) -> int:
    """Store the wanted ones of the args of the object that opens at ``i``; :data:`DONE`, or why not.

    ``category`` is the bit of the event's category.
    """
    seen = np.int64(0)
    i = skip_blank(stop, i + 1)
    if load_byte(i) == CLOSE_BRACE:
        store_int(state + ARGS_END, i + 1)
        return DONE
    while True:
        if load_byte(i) != QUOTE:
            return ODD_ROW
        key_end, hashed, escapes = string_end(stop, i + 1)
        if key_end < 0 or escapes == BAD_ESCAPE:
            return ODD_ROW
        value = skip_blank(stop, key_end + 1)
        if load_byte(value) != COLON:
            return ODD_ROW
        value = skip_blank(stop, value + 1)
        entry = find_known(i + 1, key_end - i - 1, hashed ^ IS_KEY, tables)
        if entry < 0:
            return missed(i + 1, key_end, hashed ^ IS_KEY, True, state)
        code = code_of(entry, tables)
        index = load_int(code + KEY_INDEX)
        is_wanted = index >= 0 and load_int(code + KEY_CATEGORIES) & category != 0
        if is_wanted:
            bit = np.int64(1) << index
            if seen & bit != 0:
                return ODD_ROW  # of two, the last counts, whatever it is
            seen |= bit
            after = take_value(i, value, stop, hashed, code, row, columns, tables, state)
            if after < 0:
                return -1 - after
        else:
            after = skip_value(stop, value)
            if after < 0:
                return ODD_ROW
        i = skip_blank(stop, after)
        if load_byte(i) == CLOSE_BRACE:
            store_int(state + ARGS_END, i + 1)
            return DONE
        if load_byte(i) != COMMA:
            return ODD_ROW
        i = skip_blank(stop, i + 1)


@compiled
def scan_columns(
    origin: int, base: int, count: int, offsets: int, lengths: int, categories: int, rows: int, columns: int,
    tables: int, state: int,
) -> int:  # fmt: skip
    """Take the args of the ``count`` rows at ``offsets``, from ``state[ROW]`` on; :data:`DONE`, or why it stopped.

    ``origin`` is where the text's byte ``base`` is; ``categories`` are bytes, ``rows`` int64; ``columns`` holds four
    addresses a column: of its rows and values (int64), its flags (bytes), and of its length. There must be room for
    one entry a row.
    """
    place = load_int(state + ROW)
    while place < count:
        start = origin + load_int(offsets + WORD * place) - base
        stop = start + load_int32(lengths + 4 * place)
        store_int(state + ROW, place)
        args = find_args(start, stop)
        if args == ODD:
            return ODD_ROW
        if args:
            category = np.int64(1) << load_byte(categories + place)
            why = take_args(args, stop, category, load_int(rows + WORD * place), columns, tables, state)
            if why != DONE:
                return why
            end = skip_blank(stop, load_int(state + ARGS_END))
            if load_byte(end) != CLOSE_BRACE and find_args_by_member(start, stop) != args:
                return ODD_ROW
        place += 1
    return DONE
