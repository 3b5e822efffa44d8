"""Compiled code of the Perfetto writer: packets and args from columns.

All arguments are numbers and addresses, because calls with many column arguments would be slow.
"""

from __future__ import annotations

import numpy as np

from augment.kernels.encode_layout import PACKET_ROOM
from augment.kernels.memory import as_word, compiled, load_int, store_byte, store_int
from augment.kernels.tokens import ZERO

SEVEN = np.uint64(7)
LOW_SEVEN = np.uint64(127)
MORE_BYTES = np.uint64(128)
WORD = 8


@compiled
def put_varint(at: int, value: int) -> int:
    """Write a varint; the address after it."""
    rest = as_word(value)
    while rest > LOW_SEVEN:
        store_byte(at, np.int64((rest & LOW_SEVEN) | MORE_BYTES))
        rest >>= SEVEN
        at += 1
    store_byte(at, np.int64(rest))
    return at + 1


@compiled
def varint_size(value: int) -> int:
    """How many bytes :func:`put_varint` writes."""
    rest = as_word(value) >> SEVEN
    size = 1
    while rest != ZERO:
        rest >>= SEVEN
        size += 1
    return size


@compiled
def copy_bytes(to: int, start: int, size: int) -> None:
    """Copy by words. Up to 7 bytes beyond the end are read and written, too."""
    k = 0
    while k < size:
        store_int(to + k, load_int(start + k))
        k += WORD


@compiled
def put_packet(at: int, kind: int, ts: int, track: int, category: int, name: int, blob: int, size: int) -> int:
    """Write an event's packet, with the args in the ``size`` bytes at ``blob``. Returns the address after the
    packet.
    """
    event = 3 + varint_size(track) + size
    if category:
        event += 1 + varint_size(category)
    if name:
        event += 1 + varint_size(name)
    flags = kind != 2 and kind != 4
    content = 4 + varint_size(ts) + varint_size(event) + event
    if flags:
        content += 2
    store_byte(at, 0x0A)
    at = put_varint(at + 1, content)
    store_byte(at, 0x40)
    at = put_varint(at + 1, ts)
    store_byte(at, 0x50)
    store_byte(at + 1, 1)
    at += 2
    if flags:
        store_byte(at, 0x68)
        store_byte(at + 1, 2)
        at += 2
    store_byte(at, 0x5A)
    at = put_varint(at + 1, event)
    store_byte(at, 0x48)
    store_byte(at + 1, kind)
    store_byte(at + 2, 0x58)
    at = put_varint(at + 3, track)
    if category:
        store_byte(at, 0x18)
        at = put_varint(at + 1, category)
    if name:
        store_byte(at, 0x50)
        at = put_varint(at + 1, name)
    copy_bytes(at, blob, size)
    return at + size


@compiled
def encode_rows(
    row: int, stop: int, kinds: int, times: int, tracks: int, categories: int, names: int, blobs: int, starts: int,
    sizes: int, out: int, room: int, progress: int,
) -> int:  # fmt: skip
    """Write the packets from ``row`` on, until ``stop`` or until the output is full. Returns the next row. The end of
    the written bytes is stored at ``progress``.

    ``starts`` is 0 if there are no blobs.
    """
    at, last = out, out + room
    while row < stop:
        start = size = 0
        if starts:
            start, size = load_int(starts + WORD * row), load_int(sizes + WORD * row)
        if at + size + PACKET_ROOM > last:
            break
        kind, ts, track = load_int(kinds + WORD * row), load_int(times + WORD * row), load_int(tracks + WORD * row)
        category, name = load_int(categories + WORD * row), load_int(names + WORD * row)
        at = put_packet(at, kind, ts, track, category, name, blobs + start, size)
        row += 1
    store_int(progress, at - out)
    return row


@compiled
def join_pieces(count: int, addresses: int, sizes: int, out: int) -> int:
    """Write pieces of bytes one after the other. Returns the address after the last."""
    at = out
    for i in range(count):
        size = load_int(sizes + WORD * i)
        copy_bytes(at, load_int(addresses + WORD * i), size)
        at += size
    return at


@compiled
def columns_to_args(rows: int, program: int, steps: int, out: int, starts: int, sizes: int) -> int:
    """Write the args of ``rows`` rows to ``out``. ``program`` holds four addresses for each column.

    For texts these are the codes, then the bytes, starts and sizes of the encoded args. For integers they are the
    values, the key, the key's size, and 0. A value or code of -1 is left out.
    """
    at = out
    for row in range(rows):
        before = at
        for step in range(steps):
            column = program + 32 * step
            value = load_int(load_int(column) + WORD * row)
            if value == -1:
                continue
            data, third, sizes_of = load_int(column + 8), load_int(column + 16), load_int(column + 24)
            if sizes_of:
                size = load_int(sizes_of + WORD * value)
                copy_bytes(at, data + load_int(third + WORD * value), size)
                at += size
            else:
                size = load_int(third)
                store_byte(at, 0x22)
                at = put_varint(at + 1, size + 1 + varint_size(value))
                copy_bytes(at, data, size)
                at += size
                store_byte(at, 0x20)
                at = put_varint(at + 1, value)
        store_int(starts + WORD * row, before - out)
        store_int(sizes + WORD * row, at - before)
    return rows
