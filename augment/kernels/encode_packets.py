"""Compiled code of the Perfetto writer: packets and args from columns, and the memory that Python and compiled code
share.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    load_int,
    record,
    record_at,
    size_of,
    store_byte,
    store_int,
)
from augment.kernels.tokens import ZERO

PACKET_ROOM = 96  #: the most bytes of a packet besides its blob, including bytes written beyond its end
MOST_KEYS = 64  #: the most args of one event; events with more are left to Python

#: why :func:`~augment.kernels.encode_blobs.scan_args` stopped
DONE, MISS, ODD_ROW, FULL, OTHER_STRINGS, FULL_TABLES = 0, 1, 2, 3, 4, 5


@record
class Encoding:
    """The progress of :func:`~augment.kernels.encode_blobs.scan_args`, and what it asks of Python."""

    row: int
    at: int  #: the end of what is written
    suffix: int  #: the next of all suffixes
    suffixes: int  #: the address of their bytes
    miss_start: int  #: the bytes whose code is lacking: addresses
    miss_end: int
    miss_hash: int
    miss_is_key: int
    code: int  #: what Python made of them: address and size; 0 once it is in the tables. Seven bytes follow
    code_size: int
    ready_row: int  #: a row whose args Python has encoded, their address and size
    ready: int
    ready_size: int
    args_end: int  #: of the current event
    key_hash: int  #: of the current arg
    arg: int  #: the last that was written, as in ``Known.nexts``
    sequence: int  #: the tables hold the strings of this sequence of packets, from byte ``begins`` to ``ends``
    begins: int
    ends: int
    keys: Annotated[Column, MOST_KEYS]  #: hashes of the keys of the current event


@record
class ArgStep:
    """An arg of all rows: addresses. A value of -1 is left out."""

    values: int  #: of a text the number of its encoded arg
    data: int  #: the encoded args, or the key
    starts: int  #: of the encoded args; 0: the values are integers
    sizes: int  #: of the encoded args; of the key its size


SEVEN = np.uint64(7)
LOW_SEVEN = np.uint64(127)
MORE_BYTES = np.uint64(128)
WORD = 8
STEP_SIZE, step_at = size_of(ArgStep), record_at(ArgStep)


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
    row: int, kinds: Column, times: Column, tracks: Column, categories: Column, names: Column, blobs: int,
    starts: Column, sizes: Column, out: int, room: int, progress: Column,
) -> int:  # fmt: skip
    """Write the packets from ``row`` on until the output is full. Returns the next row. The end of the written bytes
    is stored in ``progress``.

    ``starts`` is empty if there are no blobs.
    """
    at, last = out, out + room
    while row < len(kinds):
        start = size = 0
        if len(starts) > 0:
            start, size = starts[row], sizes[row]
        if at + size + PACKET_ROOM > last:
            break
        at = put_packet(at, kinds[row], times[row], tracks[row], categories[row], names[row], blobs + start, size)
        row += 1
    progress[0] = at - out
    return row


@compiled
def join_pieces(addresses: Column, sizes: Column, out: int) -> int:
    """Write pieces of bytes one after the other. Returns the address after the last."""
    for i in range(len(sizes)):
        copy_bytes(out, addresses[i], sizes[i])
        out += sizes[i]
    return out


@compiled
def columns_to_args(steps: int, step_count: int, out: int, starts: Column, sizes: Column) -> int:
    """Write the args of all rows to ``out``. ``steps`` is the address of a :class:`ArgStep` for each arg."""
    at = out
    for row in range(len(starts)):
        before = at
        for number in range(step_count):
            step = step_at(steps + STEP_SIZE * number)
            value = load_int(step.values + WORD * row)
            if value == -1:
                continue
            if step.starts:
                size = load_int(step.sizes + WORD * value)
                copy_bytes(at, step.data + load_int(step.starts + WORD * value), size)
                at += size
            else:
                store_byte(at, 0x22)
                at = put_varint(at + 1, step.sizes + 1 + varint_size(value))
                copy_bytes(at, step.data, step.sizes)
                at += step.sizes
                store_byte(at, 0x20)
                at = put_varint(at + 1, value)
        starts[row] = before - out
        sizes[row] = at - before
    return 0
