"""Compiled code of the Perfetto writer: encodes args from the events' own JSON without a Python object per event.

Integers are encoded directly. Any other value is looked up by the bytes of key and value in a dictionary that Python
fills. The key of an integer is looked up in the same way. Events of unusual form are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels import tokens
from augment.kernels.dictionary import Known, hash_bytes, look_up, same_bytes
from augment.kernels.encode_packets import (
    FULL,
    MISS,
    MOST_KEYS,
    ODD_ROW,
    PACKET_ROOM,
    WORD,
    Encoding,
    copy_bytes,
    put_varint,
    varint_size,
)
from augment.kernels.json_args import find_args, find_args_by_member
from augment.kernels.memory import as_word, compiled, load_byte, load_int, quotient_bits, store_byte, store_int
from augment.kernels.tokens import ODD, ZERO, read_digits, skip_blank, skip_value, string_end

IS_KEY = np.uint64(0x5851F42D4C957F2D)  #: distinguishes a key from a key with its value
SIGN = np.iinfo(np.int64).min  #: the bit of a float's sign
MOST_DIGITS = 15  #: the most digits of a float that is computed as the quotient of two exact floats


@compiled
def code_size(entry: int, known: Known) -> int:
    """The size of an entry's code."""
    return load_int(known.code_sizes + WORD * entry)


@compiled
def code_at(entry: int, known: Known) -> int:
    """The address of an entry's code."""
    return known.texts.pool + load_int(known.codes + WORD * entry)


@compiled
def put_key(out: int, entry: int, size: int, known: Known) -> int:
    """The tag, length and key of an arg whose value takes ``size`` bytes."""
    key_size = code_size(entry, known)
    store_byte(out, 0x22)
    out = put_varint(out + 1, key_size + size)
    copy_bytes(out, code_at(entry, known), key_size)
    return out + key_size


@compiled
def put_integer(value: int, entry: int, out: int, known: Known) -> int:
    """Write an arg. Returns the position after it."""
    out = put_key(out, entry, 1 + varint_size(value), known)
    store_byte(out, 0x20)
    return put_varint(out + 1, value)


@compiled
def put_float(bits: int, entry: int, out: int, known: Known) -> int:
    """Write an arg whose float has these bits. Returns the position after it."""
    out = put_key(out, entry, 9, known)
    store_byte(out, 0x29)
    store_int(out + 1, bits)
    return out + 9


@compiled
def put_whole(
    start: int, stop: int, hashed: np.uint64, out: int, last: int, known: Known, state: Encoding
) -> int:  # fmt: skip
    """Write the arg whose text has this hash, and note it. Returns the position after it, or ``-1 - reason``."""
    entry = look_up(start, stop - start, hashed, known.texts)
    if entry < 0:
        return missed(start, stop, hashed, False, state)
    state.arg = 2 * entry
    return put_code(entry, out, last, known)


@compiled
def put_code(entry: int, out: int, last: int, known: Known) -> int:
    """Write an entry's code. Returns the position after it, or ``-1 - FULL``."""
    size = code_size(entry, known)
    if out + size + PACKET_ROOM > last:
        return -1 - FULL
    copy_bytes(out, code_at(entry, known), size)
    return out + size


@compiled
def missed(start: int, end: int, hashed: np.uint64, is_key: bool, state: Encoding) -> int:
    """Request the code of these bytes from Python."""
    state.miss_start = start
    state.miss_end = end
    state.miss_hash = np.int64(hashed)
    state.miss_is_key = 1 if is_key else 0
    return -1 - MISS


@compiled
def repeated(hashed: np.uint64, count: int, bloom: np.uint64, state: Encoding) -> bool:
    """Whether a key with this hash is among the first ``count`` keys of the event. If not, it becomes the next."""
    if bloom & (np.uint64(1) << (hashed >> np.uint64(58))) != ZERO:
        for k in range(count):
            if as_word(state.keys[k]) == hashed:
                return True
    state.keys[count] = np.int64(hashed)
    return False


@compiled
def ends_number(character: int) -> bool:
    """Whether a number ends before this character."""
    return character == tokens.COMMA or character == tokens.CLOSE_BRACE or character <= 32


@compiled
def put_number(i: int, stop: int, entry: int, out: int, known: Known) -> tuple[int, int]:
    """Write the arg whose number begins at ``i``. Returns the position after it in the text (:data:`ODD` if it was not
    written) and the position in the output. Integers of up to 18 digits are written, and floats for which a single
    division gives the nearest double.
    """
    negative = load_byte(i) == tokens.MINUS
    first = i + 1 if negative else i
    value, i = read_digits(first, stop, 0, 19)
    digits = i - first
    if digits == 0 or digits > 18 or (digits > 1 and load_byte(first) == tokens.ZERO_DIGIT):
        return ODD, out
    if ends_number(load_byte(i)):
        return i, put_integer(-value if negative else value, entry, out, known)
    if load_byte(i) != tokens.DOT:
        return ODD, out
    value, after = read_digits(i + 1, stop, value, MOST_DIGITS + 1 - digits)
    decimals = after - i - 1
    if decimals == 0 or digits + decimals > MOST_DIGITS or not ends_number(load_byte(after)):
        return ODD, out
    power = np.int64(1)
    for _ in range(decimals):
        power *= 10
    bits = quotient_bits(value, power)
    return after, put_float(bits | SIGN if negative else bits, entry, out, known)


@compiled
def likely_end(i: int, stop: int, arg: int, known: Known) -> int:
    """Where the text of ``arg`` ends if it stands at ``i``: that of a key at its closing quote. 0 if other text stands
    there.
    """
    if arg < 0:
        return 0
    entry = arg >> 1
    size, text = (
        load_int(known.texts.sizes + WORD * entry),
        known.texts.pool + load_int(known.texts.starts + WORD * entry),
    )
    is_key = arg & 1
    end = i + is_key + size
    if end >= stop or not same_bytes(i + is_key, text, size):
        return 0
    character = load_byte(end)
    return end if (character == tokens.QUOTE if is_key else ends_number(character)) else 0


@compiled
def begin_arg(i: int, stop: int, arg: int, known: Known) -> tuple[int, int, np.uint64]:
    """``arg`` if it stands at ``i``, as :func:`likely_end` says, else -1; the end of its text, or of the key that
    stands there (-1: Python must look); and the hash of the key.
    """
    end = likely_end(i, stop, arg, known)
    if end > 0:
        return arg, end, as_word(load_int(known.keys + WORD * (arg >> 1)))
    end, hashed, escapes = string_end(stop, i + 1)
    return -1, -1 if escapes == tokens.BAD_ESCAPE else end, hashed


@compiled
def put_arg(
    i: int, key_end: int, hashed: np.uint64, entry: int, value: int, stop: int, out: int, last: int, known: Known,
    state: Encoding,
) -> tuple[int, int]:  # fmt: skip
    """Write the arg whose key, with this hash, opens at ``i``, and note it. Returns the position after it in the text,
    and the position in the output, or ``-1 - reason``. ``entry`` is that of the key; -1 if it is to be looked up.
    """
    character = load_byte(value)
    if character == tokens.MINUS or tokens.ZERO_DIGIT <= character <= tokens.NINE_DIGIT:
        if entry < 0:
            entry = look_up(i + 1, key_end - i - 1, hashed ^ IS_KEY, known.texts)
        if entry < 0:
            return 0, missed(i + 1, key_end, hashed ^ IS_KEY, True, state)
        if out + PACKET_ROOM + code_size(entry, known) > last:
            return 0, -1 - FULL
        state.arg = 2 * entry + 1
        after, out = put_number(value, stop, entry, out, known)
        if after != ODD:
            return after, out
    after = skip_value(stop, value)
    if after < 0:
        return 0, -1 - ODD_ROW
    return after, put_whole(i, after, hash_bytes(value, after - value, hashed), out, last, known, state)


@compiled
def put_args(i: int, stop: int, out: int, last: int, known: Known, state: Encoding) -> int:
    """Write the args of the object that opens at ``i``. Returns the address after them, or ``-1 - reason``.

    What followed an arg the last time is likely to follow it again: its bytes are compared first, not read.
    """
    count, bloom, next_arg = 0, ZERO, known.nexts
    i = skip_blank(stop, i + 1)
    while load_byte(i) != tokens.CLOSE_BRACE or count > 0:
        if load_byte(i) != tokens.QUOTE or count >= MOST_KEYS:
            return -1 - ODD_ROW
        arg, end, hashed = begin_arg(i, stop, load_int(next_arg), known)
        state.key_hash = np.int64(hashed)
        if end < 0 or repeated(hashed, count, bloom, state):
            return -1 - ODD_ROW
        bloom |= np.uint64(1) << (hashed >> np.uint64(58))
        count += 1
        if arg >= 0 and arg & 1 == 0:
            i, out = end, put_code(arg >> 1, out, last, known)
            state.arg = arg
        else:
            value = skip_blank(stop, end + 1)
            if load_byte(value) != tokens.COLON:
                return -1 - ODD_ROW
            value = skip_blank(stop, value + 1)
            i, out = put_arg(i, end, hashed, arg >> 1, value, stop, out, last, known, state)
        if out < 0:
            return out
        store_int(next_arg, state.arg)
        next_arg = known.nexts + WORD * (1 + (state.arg >> 1))
        i = skip_blank(stop, i)
        if load_byte(i) == tokens.CLOSE_BRACE:
            break
        if load_byte(i) != tokens.COMMA:
            return -1 - ODD_ROW
        i = skip_blank(stop, i + 1)
    state.args_end = i + 1
    return out


@compiled
def event_args(start: int, stop: int, out: int, last: int, known: Known, state: Encoding) -> int:
    """Write the args of the event between ``start`` and ``stop``. Returns the address after them, or ``-1 -
    reason``.
    """
    args = find_args(start, stop)
    if args == ODD:
        return -1 - ODD_ROW
    if args == 0:
        return out
    out = put_args(args, stop, out, last, known, state)
    if out >= 0:
        end = skip_blank(stop, state.args_end)
        if load_byte(end) != tokens.CLOSE_BRACE and find_args_by_member(start, stop) != args:
            return -1 - ODD_ROW
    return out
