"""Compiled code of the Perfetto writer: the blobs of many events. A blob holds the args in the event's text, then its
suffixes.

The text is the event's JSON (``encode_args.py``), or a packet in Perfetto's format, whose strings are numbered
differently: an integer or float is copied after its key, any other annotation is looked up by its bytes in a dictionary
that Python fills. Keys are looked up in the same way. Events of unusual form are left to Python as a whole.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.dictionary import Known, hash_bytes, look_up, put_in
from augment.kernels.encode_args import (
    IS_KEY,
    code_at,
    code_size,
    event_args,
    missed,
    put_float,
    put_key,
    put_whole,
    repeated,
)
from augment.kernels.encode_packets import (
    DONE,
    FULL,
    FULL_TABLES,
    MOST_KEYS,
    ODD_ROW,
    OTHER_STRINGS,
    PACKET_ROOM,
    WORD,
    Encoding,
    copy_bytes,
    put_varint,
    varint_size,
)
from augment.kernels.memory import Column, as_word, compiled, load_word, store_byte, store_int
from augment.kernels.packet_args import event_in
from augment.kernels.packet_scan import ANNOTATION, skip, varint
from augment.kernels.tokens import ALL, MULTIPLIER, ZERO


@compiled
def put_ready(data: int, size: int, out: int, last: int) -> int:
    """Write bytes that are encoded already. Returns the address after them, or ``-1 - FULL``."""
    if out + size + PACKET_ROOM > last:
        return -1 - FULL
    copy_bytes(out, data, size)
    return out + size


@compiled
def learn(known: Known, state: Encoding) -> bool:
    """Add the code of the bytes that were missed; False if the tables must grow first."""
    texts, entry = known.texts, known.texts.count
    size, hashed = state.miss_end - state.miss_start, as_word(state.miss_hash)
    texts.wanted = texts.used + size + state.code_size + 2 * WORD
    if texts.wanted > texts.pool_room:
        return False
    if not put_in(state.miss_start, size, hashed, -1 - look_up(state.miss_start, size, hashed, texts), texts):
        return False
    copy_bytes(texts.pool + texts.used, state.code, state.code_size)
    store_int(known.codes + WORD * entry, texts.used)
    store_int(known.code_sizes + WORD * entry, state.code_size)
    store_int(known.keys + WORD * entry, state.key_hash)
    texts.used += state.code_size
    state.code_size = 0
    return True


@compiled
def put_suffixes(
    row: int, suffix: int, rows: Column, starts: Column, sizes: Column, out: int, last: int, state: Encoding
) -> tuple[int, int]:
    """Write the suffixes of a row, from ``suffix`` on. Returns the address after them, or ``-1 - FULL``, and the
    suffix after them.
    """
    while out >= 0 and suffix < len(rows) and rows[suffix] == row:
        out = put_ready(state.suffixes + starts[suffix], sizes[suffix], out, last)
        suffix += 1
    return out, suffix


@compiled
def scan_args(
    origin: int, base: int, offsets: Column, lengths: Column, out: int, room: int, starts: Column, sizes: Column,
    first: int, suffix_rows: Column, suffix_starts: Column, suffix_sizes: Column, known: Known, state: Encoding,
    of_packets: int,
) -> int:  # fmt: skip
    """Write the blobs of the rows at ``offsets``, from ``state.row`` on, to ``out + state.at`` and on.

    ``origin`` is the address of byte ``base`` of the text. ``first`` is the number of the first row in the numbering of
    ``suffix_rows``. A row's blob begins with its args, or with what Python stored at ``state.ready`` if it is
    ``state.ready_row``; its suffixes follow. The text of rows is JSON, or packets in Perfetto's format. What was missed
    last is learnt first.
    """
    if state.code_size > 0 and not learn(known, state):
        return FULL_TABLES
    last = out + room
    while state.row < len(offsets):
        row, begin = state.row, out + state.at
        start = origin + offsets[row] - base
        stop = start + lengths[row]
        if state.ready_row == row:
            end = put_ready(state.ready, state.ready_size, begin, last)
        elif of_packets != 0:
            end = packet_args(start, stop, offsets[row], begin, last, known, state)
        else:
            end = event_args(start, stop, begin, last, known, state)
        end, suffix = put_suffixes(
            first + row, state.suffix, suffix_rows, suffix_starts, suffix_sizes, end, last, state
        )  # fmt: skip
        if end < 0:
            return -1 - end
        starts[row] = state.at
        sizes[row] = end - begin
        state.at = end - out
        state.row = row + 1
        state.suffix = suffix
    return DONE


KEY_NUMBER, KEY_NAME = 0x08, 0x52  #: tags within an annotation
UINT, INT, POINTER, DOUBLE = 0x18, 0x20, 0x38, 0x29
COUNTER, DOUBLE_COUNTER = 240, 353  #: tags of an event's fields that are args, too


@compiled
def packet_args(start: int, stop: int, offset: int, out: int, last: int, known: Known, state: Encoding) -> int:
    """Write the args of the packet between ``start`` and ``stop``, which begins at byte ``offset`` of the text.

    Returns:
        The address after the args, or ``-1 - reason``.
    """
    i, end, sequence = event_in(start, stop)
    if i == 0:
        return out
    if i < 0:
        return -1 - ODD_ROW
    if sequence != state.sequence or not state.begins <= offset < state.ends:
        state.sequence = sequence
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
        out = put_annotation(i, i + size, out, last, count, bloom, known, state)
        if out < 0:
            return out
        bloom |= np.uint64(1) << (as_word(state.keys[count]) >> np.uint64(58))
        count += 1
        i += size
    return out


@compiled
def put_annotation(
    start: int, stop: int, out: int, last: int, count: int, bloom: np.uint64, known: Known, state: Encoding
) -> int:
    """Write an annotation. Returns the address after it, or ``-1 - reason``. The hash of its key is appended to the
    ``count`` keys.
    """
    value = key_end(start, stop)
    if value < 0:
        return -1 - ODD_ROW
    hashed = hash_bytes(start, value - start, IS_KEY)
    entry = look_up(start, value - start, hashed, known.texts)
    if entry < 0:
        return missed(start, value, hashed, True, state)
    size = code_size(entry, known)
    key = (load_word(code_at(entry, known)) & (ALL >> (np.uint64(8) * np.uint64(8 - size)))) * MULTIPLIER
    if repeated(key, count, bloom, state):  # a Python dict keeps the last value at the place of the first key
        return -1 - ODD_ROW
    if out + PACKET_ROOM + size > last:
        return -1 - FULL
    after = put_plain(value, stop, entry, out, known)
    if after != 0:
        return after
    return put_whole(start, stop, hash_bytes(start, stop - start, ZERO), out, last, known, state)


@compiled
def key_end(start: int, stop: int) -> int:
    """The end of the key that an annotation begins with; -1 if it does not begin with a key."""
    tag, i = varint(start, stop)
    if i < 0 or (tag != KEY_NUMBER and tag != KEY_NAME):
        return -1
    return skip(tag, i, stop)


@compiled
def put_plain(i: int, stop: int, entry: int, out: int, known: Known) -> int:
    """Write an arg whose value is a plain number in the field at ``i``, which must end the arg; 0 if it is not one."""
    tag, i = varint(i, stop)
    if i < 0:
        return 0
    if tag == DOUBLE and stop - i == 8:
        return put_float(np.int64(load_word(i)), entry, out, known)
    if tag != UINT and tag != INT and tag != POINTER:
        return 0
    value, i = varint(i, stop)
    if i != stop:
        return 0
    out = put_key(out, entry, 1 + varint_size(value), known)
    store_byte(out, INT if tag == INT or value >= 0 else UINT)
    return put_varint(out + 1, value)
