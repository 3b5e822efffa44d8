"""Compiled code of the Perfetto writer: the blobs of many events. A blob holds the args in the event's text, then its
suffixes.
"""

from __future__ import annotations

from augment.kernels.encode_args import event_args
from augment.kernels.encode_layout import (
    AT,
    DONE,
    FULL,
    PACKET_ROOM,
    READY,
    READY_ROW,
    READY_SIZE,
    ROW,
    SUFFIX,
    SUFFIX_COUNT,
    SUFFIX_ROWS,
    SUFFIX_SIZES,
    SUFFIX_STARTS,
    SUFFIXES,
)
from augment.kernels.encode_packet_args import packet_args
from augment.kernels.encode_packets import WORD, copy_bytes
from augment.kernels.memory import compiled, load_int, load_int32, store_int


@compiled
def scan_args(
    origin: int, base: int, rows: int, offsets: int, lengths: int, out: int, room: int, starts: int, sizes: int,
    first: int, tables: int, state: int, of_packets: int,
) -> int:  # fmt: skip
    """Write the blobs of the ``rows`` rows at ``offsets``, from ``state[ROW]`` on, to ``out + state[AT]`` and on.

    ``origin`` is the address of byte ``base`` of the text. ``first`` is the number of the first row in the numbering of
    SUFFIX_ROWS. A row's blob begins with its args, or with what Python stored at READY if READY_ROW is that row; its
    suffixes follow. The text of rows is JSON, or packets in Perfetto's format.
    """
    last = out + room
    row, suffix, at = load_int(state + ROW), load_int(state + SUFFIX), out + load_int(state + AT)
    suffix_count, suffix_rows = load_int(tables + SUFFIX_COUNT), load_int(tables + SUFFIX_ROWS)
    while row < rows:
        offset = load_int(offsets + WORD * row)
        start = origin + offset - base
        stop = start + load_int32(lengths + 4 * row)
        to = at
        if load_int(state + READY_ROW) == row:
            size = load_int(state + READY_SIZE)
            if to + size + PACKET_ROOM > last:
                return FULL
            copy_bytes(to, load_int(state + READY), size)
            to += size
        elif of_packets != 0:
            to = packet_args(start, stop, offset, to, last, tables, state)
        else:
            to = event_args(start, stop, to, last, tables, state)
        if to < 0:
            return -1 - to
        while suffix < suffix_count and load_int(suffix_rows + WORD * suffix) == first + row:
            size = load_int(load_int(tables + SUFFIX_SIZES) + WORD * suffix)
            if to + size + PACKET_ROOM > last:
                return FULL
            copy_bytes(
                to, load_int(tables + SUFFIXES) + load_int(load_int(tables + SUFFIX_STARTS) + WORD * suffix), size
            )
            to += size
            suffix += 1
        store_int(starts + WORD * row, at - out)
        store_int(sizes + WORD * row, to - at)
        at = to
        row += 1
        store_int(state + ROW, row)
        store_int(state + AT, at - out)
        store_int(state + SUFFIX, suffix)
    return DONE
