"""Compiled JSON token scanning: the innermost loops of the fast reader.

Positions are addresses. :data:`PADDING` bytes after ``stop`` may be loaded, whatever they hold, but nothing at or
beyond ``stop`` is interpreted as text. The result ``INCOMPLETE`` means that the text ends within the token.
"""
# numba's uint64 arithmetic falls to float64 when mixed with int64: every word operation below is uint64 on both sides

from __future__ import annotations

import numpy as np

from augment.kernels.memory import compiled, compiled_apart, load_byte, load_word, trailing_zeros

PADDING = 8  #: bytes that must exist after a text
PLAIN, ESCAPED, BAD_ESCAPE = 0, 1, 2
INCOMPLETE = -1
ODD = -2  #: a form that only the general reader can read

LOW = np.uint64(0x0101010101010101)
HIGH = np.uint64(0x8080808080808080)
QUOTES = np.uint64(0x2222222222222222)
LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)
BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
SALT = np.uint64(0xD6E8FEB86659FD93)
SHIFT = np.uint64(29)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint64(0)

QUOTE, BACKSLASH, COMMA, COLON = 34, 92, 44, 58
OPEN_BRACE, CLOSE_BRACE, OPEN_BRACKET, CLOSE_BRACKET = 123, 125, 91, 93
SHALLOW = 14  #: the greatest nesting within an event (which adds 2); deeper events are left to the general reader
LONGEST_WORD = 6  #: the length of ``false`` and the byte after it
LARGEST_MICROSECONDS = 9_000_000_000_000_000  #: of which the nanoseconds fit int64, with room to round
MINUS, DOT, ZERO_DIGIT, NINE_DIGIT = 45, 46, 48, 57
IS_ESCAPE = np.zeros(256, np.bool_)
IS_ESCAPE[[ord(character) for character in '"\\/bfnrtu']] = True


IS_NUMBER_PART = np.zeros(256, np.bool_)
IS_NUMBER_PART[[ord(character) for character in "0123456789+-.eE"]] = True
SPACES = np.uint64(0x2020202020202020)
ZERO_DIGITS = np.uint64(0x3030303030303030)
TO_HIGH = np.uint64(0x7676767676767676)  #: added to bytes below 128, sets the high bit of those above 9
POWERS = 10 ** np.arange(9)


@compiled
def skip_blank(stop: int, i: int) -> int:
    """The first position from ``i`` on that holds no blank; at most ``stop``."""
    while i < stop and load_byte(i) <= 32:
        i += 1
        if i + 8 <= stop and load_word(i) == SPACES:
            i += 8
    return i


@compiled
def string_end(stop: int, i: int) -> tuple[int, np.uint64, int]:
    """Scan a string's body from ``i``: the position of its closing quote, the body's hash, and its escapes:

    :data:`PLAIN`, :data:`ESCAPED`, or :data:`BAD_ESCAPE` where JSON knows no such escape.
    """
    hashed, salt = ZERO, SALT
    while i < stop:
        word = load_word(i)
        quotes = word ^ QUOTES
        slashes = word ^ BACKSLASHES
        # the lowest high bit of each is exact: only bytes above a true match can be false ones
        matches = ((quotes - LOW) & ~quotes & HIGH) | ((slashes - LOW) & ~slashes & HIGH)
        if matches == ZERO:
            hashed += (word ^ salt) * MULTIPLIER  # a sum of products: no product waits for the one before
            salt += SALT
            i += 8
            continue
        bit = trailing_zeros(matches) - np.uint64(7)
        at = i + np.int64(bit >> np.uint64(3))
        if at >= stop:
            return INCOMPLETE, hashed, PLAIN
        if load_byte(at) == BACKSLASH:
            return escaped_string_end(stop, at, hashed)
        if bit != ZERO:
            hashed += ((word & (ALL >> (np.uint64(64) - bit))) ^ salt) * MULTIPLIER
        return at, hashed ^ (hashed >> SHIFT), PLAIN
    return INCOMPLETE, hashed, PLAIN


@compiled_apart
def escaped_string_end(stop: int, i: int, hashed: np.uint64) -> tuple[int, np.uint64, int]:
    """As :func:`string_end`, byte by byte, for the rest of a string from its first backslash on."""
    escapes = ESCAPED
    while i < stop:
        character = load_byte(i)
        if character == QUOTE:
            return i, hashed, escapes
        width = 1
        if character == BACKSLASH:
            width = 2
            if i + 1 < stop and not IS_ESCAPE[load_byte(i + 1)]:
                escapes = BAD_ESCAPE
        for k in range(i, min(i + width, stop)):
            hashed = (hashed ^ np.uint64(load_byte(k))) * MULTIPLIER
            hashed ^= hashed >> SHIFT
        i += width
    return INCOMPLETE, hashed, escapes


@compiled
def plain_end(stop: int, i: int) -> int:
    """The position of the closing quote of a string's body at ``i``; :data:`ODD` if a backslash comes first."""
    while i < stop:
        word = load_word(i)
        quotes = word ^ QUOTES
        slashes = word ^ BACKSLASHES
        matches = ((quotes - LOW) & ~quotes & HIGH) | ((slashes - LOW) & ~slashes & HIGH)
        if matches != ZERO:
            at = i + np.int64(trailing_zeros(matches) >> np.uint64(3))
            if at >= stop:
                return INCOMPLETE
            return at if load_byte(at) == QUOTE else ODD
        i += 8
    return INCOMPLETE


@compiled
def skip_string(stop: int, i: int) -> int:
    """The position after the string that opens at ``i``; :data:`ODD` if it has an escape that JSON does not allow."""
    at = plain_end(stop, i + 1)
    if at == ODD:
        at, _, escapes = string_end(stop, i + 1)
        if at >= 0 and escapes == BAD_ESCAPE:
            return ODD
    return at + 1 if at >= 0 else INCOMPLETE


@compiled_apart
def skip_nested(stop: int, i: int, strict: bool) -> int:
    """The position after the object or array that opens at ``i``. Only brackets and strings are examined.

    If ``strict``, :data:`ODD` where a string has a bad escape, or brackets nest deeper than :data:`SHALLOW`.
    """
    depth = 0
    while i < stop:
        character = load_byte(i)
        if character == QUOTE:
            i, _, escapes = string_end(stop, i + 1)
            if i < 0:
                return INCOMPLETE
            if strict and escapes == BAD_ESCAPE:
                return ODD
        elif character == OPEN_BRACE or character == OPEN_BRACKET:
            depth += 1
            if strict and depth > SHALLOW:
                return ODD
        elif character == CLOSE_BRACE or character == CLOSE_BRACKET:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return INCOMPLETE


@compiled
def skip_value(stop: int, i: int) -> int:
    """The position after the value that begins at ``i``; :data:`ODD` if it is not a string, number, object or array."""
    if i >= stop:
        return INCOMPLETE
    character = load_byte(i)
    if character == QUOTE:
        return skip_string(stop, i)
    if character == OPEN_BRACE or character == OPEN_BRACKET:
        return skip_nested(stop, i, True)
    if not (ZERO_DIGIT <= character <= NINE_DIGIT or character == MINUS):
        return skip_word(stop, i)
    i += 1
    while i < stop and IS_NUMBER_PART[load_byte(i)]:
        i += 1
    return i if i < stop else INCOMPLETE


@compiled
def skip_word(stop: int, i: int) -> int:
    """The position after ``true``, ``false`` or ``null`` at ``i``; :data:`ODD` for anything else."""
    word = load_word(i)
    first_four = word & np.uint64(0xFFFFFFFF)
    if first_four == np.uint64(0x65757274) or first_four == np.uint64(0x6C6C756E):  # true, null
        end = i + 4
    elif word & np.uint64(0xFFFFFFFFFF) == np.uint64(0x65736C6166):  # false
        end = i + 5
    else:
        return ODD if stop - i >= LONGEST_WORD else INCOMPLETE
    return end if end < stop else INCOMPLETE


@compiled
def eight_digits(word: np.uint64) -> int:
    """The number whose decimal digits are the bytes of ``word``, the first the highest digit."""
    word = (word * np.uint64(10)) + (word >> np.uint64(8))  # digits to pairs, to groups of four, to all eight
    low = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return np.int64((low + high) >> np.uint64(32))


@compiled
def read_int(stop: int, i: int) -> tuple[int, int]:
    """The integer at ``i`` and the position after it; :data:`ODD` if it is not an integer or has more than 18
    digits.
    """
    negative = i < stop and load_byte(i) == MINUS
    if negative:
        i += 1
    first = i
    value, i = read_digits(i, stop, 0, 19)
    if i >= stop:
        return 0, INCOMPLETE
    if i == first or i - first > 18 or IS_NUMBER_PART[load_byte(i)] or load_byte(i) == QUOTE:
        return 0, ODD
    return (-value if negative else value), i


@compiled
def read_digits(i: int, stop: int, value: int, most: int) -> tuple[int, int]:
    """``value`` followed by at most so many digits from ``i`` on, and the position after them."""
    last = min(i + most, stop)
    count: int = 8
    while i < last and count == 8:
        word = load_word(i) ^ ZERO_DIGITS
        others = (word | (word + TO_HIGH)) & HIGH  # the lowest is exact
        if others != ZERO:
            count = np.int64(trailing_zeros(others) >> np.uint64(3))
        count = min(count, last - i)
        if count == 0:
            break
        value = value * POWERS[count] + eight_digits(word << np.uint64(8 * (8 - count)))
        i += count
    return value, i


@compiled
def read_ns(stop: int, i: int) -> tuple[int, int]:
    """Decimal microseconds at ``i`` as integer ns, a half rounded to even, and the position after them.

    A quoted number is accepted, too. :data:`ODD` if it has an exponent or exceeds int64 ns.
    """
    quoted = i < stop and load_byte(i) == QUOTE
    if quoted:
        i += 1
    negative = i < stop and load_byte(i) == MINUS
    if negative:
        i += 1
    first = i
    value, i = read_digits(i, stop, 0, 17)
    if i >= stop:
        return 0, INCOMPLETE
    if i == first or value > LARGEST_MICROSECONDS:
        return 0, ODD
    value, i = read_fraction(stop, i, value)
    if quoted and i >= 0:
        if load_byte(i) != QUOTE:
            return 0, ODD
        i += 1
    return (-value if negative else value), i


@compiled
def read_fraction(stop: int, i: int, value: int) -> tuple[int, int]:
    """``value`` microseconds with the decimals at ``i``, if there are any, as integer ns, a half rounded to even; and
    the position after them.
    """
    digits = 0
    rest = 0  # the digits after the third decimal, compared to a half: 0 nothing, 1 below, 2 exactly, 3 above
    if load_byte(i) == DOT:
        fraction = i + 1
        value, i = read_digits(fraction, stop, value, 3)
        digits = i - fraction
        if digits == 0:
            return 0, ODD
        while i < stop and ZERO_DIGIT <= load_byte(i) <= NINE_DIGIT:
            digit = load_byte(i) - ZERO_DIGIT
            if i == fraction + 3:
                rest = 3 if digit > 5 else 2 if digit == 5 else 1 if digit > 0 else 0
            elif digit > 0:
                rest = 3 if rest >= 2 else 1
            i += 1
    if i >= stop:
        return 0, INCOMPLETE
    if IS_NUMBER_PART[load_byte(i)]:
        return 0, ODD
    for _ in range(3 - digits):
        value *= 10
    return value + (1 if rest == 3 or (rest == 2 and value & 1) else 0), i
