"""Compiled search for an event's args in its own JSON. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from augment.compiled.memory import compiled, load_byte, load_word, trailing_zeros
from augment.compiled.tokens import (
    BACKSLASH,
    CLOSE_BRACE,
    COLON,
    COMMA,
    HIGH,
    LOW,
    ODD,
    OPEN_BRACE,
    OPEN_BRACKET,
    PLAIN,
    QUOTE,
    ZERO,
    skip_blank,
    skip_value,
    string_end,
)

SEVEN = np.uint64(7)
OPEN_BRACES = np.uint64(0x7B7B7B7B7B7B7B7B)
ARGS_KEY = int.from_bytes(b'"args"', "little")


@compiled
def find_args(start: int, stop: int) -> int:
    """The address of the args object of the event at ``start``; 0 if there is none, :data:`ODD` if Python must look.

    The first brace after the event's own opens them, unless it is in a string, or of another member.
    """
    i: int = start + 1
    while i < stop:
        word = load_word(i) ^ OPEN_BRACES
        found = (word - LOW) & ~word & HIGH
        if found == ZERO:
            i += 8
            continue
        i += np.int64((trailing_zeros(found) - SEVEN) >> np.uint64(3))
        if i >= stop:
            return 0
        before = i - 1
        while load_byte(before) <= 32:
            before -= 1
        character = load_byte(before)
        if character == COLON:
            before -= 1
            while load_byte(before) <= 32:
                before -= 1
            if (load_word(before - 7) >> np.uint64(16)) == np.uint64(ARGS_KEY) and load_byte(before - 6) != BACKSLASH:
                return i
            return find_args_by_member(start, stop)
        if character == COMMA or character == OPEN_BRACKET or character == OPEN_BRACE or character == QUOTE:
            return find_args_by_member(start, stop)
        i += 1
    return 0


@compiled
def find_args_by_member(start: int, stop: int) -> int:
    """The same, member by member; the last of several."""
    args: int = 0
    i: int = skip_blank(stop, start + 1)
    while load_byte(i) == QUOTE:
        key_end, _, escapes = string_end(stop, i + 1)
        if key_end < 0 or escapes != PLAIN:
            return ODD
        is_args = key_end - i == 5 and (load_word(key_end - 7) >> np.uint64(16)) == np.uint64(ARGS_KEY)
        i = skip_blank(stop, key_end + 1)
        if load_byte(i) != COLON:
            return ODD
        i = skip_blank(stop, i + 1)
        if is_args:
            args = i if load_byte(i) == OPEN_BRACE else 0
        i = skip_value(stop, i)
        if i < 0:
            return ODD
        i = skip_blank(stop, i)
        if load_byte(i) == CLOSE_BRACE:
            return args
        if load_byte(i) != COMMA:
            return ODD
        i = skip_blank(stop, i + 1)
    return ODD
