"""Compiled code that finds an event's args in its own JSON and takes the wanted ones.

``wanted_args.py`` describes where the wanted args are stored.
"""

from __future__ import annotations

import numpy as np

from augment.kernels import tokens
from augment.kernels.dictionary import FULL, hash_bytes, intern, same_bytes
from augment.kernels.memory import (
    Column,
    compiled,
    compiled_apart,
    load_byte,
    load_int,
    load_word,
    record_at,
    size_of,
    store_byte,
    store_int,
    store_int32,
    trailing_zeros,
)
from augment.kernels.tokens import INCOMPLETE, ODD, ZERO, plain_end, read_int, skip_blank, skip_value, string_end
from augment.kernels.wanted_args import IS_CODE, KEY_BITS, KEY_MIXER, KEY_SLOTS, OF_ARGS, UNKNOWN, Gap, Key, Wanted

SEVEN = np.uint64(7)
OPEN_BRACES = np.uint64(0x7B7B7B7B7B7B7B7B)
ARGS_KEY = int.from_bytes(b'"args"', "little")
KEY_WIDTH, key_at = size_of(Key), record_at(Key)
GAP_WIDTH, gap_at = size_of(Gap), record_at(Gap)
LONGEST_GAP = 256
MIXER, KEY_SHIFT = np.uint64(KEY_MIXER), np.uint64(64 - KEY_BITS)


@compiled
def find_args(start: int, stop: int) -> int:
    """The address of the args object of the event at ``start``; 0 if there is none, :data:`ODD` if Python must look.

    The args object begins at the first brace after the event's own brace. If that brace may lie in a string or in
    another member, the members are read one by one.
    """
    i: int = start + 1
    while i < stop:
        word = load_word(i) ^ OPEN_BRACES
        matches = (word - tokens.LOW) & ~word & tokens.HIGH
        if matches == ZERO:
            i += 8
            continue
        i += np.int64((trailing_zeros(matches) - SEVEN) >> np.uint64(3))
        if i >= stop:
            return 0
        before = i - 1
        while load_byte(before) <= 32:
            before -= 1
        character = load_byte(before)
        if character == tokens.COLON:
            before -= 1
            while load_byte(before) <= 32:
                before -= 1
            is_args = (load_word(before - 7) >> np.uint64(16)) == np.uint64(ARGS_KEY)
            if is_args and load_byte(before - 6) != tokens.BACKSLASH:
                return i
            return find_args_by_member(start, stop)
        opens = character == tokens.OPEN_BRACKET or character == tokens.OPEN_BRACE
        if opens or character == tokens.COMMA or character == tokens.QUOTE:
            return find_args_by_member(start, stop)
        i += 1
    return 0


@compiled
def find_args_by_member(start: int, stop: int) -> int:
    """As :func:`find_args`, but reads member by member. Of several args members, the last counts."""
    args: int = 0
    i: int = skip_blank(stop, start + 1)
    while load_byte(i) == tokens.QUOTE:
        key_end, _, escapes = string_end(stop, i + 1)
        if key_end < 0 or escapes != tokens.PLAIN:
            return ODD
        is_args = key_end - i == 5 and (load_word(key_end - 7) >> np.uint64(16)) == np.uint64(ARGS_KEY)
        i = skip_blank(stop, key_end + 1)
        if load_byte(i) != tokens.COLON:
            return ODD
        i = skip_blank(stop, i + 1)
        if is_args:
            args = i if load_byte(i) == tokens.OPEN_BRACE else 0
        i = skip_value(stop, i)
        if i < 0:
            return ODD
        i = skip_blank(stop, i)
        if load_byte(i) == tokens.CLOSE_BRACE:
            return args
        if load_byte(i) != tokens.COMMA:
            return ODD
        i = skip_blank(stop, i + 1)
    return ODD


@compiled
def next_key(stop: int, i: int, first: bool) -> tuple[int, int, np.uint64, int]:
    """Move from after a value (or from an opening brace, if ``first``) to the next member.

    Returns the position of the member's value, the length of its key, the :func:`key_word` of the key, and the key's
    position. At the end of the object the length is -1 and the position is after the closing brace. On failure the
    position is :data:`INCOMPLETE` or :data:`ODD`.
    """
    i = skip_blank(stop, i)
    if i >= stop:
        return INCOMPLETE, 0, ZERO, 0
    if load_byte(i) == tokens.CLOSE_BRACE:
        return i + 1, -1, ZERO, 0
    if not first:
        if load_byte(i) != tokens.COMMA:
            return ODD, 0, ZERO, 0
        i = skip_blank(stop, i + 1)
        if i >= stop:
            return INCOMPLETE, 0, ZERO, 0
    if load_byte(i) != tokens.QUOTE:
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
    if load_byte(i) != tokens.COLON:
        return ODD, 0, ZERO, 0
    i = skip_blank(stop, i + 1)
    return (i if i < stop else INCOMPLETE), length, word, key


@compiled
def find_key(length: int, word: np.uint64, key: int, wanted: Wanted) -> int:
    """The address of the entry of the key at ``key``; its length is -1 if that arg is not wanted."""
    slot = np.int64((word + np.uint64(length)) * MIXER >> KEY_SHIFT)
    while True:
        at: int = wanted.keys + KEY_WIDTH * slot
        entry = key_at(at)
        if entry.length < 0:
            return at
        if entry.length == length and entry.word == word and (length <= 8 or same_bytes(entry.text, key, length)):
            return at
        slot = (slot + 1) & (KEY_SLOTS - 1)


@compiled
def pass_gap(stop: int, i: int, before: int, wanted: Wanted) -> tuple[int, int, np.uint64, int, int]:
    """As :func:`next_key`, with the address of the key's entry, and what is now ``before`` the next gap.

    What followed the last time is likely to follow again: its bytes are compared first, not read.
    """
    number = load_int(wanted.gap_nexts + 8 * before)
    if number >= 0:
        end = i + load_int(wanted.gaps.sizes + 8 * number)
        text = wanted.gaps.pool + load_int(wanted.gaps.starts + 8 * number)
        if end < stop and same_bytes(i, text, end - i):
            gap = gap_at(wanted.gap_table + GAP_WIDTH * number)
            if gap.length < 0 or load_byte(end) > 32:
                return end, gap.length, gap.word, gap.entry, UNKNOWN + 1 + number
    return read_gap(stop, i, before, wanted)


@compiled_apart
def read_gap(stop: int, i: int, before: int, wanted: Wanted) -> tuple[int, int, np.uint64, int, int]:
    """As :func:`pass_gap`, for a gap that did not come here last time."""
    after, length, word, key = next_key(stop, i, before < UNKNOWN)
    if after < 0:
        return after, 0, ZERO, 0, UNKNOWN
    entry = find_key(length, word, key, wanted) if length >= 0 else 0
    number = FULL
    if after - i <= LONGEST_GAP:
        number = intern(i, after - i, hash_bytes(i, after - i, ZERO), wanted.gaps)
    if number == FULL:
        return after, length, word, entry, UNKNOWN
    store_int(wanted.gap_nexts + 8 * before, number)
    gap = gap_at(wanted.gap_table + GAP_WIDTH * number)
    gap.length = length
    gap.word = word
    gap.entry = entry
    return after, length, word, entry, UNKNOWN + 1 + number


@compiled
def begin_args(row: int, wanted: Wanted) -> None:
    """Begin the args of ``row``. Args of an earlier event that was not kept are discarded."""
    wanted.row = row
    wanted.taken = wanted.count
    wanted.seen = 0
    wanted.has = 0


@compiled
def keep_args(wanted: Wanted) -> None:
    """Keep the args that were taken of the row."""
    wanted.count = wanted.taken


@compiled_apart
def take_arg(stop: int, i: int, entry: Key, wanted: Wanted) -> int:
    """Take the value at ``i`` of a wanted arg. Returns the position after it, or :data:`FULL`."""
    number, taken = entry.number, wanted.taken
    bit = np.int64(1) << number
    if wanted.seen & bit:
        return ODD  # of two equal keys, the last counts, whatever its value
    if taken >= wanted.room:
        return FULL
    value, after = 0, ODD
    if entry.is_text == 0:
        value, after = read_int(stop, i)
        if after > i + 1 and load_byte(i) == tokens.ZERO_DIGIT:
            after = ODD  # JSON has no such number
    if after == ODD:
        after = skip_value(stop, i)
        if after < 0:
            return after
        value = intern(i, after - i, hash_bytes(i, after - i, ZERO), wanted.texts)
        if value == FULL:
            return FULL
        number += IS_CODE
    if after < 0:
        return after
    store_int32(wanted.rows + 4 * taken, wanted.row)
    store_byte(wanted.kinds + taken, number)
    store_int(wanted.values + 8 * taken, value)
    wanted.taken = taken + 1
    wanted.seen |= bit
    return after


@compiled
def take_args(stop: int, i: int, row: int, wanted: Wanted) -> int:
    """Take the wanted args from the args object of ``row`` that opens at ``i``. Returns the position after the
    object.
    """
    begin_args(row, wanted)
    i, length, _, address, before = pass_gap(stop, i + 1, OF_ARGS, wanted)
    while i >= 0 and length >= 0:
        entry = key_at(address)
        if entry.length < 0:
            i = skip_value(stop, i)
        elif entry.field >= 0:
            value, i = read_int(stop, i)
            wanted.fields[entry.field] = value
            wanted.has |= np.int64(1) << entry.field
        else:
            i = take_arg(stop, i, entry, wanted)
        if i < 0:
            return i
        i, length, _, address, before = pass_gap(stop, i, before, wanted)
    return i


@compiled
def scan_columns(
    origin: int, base: int, place: int, offsets: Column, lengths: Column, first: int, wanted: Wanted
) -> int:
    """The loop of ``facts/source/event_args.py``: takes the args of the rows from ``place`` on. Returns the
    number of rows when all are done, the place of a row that Python must read, or ``-1 - place`` when the columns are
    full at that row.

    ``origin`` is the address of byte ``base`` of the text. ``offsets`` and ``lengths`` locate each row in the text.
    Rows are numbered from ``first`` on.
    """
    while place < len(offsets):
        start = origin + offsets[place] - base
        stop = start + lengths[place]
        args = find_args(start, stop)
        if args == ODD:
            return place
        if args:
            i = take_args(stop, args, first + place, wanted)
            if i == FULL:
                return np.int64(-1) - place
            if i < 0:
                return place
            if load_byte(skip_blank(stop, i)) != tokens.CLOSE_BRACE and find_args_by_member(start, stop) != args:
                return place
            keep_args(wanted)
        place += 1
    return place
