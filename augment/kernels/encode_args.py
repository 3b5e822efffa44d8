"""Compiled code of the Perfetto writer: encodes args from the events' own JSON without a Python object per event.

Integers are encoded directly. Any other value is looked up by the bytes of key and value in a dictionary that Python
fills. The key of an integer is looked up in the same way. Events of unusual form are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.args import find_args, find_args_by_member
from augment.kernels.dictionary import hash_bytes, look_up
from augment.kernels.encode_layout import (
    ARGS_END,
    FULL,
    KEYS,
    MISS,
    MISS_END,
    MISS_HASH,
    MISS_IS_KEY,
    MISS_START,
    MOST_KEYS,
    ODD_ROW,
    PACKET_ROOM,
)
from augment.kernels.encode_packets import WORD, copy_bytes, put_varint, varint_size
from augment.kernels.interned import BYTES
from augment.kernels.known_bytes import CODE_SIZES, CODES
from augment.kernels.memory import (
    compiled,
    load_byte,
    load_int,
    load_word,
    quotient_bits,
    store_byte,
    store_int,
)
from augment.kernels.tokens import (
    BAD_ESCAPE,
    CLOSE_BRACE,
    COLON,
    COMMA,
    DOT,
    MINUS,
    NINE_DIGIT,
    ODD,
    QUOTE,
    ZERO,
    ZERO_DIGIT,
    skip_blank,
    skip_value,
    string_end,
)

IS_KEY = np.uint64(0x5851F42D4C957F2D)  #: distinguishes a key from a key with its value
SIGN = np.iinfo(np.int64).min  #: the bit of a float's sign
MOST_DIGITS = 15  #: the most digits of a float that is computed as the quotient of two exact floats


@compiled
def put_key(out: int, entry: int, size: int, tables: int) -> int:
    """The tag, length and key of an arg whose value takes ``size`` bytes."""
    known: int = load_int(load_int(tables + CODE_SIZES) + WORD * entry)
    store_byte(out, 0x22)
    out = put_varint(out + 1, known + size)
    copy_bytes(out, load_int(tables + BYTES) + load_int(load_int(tables + CODES) + WORD * entry), known)
    return out + known


@compiled
def put_number(i: int, stop: int, entry: int, out: int, tables: int) -> tuple[int, int]:
    """Write the arg whose number begins at ``i``. Returns the position after it in the text (:data:`ODD` if it was not
    written) and the position in the output. Integers of up to 18 digits are written, and floats for which a single
    division gives the nearest double.
    """
    negative = load_byte(i) == MINUS
    if negative:
        i += 1
    first = i
    value = np.int64(0)
    while ZERO_DIGIT <= load_byte(i) <= NINE_DIGIT and i < stop and i - first < 19:
        value = value * 10 + load_byte(i) - ZERO_DIGIT
        i += 1
    digits = i - first
    if digits == 0 or digits > 18 or (digits > 1 and load_byte(first) == ZERO_DIGIT):
        return ODD, out
    character = load_byte(i)
    if character == COMMA or character == CLOSE_BRACE or character <= 32:
        if negative:
            value = -value
        out = put_key(out, entry, 1 + varint_size(value), tables)
        store_byte(out, 0x20)
        return i, put_varint(out + 1, value)
    if character != DOT:
        return ODD, out
    i += 1
    point = i
    while ZERO_DIGIT <= load_byte(i) <= NINE_DIGIT and i < stop and digits + i - point <= MOST_DIGITS:
        value = value * 10 + load_byte(i) - ZERO_DIGIT
        i += 1
    character = load_byte(i)
    decimals = i - point
    if decimals == 0 or digits + decimals > MOST_DIGITS:
        return ODD, out
    if not (character == COMMA or character == CLOSE_BRACE or character <= 32):
        return ODD, out
    power = np.int64(1)
    for _ in range(decimals):
        power *= 10
    bits = quotient_bits(value, power)
    if negative:
        bits |= SIGN
    out = put_key(out, entry, 9, tables)
    store_byte(out, 0x29)
    store_int(out + 1, bits)
    return i, out + 9


@compiled
def repeated(hashed: np.uint64, count: int, bloom: np.uint64, state: int) -> bool:
    """Whether a key with this hash is among the first ``count`` keys of the event."""
    if bloom & (np.uint64(1) << (hashed >> np.uint64(58))) == ZERO:
        return False
    for k in range(count):  # noqa: SIM110 - numba does not compile any()
        if load_word(state + KEYS + WORD * k) == hashed:
            return True
    return False


@compiled
def put_args(i: int, stop: int, out: int, last: int, tables: int, state: int) -> int:
    """Write the args of the object that opens at ``i``. Returns the address after them, or ``-1 - reason``."""
    count, bloom = 0, ZERO
    i = skip_blank(stop, i + 1)
    if load_byte(i) == CLOSE_BRACE:
        store_int(state + ARGS_END, i + 1)
        return out
    while True:
        if load_byte(i) != QUOTE or count >= MOST_KEYS:
            return -1 - ODD_ROW
        key_end, hashed, escapes = string_end(stop, i + 1)
        if key_end < 0 or escapes == BAD_ESCAPE or repeated(hashed, count, bloom, state):
            return -1 - ODD_ROW
        bloom |= np.uint64(1) << (hashed >> np.uint64(58))
        store_int(state + KEYS + WORD * count, np.int64(hashed))
        count += 1
        value = skip_blank(stop, key_end + 1)
        if load_byte(value) != COLON:
            return -1 - ODD_ROW
        value = skip_blank(stop, value + 1)
        character = load_byte(value)
        after = ODD
        if character == MINUS or ZERO_DIGIT <= character <= NINE_DIGIT:
            entry = look_up(i + 1, key_end - i - 1, hashed ^ IS_KEY, tables)
            if entry < 0:
                return missed(i + 1, key_end, hashed ^ IS_KEY, True, state)
            if out + PACKET_ROOM + load_int(load_int(tables + CODE_SIZES) + WORD * entry) > last:
                return -1 - FULL
            after, out = put_number(value, stop, entry, out, tables)
        if after == ODD:
            after = skip_value(stop, value)
            if after < 0:
                return -1 - ODD_ROW
            hashed = hash_bytes(value, after - value, hashed)
            entry = look_up(i, after - i, hashed, tables)
            if entry < 0:
                return missed(i, after, hashed, False, state)
            size = load_int(load_int(tables + CODE_SIZES) + WORD * entry)
            if out + size + PACKET_ROOM > last:
                return -1 - FULL
            copy_bytes(out, load_int(tables + BYTES) + load_int(load_int(tables + CODES) + WORD * entry), size)
            out += size
        i = skip_blank(stop, after)
        if load_byte(i) == CLOSE_BRACE:
            store_int(state + ARGS_END, i + 1)
            return out
        if load_byte(i) != COMMA:
            return -1 - ODD_ROW
        i = skip_blank(stop, i + 1)


@compiled
def missed(start: int, end: int, hashed: np.uint64, is_key: bool, state: int) -> int:
    """Request the code of these bytes from Python."""
    store_int(state + MISS_START, start)
    store_int(state + MISS_END, end)
    store_int(state + MISS_HASH, np.int64(hashed))
    store_int(state + MISS_IS_KEY, 1 if is_key else 0)
    return -1 - MISS


@compiled
def event_args(start: int, stop: int, out: int, last: int, tables: int, state: int) -> int:
    """Write the args of the event between ``start`` and ``stop``. Returns the address after them, or ``-1 -
    reason``.
    """
    args = find_args(start, stop)
    if args == ODD:
        return -1 - ODD_ROW
    if args == 0:
        return out
    out = put_args(args, stop, out, last, tables, state)
    if out >= 0:
        end = skip_blank(stop, load_int(state + ARGS_END))
        if load_byte(end) != CLOSE_BRACE and find_args_by_member(start, stop) != args:
            return -1 - ODD_ROW
    return out
