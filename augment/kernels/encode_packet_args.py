"""Compiled code of the Perfetto writer: encodes args from packets in Perfetto's format, whose strings are numbered
differently.

An integer or float is copied after its key. Any other annotation is looked up by its bytes in a dictionary that Python
fills. Keys are looked up in the same way. Events of unusual form are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.dictionary import hash_bytes, look_up
from augment.kernels.encode_args import IS_KEY, missed, put_key, repeated
from augment.kernels.encode_layout import (
    BEGINS,
    ENDS,
    FULL,
    KEYS,
    MOST_KEYS,
    ODD_ROW,
    OTHER_STRINGS,
    PACKET_ROOM,
    SEQUENCE,
)
from augment.kernels.encode_packets import WORD, copy_bytes, put_varint, varint_size
from augment.kernels.interned import BYTES
from augment.kernels.known_bytes import CODE_SIZES, CODES
from augment.kernels.memory import compiled, load_int, load_word, store_byte, store_int
from augment.kernels.packet_args import event_in
from augment.kernels.packet_scan import ANNOTATION, skip, varint
from augment.kernels.tokens import ALL, MULTIPLIER, ZERO

KEY_NUMBER, KEY_NAME = 0x08, 0x52  #: tags within an annotation
UINT, INT, POINTER, DOUBLE = 0x18, 0x20, 0x38, 0x29
COUNTER, DOUBLE_COUNTER = 240, 353  #: tags of an event's fields that are args, too


@compiled
def packet_args(start: int, stop: int, offset: int, out: int, last: int, tables: int, state: int) -> int:
    """Write the args of the packet between ``start`` and ``stop``, which begins at byte ``offset`` of the text.

    Returns:
        The address after the args, or ``-1 - reason``.
    """
    i, end, sequence = event_in(start, stop)
    if i == 0:
        return out
    if i < 0:
        return -1 - ODD_ROW
    known = load_int(state + BEGINS) <= offset and offset < load_int(state + ENDS)
    if not known or sequence != load_int(state + SEQUENCE):
        store_int(state + SEQUENCE, sequence)
        return -1 - OTHER_STRINGS
    count, bloom = 0, ZERO
    while i < end:
        tag, i = varint(i, end)
        if i < 0 or tag == COUNTER or tag == DOUBLE_COUNTER:
            return -1 - ODD_ROW
        if tag != ANNOTATION:
            i = skip(tag, i, end)
            if i < 0:
                return -1 - ODD_ROW
            continue
        size, i = varint(i, end)
        if i < 0 or size < 0 or size > end - i or count >= MOST_KEYS:
            return -1 - ODD_ROW
        out = put_annotation(i, i + size, out, last, count, bloom, tables, state)
        if out < 0:
            return out
        bloom |= np.uint64(1) << (load_word(state + KEYS + WORD * count) >> np.uint64(58))
        count += 1
        i += size
    return out


@compiled
def put_annotation(
    start: int, stop: int, out: int, last: int, count: int, bloom: np.uint64, tables: int, state: int
) -> int:
    """Write an annotation. Returns the address after it, or ``-1 - reason``. The hash of its key is appended to the
    ``count`` KEYS.
    """
    value = key_end(start, stop)
    if value < 0:
        return -1 - ODD_ROW
    hashed = hash_bytes(start, value - start, IS_KEY)
    entry = look_up(start, value - start, hashed, tables)
    if entry < 0:
        return missed(start, value, hashed, True, state)
    size = load_int(load_int(tables + CODE_SIZES) + WORD * entry)
    code = load_word(load_int(tables + BYTES) + load_int(load_int(tables + CODES) + WORD * entry))
    which = (code & (ALL >> (np.uint64(8) * np.uint64(8 - size)))) * MULTIPLIER
    if repeated(which, count, bloom, state):  # a Python dict keeps the last value at the place of the first key
        return -1 - ODD_ROW
    store_int(state + KEYS + WORD * count, np.int64(which))
    if out + PACKET_ROOM + size > last:
        return -1 - FULL
    after = put_plain(value, stop, entry, out, tables)
    if after != 0:
        return after
    hashed = hash_bytes(start, stop - start, ZERO)
    entry = look_up(start, stop - start, hashed, tables)
    if entry < 0:
        return missed(start, stop, hashed, False, state)
    size = load_int(load_int(tables + CODE_SIZES) + WORD * entry)
    if out + size + PACKET_ROOM > last:
        return -1 - FULL
    copy_bytes(out, load_int(tables + BYTES) + load_int(load_int(tables + CODES) + WORD * entry), size)
    return out + size


@compiled
def key_end(start: int, stop: int) -> int:
    """The end of the key that an annotation begins with; -1 if it does not begin with a key."""
    tag, i = varint(start, stop)
    if i < 0 or (tag != KEY_NUMBER and tag != KEY_NAME):
        return -1
    return skip(tag, i, stop)


@compiled
def put_plain(i: int, stop: int, entry: int, out: int, tables: int) -> int:
    """Write an arg whose value is a plain number in the field at ``i``, which must end the arg; 0 if it is not one."""
    tag, i = varint(i, stop)
    if i < 0:
        return 0
    if tag == DOUBLE and stop - i == 8:
        out = put_key(out, entry, 9, tables)
        store_byte(out, DOUBLE)
        store_int(out + 1, np.int64(load_word(i)))
        return out + 9
    if tag != UINT and tag != INT and tag != POINTER:
        return 0
    value, i = varint(i, stop)
    if i != stop:
        return 0
    out = put_key(out, entry, 1 + varint_size(value), tables)
    store_byte(out, INT if tag == INT or value >= 0 else UINT)
    return put_varint(out + 1, value)
